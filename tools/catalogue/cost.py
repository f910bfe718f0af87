"""What attention with an encoding costs, against attention without positions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from catalogue.entries import SIZES, Entry, Sizes
from pe_jax.attention import attention
from pe_jax.encodings import Context, PositionEncoding, Positions, embed, none
from pe_jax.properties.encoding_measures import on_all_axes

ROWS = 1
LONG = {
    "hidden_size": 128,
    "head_size": 64,
    "num_heads": 2,
    "max_length": 4096,
}  # Of `memory`.


class Cost(NamedTuple):
    """Times over those of `none` in the same round: median, and quartiles."""

    ratio: float
    low: float
    high: float


def costs(
    rows: Sequence[Entry],
    *,
    rounds: int,
    sizes: Sizes = SIZES,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[dict[str, Cost], float]:
    """The cost of each row by name, and milliseconds of `none`.

    A jitted forward and backward pass of attention over `max_length` tokens, `embed` included, the
    projections not. All take turns in every round, each next to one of `none`.
    """
    baseline = _runner(Entry("none", none()), sizes)
    runners = {row.name: _runner(row, sizes) for row in rows}
    ratios: dict[str, list[float]] = {name: [] for name in runners}
    base: list[float] = []
    for number in range(rounds):
        for name, run in runners.items():
            before, own, after = _seconds(baseline), _seconds(run), _seconds(baseline)
            base += [before, after]
            ratios[name].append(2 * own / (before + after))
        say(f"round {number + 1} of {rounds}")
    return {
        name: _cost(each) for name, each in ratios.items()
    }, 1e3 * statistics.median(base)


def _cost(ratios: Sequence[float]) -> Cost:
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return Cost(float(median), float(low), float(high))


def _seconds(run: Callable[[], None], least: float = 0.1) -> float:
    """Of one run, by the mean of as many as fit."""
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < least or not count:
        run()
        count += 1
    return elapsed / count


def layer_step(
    encoding: PositionEncoding, sizes: Sizes, positions: Positions | None = None
) -> tuple[jax.stages.Wrapped, Mapping]:
    """Return a jitted forward and backward pass of one layer of attention, and its arguments.

    `embed` and the projections to queries and keys that an encoding may ask for are included.

    Args:
      positions: `[L]` or a range; default 0, 1, 2, ...
    """
    width, size, heads, length = sizes.values()
    at: Positions = range(length) if positions is None else positions
    if encoding.axes > 1:  # Such positions are never ranges.
        at = on_all_axes(np.asarray(at), encoding)
    at = at if isinstance(at, range) else jnp.asarray(at)[None]
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    arguments = {
        "params": jax.jit(encoding.init)(jax.random.key(0)),
        "qkv": tuple(normal(ROWS, length, heads, size) for _ in range(3)),
        "x": normal(ROWS, length, width),
        "w": width**-0.5 * normal(width, heads, size),
    }
    tokens = jnp.asarray(rng.integers(0, 1000, (ROWS, length)))

    def loss(arguments: Mapping) -> jax.Array:
        params, w = arguments["params"], arguments["w"]
        x = embed(
            arguments["x"], encoding, params, Context(positions_q=at, tokens=tokens)
        )
        q, k, v = (y + x.reshape(y.shape) for y in arguments["qkv"])
        project = lambda y: jnp.einsum("...D,Dhd->...hd", y, w)
        context = Context(
            positions_q=at, positions_k=at, x_q=x, x_k=x, projections=(project, project)
        )
        return (attention(q, k, v, encoding.in_attention, params, context) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss)), arguments


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    """Return the temporary memory of a compiled program."""
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def memory(row: Entry, sizes: Sizes = LONG) -> float:
    """Return the temporary memory of `layer_step` over that of `none`, NaN for an encoding that
    refuses so many positions; nothing is run."""

    def temporary(encoding: PositionEncoding) -> int:
        step, arguments = layer_step(encoding, sizes)
        return temporary_bytes(step.lower(arguments).compile())

    try:
        return temporary(row.encoding) / temporary(none())
    except ValueError:
        return float("nan")


def _runner(row: Entry, sizes: Sizes) -> Callable[[], None]:
    """Runs once and waits; compiled already."""
    step, arguments = layer_step(row.encoding, sizes)

    def run() -> None:
        jax.block_until_ready(step(arguments))

    run()
    return run
