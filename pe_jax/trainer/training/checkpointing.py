"""Orbax checkpoints of the training state, with the metrics since the last line of the log.

A checkpoint appears under the name of its step once it is complete: a run killed while saving
leaves the one before. Each holds checksums of its content, which are compared on restoring: a
damaged or truncated checkpoint is reported, moved to `damaged/` in the run's folder when the run
resumes, and never deleted.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

from pe_jax.common.files import Json, is_remote
from pe_jax.trainer.console import stopping
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.training.pytrees import (
    Params,
    PyTree,
    ShardingsOf,
    checksum,
    combine_sums,
    examine_leaves,
)
from pe_jax.trainer.training.sharding import abstract
from pe_jax.trainer.training.step import TrainState

T = TypeVar("T")

_HELD_OUT_LOSS = "held_out_loss"


class Checkpoints:
    """Writes the checkpoints of a run, one folder per step, under `workdir/checkpoints`.

    Args:
      workdir: the run's folder. Half-written checkpoints of a killed run are removed from it, so no
        other run may write there, see `workdir.lock_workdir`.
      keep: how many of the newest to keep.
      keep_best: how many with the lowest held-out loss to keep besides.
      run: the run's checksum, see `workdir.run_checksum`.
      origin: facts about the run that each checkpoint holds, such as checksums of its data.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        keep: int,
        keep_best: int = 0,
        run: str = "",
        origin: Json | None = None,
    ):
        self.keep_best = keep_best
        self._workdir = workdir
        self._run = run
        self._origin = origin or {}
        self._is_first = not saved_steps(workdir)
        policies = ocp.training.preservation_policies
        best = policies.BestN(
            get_metric_fn=lambda metrics: metrics[_HELD_OUT_LOSS],
            reverse=True,  # Orbax keeps the last.
            n=keep_best,
            keep_checkpoints_without_metrics=False,
        )
        newest = policies.LatestN(keep)
        self._writer = ocp.training.Checkpointer(
            _folder(workdir),
            context=_orbax_settings(),
            preservation_policy=policies.AnyPreservationPolicy([newest, best]),
            cleanup_tmp_directories=True,
        )

    def save(
        self,
        state: TrainState,
        totals: Json,
        held_out_loss: float | None = None,
        early_ends: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Save the state in the background, but for a run's first one, which is then read back.

        Args:
          totals: sums of the metrics since the last line of the log, the same on every host.
          held_out_loss: of this state, if it was measured.
          early_ends: see `Loop`.

        Raises:
          FloatingPointError: if the state is not finite: it is not saved.
          OSError: if this or the previous one cannot be written, or the first cannot be read back.
        """
        step = int(state.step)
        sums, not_finite = examine_leaves(state)
        if not_finite:
            raise FloatingPointError(
                f"The state after step {step:,} is not finite in {len(not_finite)} arrays, such as "
                f"{not_finite[0]}, and was not saved. Earlier checkpoints are unchanged. A lower "
                "learning rate or a longer warmup may help, in another --workdir."
            )
        params_sums = [sums[name] for name in sums if name.startswith("params/")]
        facts: Json = {
            "params": combine_sums(params_sums),
            "state": combine_sums(sums.values()),
            "run": self._run,
            "origin": self._origin,
            "totals": totals,
            "ends": dict(early_ends),
        }
        facts["checksum"] = _facts_checksum(facts)
        metrics = None
        if held_out_loss is not None:
            metrics = {_HELD_OUT_LOSS: held_out_loss}
        with self._errors_named(f"The checkpoint of step {step:,}"):
            # Without force Orbax may skip it; a step that exists already is an error.
            self._writer.save_checkpointables_async(
                step, {"state": state, "facts": facts}, force=True, metrics=metrics
            )
            if self._is_first:
                self._writer.wait()
        if self._is_first:
            self._is_first = False
            self._read_back(step, state.params)

    def _read_back(self, step: int, params: Params) -> None:
        """Read a checkpoint's parameters; OSError on every host, if one of them cannot."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
        _, error = _attempt(
            lambda: restore_params(self._workdir, step, lambda _: shardings)
        )
        if error is not None:
            raise OSError(
                f"The checkpoint of step {step:,} was written to {self._workdir} but cannot be "
                f"read: {_brief(error)}. The run stops, because it could not resume. Give another "
                "--workdir."
            ) from error
        log(f"Saved step {step:,}, and read it back.")

    def close(self) -> None:
        """Wait for pending writes, which may raise OSError. Signals to stop are deferred."""
        with stopping.deferred(), self._errors_named("The last checkpoint"):
            self._writer.wait()
        self._writer.close()

    @contextlib.contextmanager
    def _errors_named(self, checkpoint: str) -> Iterator[None]:
        """Report what could not be written. The failure may be that of an earlier save."""
        try:
            yield
        except Exception as error:
            way_out = "There is no complete one yet; the same command starts again."
            steps = saved_steps(self._workdir)
            if steps:
                newest = f"The newest complete one is of step {steps[-1]:,}"
                way_out = f"{newest}; the same command resumes from there."
            raise OSError(
                f"{checkpoint}, or the one before, was not written to {self._workdir}: "
                f"{_brief(error)}. {way_out}"
            ) from error


def saved_steps(workdir: Path) -> list[int]:
    """Return the steps that a run has checkpoints of, ascending."""
    checkpoints = ocp.path.step.standard_name_format().find_all(_folder(workdir))
    return sorted(checkpoint.step for checkpoint in checkpoints)


def restore_newest(
    workdir: Path, like: TrainState, run: str = ""
) -> tuple[TrainState, Json] | None:
    """Restore the newest state that can be read; move damaged checkpoints away.

    Returns:
      The state, and the facts that were saved with it: `totals` and `ends`, see `Checkpoints.save`,
      and `origin`, see `Checkpoints`. None without any checkpoint.

    Args:
      like: a state, or its shapes with shardings, to restore to.
      run: the run's checksum; the checkpoints of another run are not restored.

    Raises:
      ValueError: if there are checkpoints and none can be read.
    """

    def read(step: int) -> tuple[TrainState, Json]:
        facts = _load(workdir, step, "facts")
        if facts["run"] != run:
            raise ValueError("it is of a run with another config or tokenizer")
        _compare("list of facts", facts.pop("checksum"), _facts_checksum(facts))
        state = _load(workdir, step, "state", like)
        _compare("state", checksum(state), facts["state"])
        return state, facts

    restored, damaged = _newest(workdir, read)
    if jax.process_index() == 0:
        # Where they are, the run could not save those steps again.
        for step in damaged:
            folder = workdir / "damaged"
            folder.mkdir(parents=True, exist_ok=True)
            number = 1 + len(list(folder.iterdir()))
            target = folder / f"{step}-{number}"
            (workdir / "checkpoints" / str(step)).rename(target)
            log(f"The damaged checkpoint was moved to {target}.")
    multihost_utils.sync_global_devices("damaged checkpoints moved")
    return restored


def restore_params(
    workdir: Path, step: int, shardings_of: ShardingsOf | None = None
) -> Params:
    """Read the parameters at `step` alone, whatever their shardings were.

    Args:
      shardings_of: default: all of each on this host's first device.

    Raises:
      Exception: of any class, if the checkpoint is damaged.
    """
    with _orbax_settings():
        metadata = ocp.checkpointables_metadata(_folder(workdir) / str(step)).metadata
    shapes = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype),
        metadata["state"]["params"],
    )
    if shardings_of:
        shardings = shardings_of(shapes)
    else:
        shardings = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = {"params": abstract(shapes, shardings)}
    params = _load(workdir, step, "state", like)["params"]
    facts = _load(workdir, step, "facts")
    _compare("parameters", checksum(params), facts["params"])
    return params


