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
from pe_jax.encodings import Context, Positions, embed, none
from pe_jax.properties.encoding_measures import on_all_axes

ROWS = 1


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
    return {name: _cost(each) for name, each in ratios.items()}, 1e3 * statistics.median(base)


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


def _runner(row: Entry, sizes: Sizes) -> Callable[[], None]:
    """Runs once and waits; compiled already."""
    width, size, heads, length = sizes.values()
    encoding = row.encoding
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    qkv = tuple(normal(ROWS, length, heads, size) for _ in range(3))
    x, w = normal(ROWS, length, width), width**-0.5 * normal(width, heads, size)
    tokens = jnp.asarray(rng.integers(0, 1000, (ROWS, length)))
    at: Positions = range(length)
    if encoding.axes > 1:  # Such positions are never ranges.
        at = on_all_axes(np.arange(length), encoding)

    def loss(given: Mapping) -> jax.Array:
        embedded = embed(encoding, given["params"], given["x"], at, tokens=tokens)
        added = embedded.reshape(given["qkv"][0].shape)
        q, k, v = (one + added for one in given["qkv"])
        project = lambda x: jnp.einsum("...D,Dhd->...hd", x, given["w"])
        context = Context(at, at, embedded, embedded, (project, project))
        return (attention(q, k, v, encoding.in_attention, given["params"], context) ** 2).sum()

    params = jax.jit(encoding.init)(jax.random.key(0))
    given = {"params": params, "qkv": qkv, "x": x, "w": w}
    step = jax.jit(jax.value_and_grad(loss))

    def run() -> None:
        jax.block_until_ready(step(given))

    run()
    return run
