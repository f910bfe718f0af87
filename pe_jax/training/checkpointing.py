"""Orbax checkpoints of the training state, with the place in the data that comes next.

A checkpoint appears under its step's name once it is whole: a run killed while saving leaves the
one before. What was saved has a fingerprint, and is compared with it when it is read: a checkpoint
that is damaged or cut short is passed over, said so, and never deleted.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grain
import jax
import orbax.checkpoint as ocp

from pe_jax.console.terminal import say
from pe_jax.files import is_remote
from pe_jax.training.fingerprint import fingerprint
from pe_jax.training.sharding import all_hosts, host, on_one_device
from pe_jax.training.step import TrainState

# From arrays, or what is known of their shapes, to the sharding of each.
Place = Callable[[Any], Any]

# Copies of an array are written by a part of the devices each; only where the parts are worth it:
# cutting hundreds of small ones takes longer than writing them.
_ARRAYS = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=2**20))
)


class Restored(NamedTuple):
    """A checkpoint: the state after `step`, and that of the iterator over what follows."""

    step: int
    state: TrainState
    data: dict[str, Any]


class Checkpoints:
    """The checkpoints of a run, one folder a step, under `workdir/checkpoints`.

    Args:
      workdir: the run's folder.
      keep: how many of the newest stay; None only reads, and changes nothing there.
    """

    def __init__(self, workdir: Path, *, keep: int | None = None):
        self._workdir = workdir
        # What a killed run left half-written is removed; its owner is gone, see `occupied`.
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
        """All steps with a checkpoint, the oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, iterator: grain.DatasetIterator) -> None:
        """Saves the state after its step, with the place in the data that comes next; goes on in
        the background.

        Raises:
          OSError: if this checkpoint, or the one before, cannot be written.
        """
        data = iterator.get_state()
        facts = {
            "params": fingerprint(state.params),
            "state": fingerprint(state),
            "data": data,  # The same on every host.
            "data_checksum": _checksum(data),
        }
        step = int(state.step)
        args = ocp.args.Composite(state=ocp.args.PyTreeSave(state), facts=ocp.args.JsonSave(facts))
        with self._written(step):
            # Never skipped, as it may be without force; a step that is there already is an error.
            self._manager.save(step, args=args, force=True)

    def restore_newest(self, like: TrainState) -> Restored | None:
        """The newest checkpoint that can be read whole; None if there is none at all.

        Those that cannot are moved to `workdir/damaged`.

        Args:
          like: a state with the structure, dtypes and shardings that are wanted.

        Raises:
          ValueError: if there are checkpoints and none can be read.
        """

        def read(step: int) -> Restored:
            args = ocp.args.Composite(state=_restore(like), facts=ocp.args.JsonRestore())
            found = self._manager.restore(step, args=args)
            facts, state = found["facts"], found["state"]
            _compare("state", fingerprint(state), facts["state"])
            _compare("place in the data", _checksum(facts["data"]), facts["data_checksum"])
            return Restored(step, state, facts["data"])

        found, damaged = self._newest(read)
        for step in damaged:
            self._put_aside(step)
        return found

    def restore_newest_params(self, place: Place = on_one_device) -> tuple[int, Any] | None:
        """Step and parameters of the newest checkpoint that can be read; None if there is none.

        Raises:
          ValueError: if there are checkpoints and none can be read.
        """
        return self._newest(lambda step: (step, self.restore_params(step, place)))[0]

    def restore_params(self, step: int, place: Place = on_one_device) -> Any:
        """Only the parameters at `step`, however they lay when they were saved.

        Raises:
          Exception: of some kind, if they are damaged.
        """
        metadata = self._manager.item_metadata(step)["state"].tree["params"]
        like = jax.tree.map(
            lambda m, where: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=where),
            metadata,
            place(metadata),
        )
        args = ocp.args.Composite(
            state=_restore({"params": like}, partial_restore=True), facts=ocp.args.JsonRestore()
        )
        found = self._manager.restore(step, args=args)
        params = found["state"]["params"]
        _compare("parameters", fingerprint(params), found["facts"]["params"])
        return params

    def close(self) -> None:
        """Waits for what is still being written.

        Raises:
          OSError: if it cannot be written.
        """
        with self._written(None):
            self._manager.wait_until_finished()
        self._manager.close()

    def _newest(self, read: Callable[[int], Any]) -> tuple[Any, list[int]]:
        """What `read` makes of the newest step that it can read, and the steps it could not."""
        damaged: dict[int, Exception] = {}
        for step in reversed(self.steps()):
            found, error = None, None
            try:
                found = read(step)
            # Damage shows in many ways: JSON, OCDBT, zstd, missing files and shapes.
            except Exception as caught:
                error = caught
            if all_hosts(error is None):
                for bad, why in damaged.items():
                    say(f"The checkpoint of step {bad:,} cannot be read ({_brief(why)}).")
                if damaged:
                    say(f"Taking the one before, of step {step:,}.")
                return found, list(damaged)
            damaged[step] = error or OSError("another host cannot read it")
        if damaged:
            lines = "\n".join(f"  step {step:,}: {_brief(why)}" for step, why in damaged.items())
            raise ValueError(
                f"None of the checkpoints in {self._workdir} can be read:\n{lines}\n"
                "They were left as they are. Another version of this project may have written "
                "them; else give another --workdir."
            )
        return None, []

    def _put_aside(self, step: int) -> None:
        """Where it is, it would keep the run from saving that step again."""
        if host()[0] == 0:
            folder = self._workdir / "damaged"
            folder.mkdir(parents=True, exist_ok=True)
            number = 1 + sum(1 for _ in folder.iterdir())
            to = folder / f"{step}-{number}"
            (self._workdir / "checkpoints" / str(step)).rename(to)
            say(f"The damaged one was moved to {to}.")
        all_hosts(True)  # Nobody goes on before it is done.
        self._manager.reload()

    @contextlib.contextmanager
    def _written(self, step: int | None) -> Iterator[None]:
        """Says what could not be written. The failure may be that of an earlier save."""
        try:
            yield
        except Exception as error:
            which = "The last checkpoint" if step is None else f"The checkpoint of step {step:,}"
            whole = self.steps()
            last = (
                f"The newest whole one is of step {whole[-1]:,}" if whole else "None is there yet"
            )
            raise OSError(
                f"{which}, or the one before, was not written to {self._workdir}: {_brief(error)}. "
                f"{last}; the same command goes on from there."
            ) from error