def params_by_step(
    workdir: Path, *, skip: Collection[int] = ()
) -> Iterator[tuple[int, Params]]:
    """Yield step and parameters of the checkpoints of a run, steps ascending, but for `skip`."""
    for step in saved_steps(workdir):
        if step not in skip:
            yield step, restore_params(workdir, step)


def newest_params(
    workdir: Path, shardings_of: ShardingsOf | None = None
) -> tuple[int, Params]:
    """Read step and parameters of the newest checkpoint that is not damaged.

    Raises:
      ValueError: if there is none.
    """
    newest, _ = _newest(
        workdir, lambda step: (step, restore_params(workdir, step, shardings_of))
    )
    if newest is None:
        raise ValueError(f"The run in {workdir} has no checkpoint yet.")
    return newest


def _newest(workdir: Path, read: Callable[[int], T]) -> tuple[T | None, list[int]]:
    """Return `read(step)` of the newest step that it can read, and the steps that it cannot."""
    damaged: dict[int, Exception] = {}
    for step in reversed(saved_steps(workdir)):
        content, error = _attempt(functools.partial(read, step))
        if error is None:
            for bad, why in damaged.items():
                log(f"The checkpoint of step {bad:,} cannot be read ({_brief(why)}).")
            if damaged:
                log(f"Using the earlier checkpoint of step {step:,}.")
            return content, list(damaged)
        damaged[step] = error
    if damaged:
        lines = "\n".join(
            f"  step {step:,}: {_brief(why)}" for step, why in damaged.items()
        )
        raise ValueError(
            f"None of the checkpoints in {workdir} can be read:\n{lines}\n"
            "They were left unchanged. Another version of this project may have written them; "
            "otherwise give another --workdir."
        )
    return None, []


