"""Makes the cells of a study: several at a time, each in a process of its own, in any starts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from pe_jax.console import stopping
from pe_jax.console.terminal import say, tell
from pe_jax.files import write_text
from pe_jax.study.cell import describe
from pe_jax.study.cost import Costs, cost_table, costs
from pe_jax.study.plan import Cell, cells
from pe_jax.study.progress import progress_table
from pe_jax.study.state import (
    add_seconds,
    check,
    has_weights,
    is_done,
    is_ready,
    restarted,
    to_make,
)
from pe_jax.training import workdir

LOG = "log.txt"
_POLL = 0.2  # Seconds.


class _Running(NamedTuple):
    cell: Cell
    process: subprocess.Popen[bytes]
    since: float


def dry_run(config: ConfigDict, folder: Path) -> str:
    """What is to be made in `folder`, and how long that takes here; makes nothing."""
    return cost_table(costs(cells(config, folder), config.jobs))


def run(config: ConfigDict, folder: Path) -> str:
    """Makes every cell that is not done; returns a table of all.

    A cell that fails is left, with those that need it; the others go on.

    Raises:
      ValueError: if another process has the folder, or cells in it have other settings.
      OSError: if cells failed, with the files that say why.
      Interrupted: after SIGTERM or Ctrl-C, once all processes have saved.
    """
    plan = cells(config, folder)
    check(plan)
    with workdir.occupied(folder) as held, stopping.deferred() as asked:
        workdir.claim(folder, config)
        tell("Study", f"{folder}: {len(plan):,} cells, {sum(map(is_done, plan)):,} of them done")
        failed = _make(costs(plan, config.jobs), asked, held, folder / "progress.md")
    if failed:
        logs = "\n".join(f"  {cell.name}: {cell.folder / LOG}" for cell in failed)
        raise OSError(f"{len(failed)} cells failed; the same command tries them again:\n{logs}")
    return progress_table(plan)


def _make(
    costs: Costs, asked: Callable[[], int], held: Callable[[], None], progress: Path
) -> list[Cell]:
    """Makes what is left, `costs.jobs` cells at a time, until all is done or a signal asks to stop;
    returns the cells that failed."""
    waiting = to_make(costs.plan)
    running: dict[int, _Running] = {}  # By share of the cores.
    failed: list[Cell] = []
    told: set[int] = set()

    def show() -> None:
        now = [one.cell.folder for one in running.values()]
        table = progress_table(costs.plan, now, [cell.folder for cell in failed])
        write_text(progress, f"{table}\n")

    for cell in waiting:
        if not has_weights(cell.folder):
            restarted(cell)
    while running or (not asked() and any(map(is_ready, waiting))):
        for share in range(costs.jobs):
            ready = next(filter(is_ready, waiting), None)
            if share not in running and ready and not asked():
                held()
                waiting.remove(ready)
                running[share] = _started(ready, _cores(share, costs.jobs))
                show()
        time.sleep(_POLL)
        for share, one in list(running.items()):
            if asked() and share not in told:  # A second signal would end it at once.
                one.process.terminate()
                told.add(share)
            if one.process.poll() is not None:
                del running[share]
                add_seconds(one.cell, time.monotonic() - one.since)
                if not is_done(one.cell) and not asked():
                    failed.append(one.cell)
                _tell_end(one, costs, [*waiting, *(other.cell for other in running.values())])
                show()
    return failed


def _started(cell: Cell, cores: tuple[int, ...]) -> _Running:
    describe(cell, cores)
    with open(cell.folder / LOG, "ab") as log:
        command = [sys.executable, "-m", "pe_jax.study", str(cell.folder)]
        # In a session of its own: Ctrl-C reaches it through the study alone.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
    return _Running(cell, process, time.monotonic())


def _cores(share: int, jobs: int) -> tuple[int, ...]:
    """Of one of so many jobs; empty for all cores, or where a system has no such thing."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return ()
    cores = sorted(os.sched_getaffinity(0))
    return tuple(cores[share::jobs]) or (cores[share % len(cores)],)


def _tell_end(one: _Running, costs: Costs, left: list[Cell]) -> None:
    minutes = (time.monotonic() - one.since) / 60
    how = "done" if is_done(one.cell) else "stopped, or failed"
    done = sum(map(is_done, costs.plan))
    tell(
        f"{done:,}/{len(costs.plan):,}",
        f"{one.cell.name}: {how} after {minutes:.1f} min; {costs.hours(left):.1f} hours to go",
    )
    if not is_done(one.cell):
        say(f"          {one.cell.folder / LOG}")
