"""How often does an update of AdamW go through memory? Optax's AdamW, pe_jax's, and a formula.

    python benchmarks/optimizer_passes.py [--config=configs/pretrain_books.py] [--topology=v5e:2x2]

Prints how many numbers are read and written for each parameter, by the compiler's count, how many
fusions there are, and the time of an update, in turns; with --topology for a TPU (extra tpu)
and without the time. The floor is 8: the gradient for its norm, then the gradient, parameters and
two moments read, and the last three written.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import optax
from absl import flags
from tpu_slices import make_slice

from pe_jax.common import cpu
from pe_jax.common.markdown import raw_table
from pe_jax.common.schema import Config, from_values
from pe_jax.trainer.configs.all_tasks import TRAINING
from pe_jax.trainer.configs.pretrain_books import get_config
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.configs.training import OptimizerConfig
from pe_jax.trainer.console import command
from pe_jax.trainer.console.config_files import define_config
from pe_jax.trainer.console.terminal import show
from pe_jax.trainer.tasks import pretraining, text_training
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.optimizer import update_rule
from pe_jax.trainer.training.pytrees import Params, PyTree

_FLAGS = flags.FlagValues()
_CONFIG = define_config(_FLAGS, "A pretraining config, by name or as a file.")
_TOPOLOGY = flags.DEFINE_string("topology", None, "A TPU slice.", flag_values=_FLAGS)
_RATE, _ROUNDS = 1e-4, 30

Moments = tuple[Params, Params, jax.Array]


def by_chain(
    optimizer: optax.GradientTransformation,
    params: Params,
    state: PyTree,
    gradients: Params,
) -> tuple[Params, PyTree]:
    """An optimizer of optax."""
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


def by_leaf(
    config: OptimizerConfig, params: Params, state: Moments, gradients: Params
) -> tuple[Params, Moments]:
    """AdamW with a clipped gradient, all of it in one formula for each leaf."""
    mu, nu, count = state
    norm = optax.tree.norm(gradients)
    factor = jnp.minimum(1.0, config.clip_norm / norm)
    count = count + 1
    corrections = (1 - config.b1**count, 1 - config.b2**count)

    def leaf(
        x: jax.Array, m: jax.Array, v: jax.Array, gradient: jax.Array
    ) -> tuple[jax.Array, ...]:
        gradient = gradient * factor
        m = config.b1 * m + (1 - config.b1) * gradient
        v = config.b2 * v + (1 - config.b2) * gradient**2
        direction = m / corrections[0] / (jnp.sqrt(v / corrections[1]) + config.epsilon)
        decay = config.weight_decay if x.ndim > 1 else 0.0
        return x - _RATE * (direction + decay * x), m, v

    triples = jax.tree.map(leaf, params, mu, nu, gradients)
    params, mu, nu = jax.tree.transpose(jax.tree.structure(params), None, triples)
    return params, (mu, nu, count)


def run() -> None:
    config: Config = from_values(_CONFIG.value or get_config(), TRAINING)
    assert isinstance(config, PretrainingConfig)
    topology = _TOPOLOGY.value
    mesh = (
        make_slice(topology).mesh if topology else sharding.data_mesh(jax.devices()[:1])
    )
    device = jax.sharding.SingleDeviceSharding(mesh.devices.flat[0])
    config, model = text_training.resolve(config)
    program = pretraining.make_program(config, mesh, model, steps=1)
    params = sharding.abstract(program.state_shapes.params, device)
    schedule, rule = optax.constant_schedule(_RATE), config.optimizer
    unclipped = update_rule(dataclasses.replace(rule, clip_norm=0.0), schedule)
    optimizers = {
        "optax's clipping": optax.chain(
            optax.clip_by_global_norm(rule.clip_norm), unclipped
        ),
        "pe_jax": update_rule(rule, schedule),
    }
    states = {
        name: jax.eval_shape(each.init, params) for name, each in optimizers.items()
    }
    functions = {
        name: functools.partial(by_chain, each) for name, each in optimizers.items()
    }
    count = jax.ShapeDtypeStruct((), jnp.float32)
    states["by leaf"] = (params, params, count)
    functions["by leaf"] = functools.partial(by_leaf, rule)
    compiled = {
        name: jax.jit(function, donate_argnums=(0, 1))
        .lower(params, sharding.abstract(states[name], device), params)
        .compile()
        for name, function in functions.items()
    }
    size = sum(x.size for x in jax.tree.leaves(params))
    times = {} if topology else _times(compiled, states, params)
    rows = []
    for name, program_of_name in compiled.items():
        passes = (
            dict(program_of_name.cost_analysis() or {})["bytes accessed"] / 4 / size
        )
        fusions = len(re.findall(r"= .* fusion\(", program_of_name.as_text() or ""))
        low, middle, high = statistics.quantiles(times[name]) if times else (0, 0, 0)
        time_cell = f"{middle:.2f} ({low:.2f} to {high:.2f})" if times else "–"
        rows.append([name, f"{passes:.1f}", f"{fusions}", time_cell])
    place = topology or cpu.model() or "this device"
    header = ["update", "numbers by parameter", "fusions", "ms (quartiles)"]
    show(
        "\n".join(
            [f"AdamW of {size:,} parameters, {place}", "", *raw_table(header, rows)]
        )
    )


def _times(
    compiled: Mapping[str, jax.stages.Compiled],
    states: Mapping[str, PyTree],
    params: Params,
) -> dict[str, list[float]]:
    """Return milliseconds of updates, in turns."""
    ones = functools.partial(jax.tree.map, lambda x: jnp.ones(x.shape, x.dtype))
    gradients, at = (
        ones(params),
        {name: (ones(params), ones(states[name])) for name in compiled},
    )
    times: dict[str, list[float]] = {name: [] for name in compiled}
    for _ in range(_ROUNDS):
        for name, update in compiled.items():
            start = time.perf_counter()
            at[name] = jax.block_until_ready(update(*at[name], gradients))
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


if __name__ == "__main__":
    command.main(run, _FLAGS, __doc__, "train.py")
