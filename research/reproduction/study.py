"""Execution of a study: several runs at a time, each in its own process, resumed by any start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pe_jax.common.files import write_text
from pe_jax.trainer.console import stopping
from pe_jax.trainer.console.terminal import log, log_field
from pe_jax.trainer.training import workdir
from research.reproduction import state
from research.reproduction.config import ReproductionConfig
from research.reproduction.cost import Costs, cost_table, costs
from research.reproduction.plan import RESULT, Run, plan
from research.reproduction.results_file import Entry

LOG = "log.txt"
_RUN_ONE = Path(__file__).with_name("run_one.py")
_POLL = 0.2  # Seconds.


def dry_run(config: ReproductionConfig, folder: Path) -> str:
    """Return a table of the remaining runs in `folder` and their time here; execute nothing."""
    _share_memory()
    runs = plan(config, folder)
    return cost_table(costs(runs, state.finished_entries(runs, folder), config.jobs))


def execute(config: ReproductionConfig, folder: Path) -> str:
    """Execute every run that is not done, write `results.json`, and return a table of all runs.

    A run that fails is left, with those that need it; the others go on.

    Raises:
      ValueError: if another process has the folder, or runs in it have other settings.
      OSError: if runs failed, with the files that say why.
      Interrupted: after SIGTERM or Ctrl-C, once all processes have saved.
    """
    _share_memory()
    runs = plan(config, folder)
    state.check(runs, state.finished_entries(runs, folder))
    with (
        workdir.lock_workdir(folder) as check_lock,
        stopping.deferred() as stop_requests,
    ):
        done = state.finished_entries(runs, folder)
        log_field("Study", f"{folder}: {len(runs):,} runs, {len(done):,} of them done")

        def save(running: Sequence[Run], failed: Sequence[Run]) -> None:
            check_lock()
            state.save(config, runs, done, folder)
            names = ([run.name for run in some] for some in (running, failed))
            write_text(
                folder / "progress.md", state.progress_table(runs, done, *names) + "\n"
            )

        failed = _execute(folder, costs(runs, done, config.jobs), stop_requests, save)
    if failed:
        logs = "\n".join(f"  {run.name}: {run.folder / LOG}" for run in failed)
        raise OSError(
            f"{len(failed)} runs failed. The same command retries them:\n{logs}"
        )
    return state.progress_table(runs, done)


def _share_memory() -> None:
    """Let this process and its runs share a GPU: by default JAX reserves most of its memory."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


class _Process(NamedTuple):
    run: Run
    process: subprocess.Popen[bytes]
    since: float


def _execute(
    folder: Path,
    costs: Costs,
    stop_requests: Callable[[], int],
    save: Callable[[Sequence[Run], Sequence[Run]], None],
) -> list[Run]:
    """Execute what is left, `costs.jobs` runs at a time, until all is done or a signal arrives.

    Args:
      folder: of the study.
      costs: of the plan; entries of runs that end are added to its `done`.
      save: is called with the runs that are running and those that failed whenever these change.

    Returns:
      the runs that failed.
    """
    waiting = state.to_execute(costs.runs, costs.done)
    processes: dict[int, _Process] = {}  # By share of the cores.
    failed: list[Run] = []
    terminated: set[int] = set()

    def running() -> list[Run]:
        return [process.run for process in processes.values()]

    for run in waiting:
        if not state.has_weights(
            run.folder
        ):  # A model is not complete while it is retrained.
            (run.folder / RESULT).unlink(missing_ok=True)
    save([], failed)
    while processes or (not stop_requests() and any(map(state.is_ready, waiting))):
        for share in range(costs.jobs):
            ready = next(filter(state.is_ready, waiting), None)
            if share not in processes and ready and not stop_requests():
                waiting.remove(ready)
                save([*running(), ready], failed)
                processes[share] = _start(folder, ready, _cores(share, costs.jobs))
        time.sleep(_POLL)
        for share, (run, process, since) in list(processes.items()):
            if (
                stop_requests() and share not in terminated
            ):  # A second signal ends it at once.
                process.terminate()
                terminated.add(share)
            if process.poll() is not None:
                del processes[share]
                state.add_seconds(run, time.monotonic() - since)
                if entry := state.finished_entry(run):
                    costs.done[run.name] = entry
                elif not stop_requests():
                    failed.append(run)
                _report_end(run, entry, costs, [*waiting, *running()])
                save(running(), failed)
    return failed


def _start(folder: Path, run: Run, cores: Sequence[int]) -> _Process:
    run.folder.mkdir(parents=True, exist_ok=True)
    with open(run.folder / LOG, "ab") as file:
        # -P: the working directory, which may hold modules of the same names, is not searched.
        command = [
            sys.executable,
            "-P",
            str(_RUN_ONE),
            str(folder),
            run.name,
            *map(str, cores),
        ]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C reaches it through the study alone.
        )
    return _Process(run, process, time.monotonic())


def _cores(share: int, jobs: int) -> list[int]:
    """Return the cores of one of `jobs` processes; none if it may use all, or cannot choose."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[share::jobs] or [cores[share % len(cores)]]


def _report_end(
    run: Run, entry: Entry | None, costs: Costs, left: Sequence[Run]
) -> None:
    log_field(
        f"{len(costs.done):,}/{len(costs.runs):,}",
        f"{run.name}: {'done' if entry else 'stopped, or failed'} after "
        f"{state.seconds(run) / 60:.1f} min; {costs.hours(left):.1f} hours to go",
    )
    if not entry:
        log(f"          {run.folder / LOG}")