def _absolute(workdir: Path) -> Path:
    return workdir if is_remote(workdir) else workdir.absolute()


def _restore(like: Any, **options: Any) -> ocp.args.PyTreeRestore:
    placed = ocp.checkpoint_utils.construct_restore_args(like)
    return ocp.args.PyTreeRestore(like, restore_args=placed, **options)


def _checksum(data: Any) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())


def _compare(what: str, found: int, saved: int) -> None:
    if found != saved:
        raise ValueError(f"the {what} differs from what was saved")


def _brief(error: Exception) -> str:
    """The first line of an error; of a long one its two ends, as the last words say the most."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    return text if len(text) <= 240 else f"{text[:80]} ... {text[-160:]}"


def saved_steps(workdir: Path) -> list[int]:
    """The steps that a run has checkpoints of, the oldest first."""
    with contextlib.closing(Checkpoints(workdir)) as checkpoints:
        return checkpoints.steps()


def params_by_step(workdir: Path, *, skip: Collection[int] = ()) -> Iterator[tuple[int, Any]]:
    """Step and parameters of the checkpoints of a run, the oldest first, one at a time.

    Args:
      skip: steps that are not read.
    """
    with contextlib.closing(Checkpoints(workdir)) as checkpoints:
        for step in checkpoints.steps():
            if step not in skip:
                yield step, checkpoints.restore_params(step)


def newest_params(workdir: Path, place: Place = on_one_device) -> tuple[int, Any]:
    """Step and parameters of the newest checkpoint of a run that can be read.

    Args:
      place: where they go.

    Raises:
      ValueError: if the run has none yet, or none can be read.
    """
    with contextlib.closing(Checkpoints(workdir)) as checkpoints:
        found = checkpoints.restore_newest_params(place)
    if found is None:
        raise ValueError(f"The run in {workdir} has no checkpoint yet.")
    return found
