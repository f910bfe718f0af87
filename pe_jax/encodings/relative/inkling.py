"""Inkling's relative attention: each token says with a few numbers how it weighs distances.

Thinking Machines 2026; `modeling_inkling` and `modeling_inkling2` of transformers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least, check_positive
from pe_jax.common.shapes import Array
from pe_jax.encodings.content.row_order import hidden_states
from pe_jax.encodings.part import (
    HookContext,
    Logits,
    LogitTerms,
    Metadata,
    OffsetProducts,
    Params,
    Part,
    normal_init,
)
from pe_jax.encodings.positions import offsets
from pe_jax.encodings.registry import register_encoding


@register_encoding
def inkling(
    *,
    hidden_size: int,
    num_heads: int,
    max_distance: int = 1023,
    rank: int = 16,
    bidirectional: bool = True,
    max_norm: float | None = None,
    stddev: float = 0.02,
) -> Part:
    """Relative attention of Inkling and Inkling 2 (Thinking Machines 2026; `modeling_inkling` and
    `modeling_inkling2` of transformers).

        logit_ij += z_i·P_{j-i}   where |j - i| <= max_distance, else 0
        z_i = W_h x_i                    Inkling
        z_i = clip₂(s_h ⊙ W_h x_i)       Inkling 2, `max_norm=8`

    A table of integer offsets P, shared by the heads, meets a projection of the hidden state of the
    query (`Context.x_q`, which a cache lacks): `rank` numbers a head, not divided by sqrt(d).

    Inkling is a decoder, and its table ends at offset 0: `inkling(bidirectional=False)+causal`. Its
    layers reach 1,024 tokens, the query's own among them (`rel_extent`, here `max_distance=1023`),
    or as far as their window; each has its own W and P, `per_layer(inkling)`. Its factor of the
    length multiplies these terms too, unlike `+log_n`.

    Params: `{"projection": [D, H, rank], "table": [2 max_distance + 1, rank]}`, or
    `[max_distance + 1, rank]` if not bidirectional, drawn from a normal of `stddev`. Offset j - i
    has row `max_distance + (j - i)`, the other way round from Inkling's `proj`, whose columns count
    the distance. With `max_norm` also `"scale": [H, rank]`, s, which starts at 1.

    Args:
      max_distance: largest distance of a key that has a row in the table.
      rank: numbers for each head and token, `d_rel` in Inkling's config.
      bidirectional: False adds nothing for keys to the right.
      max_norm: largest length of z; longer ones are shortened to it. None is Inkling.

    Raises:
      ValueError: for a negative `max_distance`, a rank below 1, or a `max_norm` that is not
        positive; in attention, without `Context.x_q`, or if that has another hidden size, and for
        positions that are not integers.
    """
    check_at_least(0, max_distance=max_distance)
    check_at_least(1, rank=rank)
    check_positive(max_norm=max_norm)
    rows = max_distance + 1
    if bidirectional:
        rows += max_distance
    draw = normal_init(
        stddev, projection=(hidden_size, num_heads, rank), table=(rows, rank)
    )

    def init(rng: jax.Array) -> Params:
        params = draw(rng)
        if max_norm is not None:
            params["scale"] = jnp.ones((num_heads, rank))
        return params

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        x = hidden_states(context, "inkling", hidden_size, "q")
        i, j = context.rows()
        dtype = jnp.result_type(i, j)
        if not jnp.issubdtype(dtype, jnp.integer):
            raise ValueError(
                f"inkling needs integer offsets for its table, got {dtype}."
            )
        z = jnp.einsum("bqD,Dhr->bqhr", x, params["projection"])
        if max_norm is not None:
            z *= params["scale"]
            squares = jnp.sum(z**2, axis=-1, keepdims=True)
            # The root has no derivative at 0. The 1e-6 is that of transformers.
            length = jnp.sqrt(jnp.maximum(squares, 1e-30)) + 1e-6
            z *= jnp.minimum(max_norm / length, 1.0)
        return LogitTerms(
            function=term,
            query_arrays=(i, z),
            key_arrays=j,
            shared=params["table"],
            products=products(params["table"], z, context),
        )

    def products(table: Array, z: Array, context: HookContext) -> OffsetProducts | None:
        if context.shift is None:
            return None
        # A row of zeros, of all offsets beyond, at either end.
        to_right = 1 if bidirectional else max_distance + 1
        padded = jnp.pad(table, [(1, to_right), (0, 0)])
        return OffsetProducts(vectors=z, table=padded, shift=context.shift)

    def term(query_arrays: tuple, j: Array, table: Array, mask: Array | None) -> Logits:
        i, z = query_arrays
        by_row = jnp.einsum("bqhr,mr->bhqm", z, table)
        row = jnp.asarray(offsets(i, j))[:, None] + max_distance
        taken = jnp.take_along_axis(by_row, row.clip(0, rows - 1), axis=-1)
        return jnp.where((row >= 0) & (row < rows), taken, 0.0)

    formula = "(W x_i)·P_m, P free"
    num_rows = "2·max_distance + 1" if bidirectional else "max_distance + 1"
    parameters = f"D·H·rank + ({num_rows})·rank"
    if max_norm is not None:
        formula = "clip₂(s ⊙ W x_i)·P_m, P free"
        parameters += " + H·rank"
    return Part(
        init=init,
        logits=logits,
        metadata=Metadata(
            formula=formula,
            source="Thinking Machines 2026 (Inkling), code",
            parameters=parameters,
            invariant=True,
            monotone=False,  # Beyond the largest distance.
            symmetric=None if bidirectional else False,
        ),
    )
