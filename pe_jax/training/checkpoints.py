"""Orbax checkpoints of the training state and of the data iterator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import orbax.checkpoint as ocp

from pe_jax.training.sharding import on_one_device
from pe_jax.training.step import TrainState

# From arrays, or what is known of their shapes, to the sharding of each.
Place = Callable[[Any], Any]


class Checkpoints:
    """The checkpoints of a run, one folder a step, under `workdir/checkpoints`.

    Args:
      workdir: the run's folder.
      keep: how many of the newest stay; None keeps all.
    """

    def __init__(self, workdir: Path, *, keep: int | None):
        self._manager = ocp.CheckpointManager(
            (workdir / "checkpoints").absolute(),
            item_handlers={
                "state": ocp.PyTreeCheckpointHandler(),
                "data": grain.checkpoint.CheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(max_to_keep=keep),
        )

    def latest_step(self) -> int | None:
        """The newest step with a whole checkpoint; None if there is none."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """All steps with a whole checkpoint, the oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, iterator: grain.DatasetIterator) -> None:
        """Saves the state after its step, with the place in the data that comes next."""
        self._manager.save(
            int(state.step),
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave(state), data=grain.checkpoint.CheckpointSave(iterator)
            ),
        )

    def restore_state(self, step: int, like: TrainState) -> TrainState:
        """The state at `step`, with the structure, dtypes and shardings of `like`."""
        return self._restore(step, like)

    def restore_params(self, step: int, place: Place = on_one_device) -> Any:
        """Only the parameters at `step`, however they lay when they were saved."""
        metadata = self._manager.item_metadata(step)["state"].tree["params"]
        like = jax.tree.map(
            lambda m, where: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=where),
            metadata,
            place(metadata),
        )
        return self._restore(step, {"params": like}, partial_restore=True)["params"]

    def restore_data(self, step: int, iterator: grain.DatasetIterator) -> None:
        """Moves `iterator` to where it stood at `step`."""
        restore = grain.checkpoint.CheckpointRestore(iterator)
        self._manager.restore(step, args=ocp.args.Composite(data=restore))

    def close(self) -> None:
        """Waits for what is still being written."""
        self._manager.wait_until_finished()
        self._manager.close()

    def _restore(self, step: int, like: Any, **options: Any) -> Any:
        placed = ocp.checkpoint_utils.construct_restore_args(like)
        restore = ocp.args.PyTreeRestore(like, restore_args=placed, **options)
        return self._manager.restore(step, args=ocp.args.Composite(state=restore))["state"]


def saved_steps(workdir: Path) -> list[int]:
    """The steps that a run has checkpoints of, the oldest first."""
    with contextlib.closing(Checkpoints(workdir, keep=None)) as checkpoints:
        return checkpoints.steps()


def params_by_step(workdir: Path, *, skip: Collection[int] = ()) -> Iterator[tuple[int, Any]]:
    """Step and parameters of the checkpoints of a run, the oldest first, one at a time.

    Args:
      skip: steps that are not read.
    """
    with contextlib.closing(Checkpoints(workdir, keep=None)) as checkpoints:
        for step in checkpoints.steps():
            if step not in skip:
                yield step, checkpoints.restore_params(step)


def newest_params(workdir: Path, place: Place = on_one_device) -> tuple[int, Any]:
    """Step and parameters of the newest checkpoint of a run.

    Args:
      place: where they go.

    Raises:
      ValueError: if the run has none yet.
    """
    with contextlib.closing(Checkpoints(workdir, keep=None)) as checkpoints:
        step = checkpoints.latest_step()
        if step is None:
            raise ValueError(f"The run in {workdir} has no checkpoint yet.")
        return step, checkpoints.restore_params(step, place)
