"""Our sides of `pytorch_step.py`: the step that `train.py` runs, on one device."""

from __future__ import annotations

from typing import Any

import flax
import jax
import jaxlib
import numpy as np
import optax
from _step import make_step
from _worker import Advance, serve


def prepare(job: dict, arrays: dict[str, np.ndarray]) -> tuple[Advance, dict[str, Any]]:
    """The step as `advance`; job: size, max_length, position, dtype, optimizer."""
    model = {key: job[key] for key in ("size", "max_length", "position", "dtype")}
    program, step, state, batch = make_step(
        arrays,
        model | {"vocab_size": job["sizes"]["vocab_size"]},
        learning_rate=job["learning_rate"],
        warmup=0.0,
        weight_decay=job["weight_decay"],
        clip_norm=0.0,
    )

    def advance(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, metrics = step(state, batch)
        metrics, state = jax.block_until_ready((metrics, state))
        return float(sum(np.divide(*metrics[name]) for name in program.task.losses))

    return advance, {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "versions": {m.__name__: m.__version__ for m in (jax, jaxlib, flax, optax, np)},
        "devices": [str(device) for device in program.mesh.devices.flat],
    }


if __name__ == "__main__":
    serve(prepare)
