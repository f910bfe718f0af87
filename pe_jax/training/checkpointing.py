"""Orbax checkpoints of the training state, with the place of the loop in the data and the log.

A checkpoint appears under its step's name once it is complete: a run killed while saving leaves the
one before. What is saved has a fingerprint, which is compared when it is restored: a checkpoint
that is damaged or truncated is skipped with a message, and never deleted.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import orbax.checkpoint as ocp

from pe_jax.console import stopping
from pe_jax.console.terminal import say
from pe_jax.files import Json, is_remote
from pe_jax.training import orbax_log
from pe_jax.training.fingerprint import examine, fingerprint
from pe_jax.training.pytrees import Params, PyTree, ShardingsOf
from pe_jax.training.sharding import all_hosts, host, on_one_device
from pe_jax.training.step import TrainState

T = TypeVar("T")

# Each device that has a copy of an array writes a slice of it; not of small arrays, as slicing
# hundreds of them takes longer than writing them.
_ARRAYS = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=2**20))
)


class Restored(NamedTuple):
    """A checkpoint: the state after `step`, and where the loop was, see `Checkpoints.save`."""

    step: int
    state: TrainState
    place: Json


class Checkpoints:
    """The checkpoints of a run, one folder a step, under `workdir/checkpoints`.

    Args:
      workdir: the run's folder.
      keep: how many of the newest to keep; None only reads, and changes nothing there.
      run: what tells this run from others, see `workdir.identity`; checkpoints of others are not
        restored.
    """

    def __init__(self, workdir: Path, *, keep: int | None = None, run: str = ""):
        orbax_log.quieten()
        self._workdir, self._run = workdir, run
        # What a killed run left half-written is removed; no other run writes here, see `occupied`.
        own = dict(max_to_keep=keep, cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(
            _absolute(workdir) / "checkpoints",
            item_handlers={
                "state": ocp.PyTreeCheckpointHandler(type_handler_registry=_ARRAYS),
                "facts": ocp.JsonCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(**(own if keep else dict(create=False))),
        )

    def steps(self) -> list[int]:
        """All steps with a checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, place: Json) -> None:
        """Saves the state after its step; finishes in the background.

        Args:
          place: where the loop is: the position in the data that comes next, and what else it needs
            to go on. The same on every host.

        Raises:
          FloatingPointError: if the state is not finite: it is not saved.
          OSError: if this checkpoint, or the one before, cannot be written.
        """
        whole = examine(state)
        if broken := whole.not_finite:
            raise FloatingPointError(
                f"The state after step {int(state.step):,} is not finite in {len(broken)} arrays, "
                f"such as {broken[0]}, and was not saved: the checkpoints are of steps before. A "
                "lower learning rate or a longer warmup may help, in another --workdir."
            )
        facts = {
            "params": fingerprint(state.params),
            "state": whole.fingerprint,
            "run": self._run,
            "place": place,
            "place_checksum": _checksum(place),
        }
        step = int(state.step)
        args = ocp.args.Composite(state=ocp.args.PyTreeSave(state), facts=ocp.args.JsonSave(facts))
        with self._written(step):
            # Without force Orbax may skip it; a step that exists already is an error.
            self._manager.save(step, args=args, force=True)

    def restore_newest(self, like: TrainState) -> Restored | None:
        """The newest checkpoint that can be restored; None if there is none at all.

        Damaged ones are moved to `workdir/damaged`.

        Args:
          like: a state with the structure, dtypes and shardings to restore to.

        Raises:
          ValueError: if there are checkpoints and none can be read.
        """

        def read(step: int) -> Restored:
            args = ocp.args.Composite(state=_restore(like), facts=ocp.args.JsonRestore())
            found = self._manager.restore(step, args=args)
            facts, state = found["facts"], found["state"]
            _compare("state", fingerprint(state), facts["state"])
            _compare("position in the data", _checksum(facts["place"]), facts["place_checksum"])
            if facts["run"] != self._run:
                raise ValueError("it is of a run with another config or tokenizer")
            return Restored(step, state, facts["place"])

        found, damaged = self._newest(read)
        for step in damaged:
            self._put_aside(step)
        return found

    def restore_newest_params(
        self, shardings_of: ShardingsOf = on_one_device
    ) -> tuple[int, Params] | None:
        """Step and parameters of the newest checkpoint that can be restored; None if none exists.

        Raises:
          ValueError: if there are checkpoints and none can be read.
        """
        return self._newest(lambda step: (step, self.restore_params(step, shardings_of)))[0]

    def restore_params(self, step: int, shardings_of: ShardingsOf = on_one_device) -> Params:
        """Only the parameters at `step`, whatever their shardings were when they were saved.

        Raises:
          Exception: any, if they are damaged.
        """
        metadata = self._manager.item_metadata(step)["state"].tree["params"]
        like = jax.tree.map(
            lambda m, where: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=where),
            metadata,
            shardings_of(metadata),
        )
        args = ocp.args.Composite(
            state=_restore({"params": like}, partial=True), facts=ocp.args.JsonRestore()
        )
        found = self._manager.restore(step, args=args)
        params = found["state"]["params"]
        _compare("parameters", fingerprint(params), found["facts"]["params"])
        return params

    def close(self) -> None:
        """Waits until everything is written, and signals to stop wait as well.

        Raises:
          OSError: if it cannot be written.
        """
        with stopping.deferred(), self._written(None):
            self._manager.wait_until_finished()
        self._manager.close()

    def _newest(self, read: Callable[[int], T]) -> tuple[T | None, list[int]]:
        """What `read` returns for the newest step that it can read, and the steps it could not."""
        damaged: dict[int, Exception] = {}
        for step in reversed(self.steps()):
            found: T | None = None
            error: Exception | None = None
            try:
                found = read(step)
            # Damage shows in many ways: JSON, OCDBT, zstd, missing files and shapes.
            except Exception as caught:
                error = caught
            if all_hosts(error is None):
                for bad, why in damaged.items():
                    say(f"The checkpoint of step {bad:,} cannot be read ({_brief(why)}).")
                if damaged:
                    say(f"Using the one before, of step {step:,}.")
                return found, list(damaged)
            damaged[step] = error or OSError("another host cannot read it")
        if damaged:
            lines = "\n".join(f"  step {step:,}: {_brief(why)}" for step, why in damaged.items())
            raise ValueError(
                f"None of the checkpoints in {self._workdir} can be read:\n{lines}\n"
                "They were not changed. Another version of this project may have written them; "
                "otherwise give another --workdir."
            )
        return None, []

    def _put_aside(self, step: int) -> None:
        """Moves a damaged checkpoint: where it is, the run could not save that step again."""
        if host()[0] == 0:
            folder = self._workdir / "damaged"
            folder.mkdir(parents=True, exist_ok=True)
            number = 1 + sum(1 for _ in folder.iterdir())
            to = folder / f"{step}-{number}"
            (self._workdir / "checkpoints" / str(step)).rename(to)
            say(f"The damaged one was moved to {to}.")
        all_hosts(True)  # A barrier.
        self._manager.reload()

    @contextlib.contextmanager
    def _written(self, step: int | None) -> Iterator[None]:
        """Reports what could not be written. The failure may be that of an earlier save."""
        try:
            yield
        except Exception as error:
            which = "The last checkpoint" if step is None else f"The checkpoint of step {step:,}"
            steps = self.steps()
            last = (
                f"The newest complete one is of step {steps[-1]:,}"
                if steps
                else "There is none yet"
            )
            raise OSError(
                f"{which}, or the one before, was not written to {self._workdir}: {_brief(error)}. "
                f"{last}; the same command resumes from there."
            ) from error


