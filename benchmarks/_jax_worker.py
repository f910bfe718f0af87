"""Our sides of `pytorch_step.py`: the step that `train.py` runs, on one device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import flax
import jax
import jaxlib
import numpy as np
import optax
from _worker import Advance, serve

from pe_jax.models import preset
from pe_jax.tasks.pretraining import pretraining_task
from pe_jax.training import sharding
from pe_jax.training.optimizer import adamw
from pe_jax.training.step import init_state, make_train_step


def prepare(job: dict, arrays: dict[str, np.ndarray]) -> tuple[Advance, dict[str, Any]]:
    """The step as `advance`; job: size, max_length, position, dtype, optimizer."""
    config = preset(
        job["size"], max_length=job["max_length"], position=job["position"], dtype=job["dtype"]
    )
    task = pretraining_task(config)
    rate, decay = job["learning_rate"], job["weight_decay"]
    optimizer = adamw(optax.constant_schedule(rate), weight_decay=decay, clip_norm=0)
    mesh = sharding.data_mesh()
    make = lambda: init_state(task, optimizer, jax.random.key(0))
    shardings = sharding.state_shardings(mesh, "jit", jax.eval_shape(make))
    step = sharding.parallelize(make_train_step(task, optimizer), mesh, "jit", shardings)
    state = jax.jit(make, out_shardings=shardings)()
    batch = sharding.to_global(arrays, mesh)

    def advance(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, metrics = step(state, batch)
        metrics, state = jax.block_until_ready((metrics, state))
        return float(sum(np.divide(*metrics[name]) for name in task.losses))

    return advance, {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "versions": {m.__name__: m.__version__ for m in (jax, jaxlib, flax, optax, np)},
        "devices": [str(device) for device in mesh.devices.flat],
    }


if __name__ == "__main__":
    serve(prepare)
