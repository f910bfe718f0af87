"""Inkling's relative attention: each token says with a few numbers how it weighs distances."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.encodings.content.row_order import hidden_states
from pe_jax.encodings.part import Context, Logits, LogitTerms, Metadata, Params, Part, normal_init
from pe_jax.encodings.positions import offsets
from pe_jax.encodings.registry import register_encoding
from pe_jax.errors import check_at_least, check_positive
from pe_jax.shapes import Array


@register_encoding
def inkling(
    *,
    hidden_size: int,
    num_heads: int,
    extent: int = 1024,
    rank: int = 16,
    bidirectional: bool = True,
    clip: float | None = None,
    stddev: float = 0.02,
) -> Part:
    """Relative attention of Inkling and Inkling 2 (Thinking Machines 2026; `modeling_inkling` and
    `modeling_inkling2` of transformers).

        logit_ij += z_i·P_{j-i}   where |j - i| < extent, else 0
        z_i = W_h x_i                    Inkling
        z_i = clip₂(s_h ⊙ W_h x_i)       Inkling 2, `clip=8`

    A table of integer offsets P, shared by the heads, meets a projection of the hidden state of the
    query (`Context.x_q`, which a cache lacks): `rank` numbers a head, not divided by sqrt(d).

    Inkling is a decoder, and its table ends at offset 0: `inkling(bidirectional=False)+causal`. Its
    layers have an extent of 1,024, or of the window where they have one; each has its own W and P,
    `per_layer(inkling)`. Its factor of the length multiplies these terms too, unlike `+log_n`.

    Params: `{"projection": [D, H, rank], "table": [2 extent - 1, rank]}`, or `[extent, rank]` if
    not bidirectional, drawn from a normal of `stddev`. Offset j - i has row `extent - 1 + (j - i)`,
    the other way round from Inkling's `proj`, whose columns count the distance. With `clip` also
    `"scale": [H, rank]`, s, which starts at 1.

    Args:
      extent: of the table, in tokens to each side, the query's own among them.
      rank: numbers for each head and token, `d_rel` in Inkling's config.
      bidirectional: False adds nothing for keys to the right.
      clip: largest length of z; longer ones are shortened to it. None is Inkling.
    """
    check_at_least(1, extent=extent, rank=rank)
    check_positive(clip=clip)
    rows = 2 * extent - 1 if bidirectional else extent
    draw = normal_init(stddev, projection=(hidden_size, num_heads, rank), table=(rows, rank))

    def init(rng: jax.Array) -> Params:
        return draw(rng) if clip is None else {**draw(rng), "scale": jnp.ones((num_heads, rank))}

    def logits(params: Params, q: Array, k: Array, context: Context) -> LogitTerms:
        x = hidden_states(context, "inkling", hidden_size, "q")
        i, j = context.rows()
        if not jnp.issubdtype(dtype := jnp.result_type(i, j), jnp.integer):
            raise ValueError(f"inkling needs integer offsets for its table, got {dtype}.")
        weights = jnp.einsum("bqD,Dhr->bqhr", x, params["projection"])
        if clip is not None:  # Up to the 1e-6 of transformers.
            weights *= params["scale"]
            squares = jnp.sum(weights**2, axis=-1, keepdims=True)
            length = jnp.sqrt(jnp.maximum(squares, 1e-30)) + 1e-6  # The root has no slope at 0.
            weights *= jnp.minimum(clip / length, 1.0)
        return LogitTerms(term, (i, weights), j, params["table"])

    def term(query_arrays: tuple, j: Array, table: Array, mask: Array | None) -> Logits:
        i, weights = query_arrays
        by_row = jnp.einsum("bqhr,mr->bhqm", weights, table)
        row = jnp.asarray(offsets(i, j))[:, None] + (extent - 1)
        taken = jnp.take_along_axis(by_row, row.clip(0, rows - 1), axis=-1)
        return jnp.where((row >= 0) & (row < rows), taken, 0.0)

    return Part(
        init=init,
        logits=logits,
        metadata=Metadata(
            formula=f"{'clip₂(s ⊙ W x_i)' if clip else '(W x_i)'}·P_m, P free",
            source="Thinking Machines 2026 (Inkling), code",
            parameters=f"D·H·rank + {'(2·extent − 1)' if bidirectional else 'extent'}·rank"
            + (" + H·rank" if clip else ""),
            invariant=True,
            monotone=False,  # Beyond the extent.
            symmetric=None if bidirectional else False,
        ),
    )