def _attempt(read: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result of `read()`; on every host an error, if it fails on one of them."""
    content = None
    error: Exception | None = None
    try:
        content = read()
    except Exception as caught:
        # Damage shows in many ways: JSON, OCDBT, zstd, files and shapes.
        error = caught
    if multihost_utils.process_allgather(np.bool_(error is None)).all():
        return content, None
    return None, error or OSError("another host cannot read it")


def _folder(workdir: Path) -> Path:
    """Return the folder of a run's checkpoints, absolute, as Orbax needs it."""
    absolute = workdir if is_remote(workdir) else workdir.absolute()
    return absolute / "checkpoints"


def _load(workdir: Path, step: int, name: str, like: PyTree = None) -> PyTree:
    """Return a part of a checkpoint, "state" or "facts"; `like` may hold less than was saved."""
    folder = _folder(workdir) / str(step)
    with _orbax_settings():
        return ocp.load_checkpointables(folder, {name: like})[name]


def _facts_checksum(facts: Json) -> int:
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())


def _compare(name: str, actual: object, saved: object) -> None:
    if actual != saved:
        raise ValueError(f"the {name} differs from what was saved")


def _brief(error: Exception) -> str:
    """Return an error's first line; of a long one both ends, as the end says the most."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    return text if len(text) <= 240 else f"{text[:80]} ... {text[-160:]}"


def _orbax_settings() -> ocp.Context:
    """Return the context in which checkpoints are written and read."""
    _silence_orbax()
    settings = ocp.Context()
    settings.checkpointables.registry = ocp.handlers.local_registry().add(
        ocp.handlers.JsonHandler, checkpointable_name="facts"
    )
    # The parameters without the rest of a state.
    settings.pytree.loading.partial_load = True
    # Each device with a copy of an array writes a slice of it; not of small arrays, as slicing
    # hundreds of them takes longer than writing them.
    settings.array.saving.min_slice_bytes_for_replica_parallel = 2**20
    return settings


@functools.cache  # Once a process.
def _silence_orbax() -> None:
    """Hide what Orbax's threads log of exceptions that they raise in the caller's as well.

    All of it shows with --verbosity=1.
    """
    if logging.getLogger("absl").isEnabledFor(logging.DEBUG):
        return

    def is_news(record: logging.LogRecord) -> bool:
        traceback = record.exc_info and record.exc_info[2]
        return not traceback or "orbax" not in traceback.tb_frame.f_code.co_filename

    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(is_news)
