"""Measured costs of attention with an encoding: time, memory, and the formats it exports to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from catalogue.entries import SIZES, Entry, Sizes
from pe_jax.attention import attention
from pe_jax.attention.implementations import UnsupportedError
from pe_jax.encodings import Context, PositionEncoding, Positions, embed, none
from pe_jax.interop.bert_export import position_table
from pe_jax.interop.programs import model_function, symbolic_inputs
from pe_jax.models import Bert, BertConfig
from pe_jax.properties.encoding_measures import on_all_axes
from pe_jax.testing.subject import SIZES as SUITE_SIZES

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


def linear(row: Entry, sizes: Sizes = SIZES) -> tuple[bool, bool]:
    """Return whether no array of a forward and backward pass in blocks has two axes of the length,
    at ranges and at positions that start again with each document of a row."""
    length = sizes["max_length"] - 3  # Unlike all other sizes.
    index = np.arange(length, dtype=np.int32)
    ranges: Positions = (
        range(length) if row.encoding.axes == 1 else on_all_axes(index, row.encoding)
    )
    packed = jnp.asarray(on_all_axes(index % (length // 2), row.encoding))[None]
    return _linear(row, ranges, length, sizes), _linear(row, packed, length, sizes)


def _linear(row: Entry, positions: Positions, length: int, sizes: Sizes) -> bool:
    encoding, width = row.encoding.in_attention, sizes["hidden_size"]
    heads = sizes["num_heads"], sizes["head_size"]

    def loss(arguments: Mapping[str, Any]) -> jax.Array:
        x, (q, k, v) = arguments["x"], arguments["qkv"]
        project = lambda x: jnp.einsum("...D,Dhd->...hd", x, arguments["w"])
        context = Context(
            positions_q=positions,
            positions_k=positions,
            x_q=x,
            x_k=x,
            projections=(project, project),
        )
        return attention(
            q, k, v, encoding, arguments["params"], context, implementation="fused"
        ).sum()

    if row.encoding.parts and not encoding.parts:
        return True  # Acts at the input alone.
    struct = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    arguments = {
        "params": jax.eval_shape(encoding.init, jax.random.key(0)),
        "x": struct(1, length, width),
        "qkv": (struct(1, length, *heads),) * 3,
        "w": struct(width, *heads),
    }
    try:
        jaxpr = jax.make_jaxpr(jax.grad(loss))(arguments).jaxpr
    except UnsupportedError:
        return False
    # Nothing but the hidden states is as wide as the input is long.
    long = (
        [n for n in shape if n >= length and n != width] for shape in _shapes(jaxpr)
    )
    return not any(len(axes) > 1 for axes in long)


def _shapes(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """The shapes of all arrays that a program computes, those of loops and calls included."""
    for equation in jaxpr.eqns:
        yield from (
            out.aval.shape for out in equation.outvars if hasattr(out.aval, "shape")
        )
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _shapes(inner)


def exports(row: Entry) -> list[str]:
    """Return names of formats, for an encoder; nothing is written.

    Args:
      row: of the sizes of the suite.
    """
    config = BertConfig(
        vocab_size=8, num_layers=1, intermediate_size=8, hidden_size=SUITE_SIZES["hidden_size"],
        num_heads=SUITE_SIZES["num_heads"], max_length=SUITE_SIZES["max_length"], position=row.name,
    )  # fmt: skip
    if row.encoding.axes > 1:
        return []
    params = {
        "bert": Bert(config).init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))[
            "params"
        ]
    }
    found = []
    try:
        jax.eval_shape(model_function(config, params)[0], *symbolic_inputs(config))
        found.append("ONNX, StableHLO")
    except ValueError as error:
        if "known at compile time" not in str(error):
            raise
    try:
        position_table(
            config, jax.tree.map(np.asarray, params["bert"].get("position", {}))
        )
        found.append("BERT")
    except ValueError:
        found += ["RoFormer"] * (row.name == "rope")
    return found
