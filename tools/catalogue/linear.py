"""Whether memory of attention with an encoding is linear in the length, from traced programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from catalogue.entries import SIZES, Entry, Sizes
from pe_jax.attention import attention
from pe_jax.attention.implementations import UnsupportedError
from pe_jax.encodings import Context, Positions
from pe_jax.properties.encoding_measures import on_all_axes


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