def _absolute(workdir: Path) -> Path:
    return workdir if is_remote(workdir) else workdir.absolute()


def _restore(like: PyTree, *, partial: bool = False) -> ocp.args.PyTreeRestore:
    """`like`: shapes with shardings, or arrays; `partial` where the checkpoint holds more."""
    args = ocp.checkpoint_utils.construct_restore_args(like)
    return ocp.args.PyTreeRestore(like, restore_args=args, partial_restore=partial)


def _checksum(place: Json) -> int:
    return zlib.crc32(json.dumps(place, sort_keys=True).encode())


def _compare(what: str, found: int, saved: int) -> None:
    if found != saved:
        raise ValueError(f"the {what} differs from what was saved")


def _brief(error: Exception) -> str:
    """The first line of an error; of a long line both ends, as the end says the most."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    return text if len(text) <= 240 else f"{text[:80]} ... {text[-160:]}"


def saved_steps(workdir: Path) -> list[int]:
    """The steps that a run has checkpoints of, ascending."""
    with contextlib.closing(Checkpoints(workdir)) as checkpoints:
        return checkpoints.steps()


def params_by_step(workdir: Path, *, skip: Collection[int] = ()) -> Iterator[tuple[int, Params]]:
    """Step and parameters of the checkpoints of a run, steps ascending, one at a time.

    Args:
      skip: steps not to read.
    """
    with contextlib.closing(Checkpoints(workdir)) as checkpoints:
        for step in checkpoints.steps():
            if step not in skip:
                yield step, checkpoints.restore_params(step)


def newest_params(workdir: Path, shardings_of: ShardingsOf = on_one_device) -> tuple[int, Params]:
    """Step and parameters of the newest checkpoint of a run that can be restored.

    Args:
      shardings_of: from the parameters' shapes to their shardings.

    Raises:
      ValueError: if the run has none yet, or none can be read.
    """
    with contextlib.closing(Checkpoints(workdir)) as checkpoints:
        found = checkpoints.restore_newest_params(shardings_of)
    if found is None:
        raise ValueError(f"The run in {workdir} has no checkpoint yet.")
    return found
