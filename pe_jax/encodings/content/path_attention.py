"""PaTH: between key and query stand the reflections of all tokens in between.

Yang et al. 2025, "PaTH attention: position encoding via accumulating Householder transformations",
arXiv 2505.16381.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.dtypes import at_least_float32
from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.content import row_order
from pe_jax.encodings.part import (
    HookContext,
    Metadata,
    Params,
    Part,
    Traits,
    normal_init,
)
from pe_jax.encodings.registry import register_encoding


@register_encoding
def path_attention(
    *,
    hidden_size: int,
    head_size: int,
    num_heads: int,
    rank: int = 32,
    width: int = 3,
    stddev: float = 0.02,
) -> Part:
    """Position encoding by accumulating Householder transformations (PaTH: Yang et al. 2025, arXiv
    2505.16381, section 3), causal.

        logit_ij = s · q_iᵀ H_i H_{i-1} … H_{j+1} k_j,   H_t = I - β_t w_t w_tᵀ

    for each head. β_t = 2 σ(x_t·b + c) is in (0, 2), and

        w_t = y_t / sqrt(|y_t|² + 1e-6),   y_t = SiLU(Σ_n f_n (U V x_{t-n})),   n = 0 .. width-1

    The low-rank map U V, the convolution f and the 1e-6 are those of the authors' code
    (flash-linear-attention). The paper's w has length 1, as here where |y| is far above 1e-3: at
    the start |w| is about 0.5 for a hidden size of 32 and 0.98 for 256.

    With W the unit lower triangular matrix of β_l w_l·w_m, m < l, the logits of all pairs are q·k
    less (q·w) W^-1 (β w·k), each factor up to its diagonal (section 3.2). The authors compute that
    in blocks; this is the naive form, the whole row at once, in memory [B, H, Lk, Lk].

    **Causal only**: join it with `causal`, `path_attention+causal`. The paper's form with forget
    gates joins `fox` as well. Tokens are in the order of the row, and hidden states of all keys are
    needed: see `row_order`. The convolution starts again with each document.

    Params: `{"down": [D, rank], "up": [rank, H, d], "convolution": [width, H, d],
    "beta": {"kernel": [D, H], "bias": [H]}}`, drawn from a normal of `stddev`, the bias zeros. The
    last row of the convolution belongs to the token itself. The paper has them for each layer:
    `causal+per_layer(path_attention)`.

    Args:
      rank: of U V.
      width: of the convolution; 1 leaves the neighbours out.

    Raises:
      ValueError: for a rank or width below 1; in attention, without `Context.x_k`, or if that has
        another hidden size; for queries that are not among the keys, or a symbolic length.
    """
    check_at_least(1, rank=rank, width=width)
    draw = normal_init(
        stddev,
        down=(hidden_size, rank),
        up=(rank, num_heads, head_size),
        convolution=(width, num_heads, head_size),
        beta=(hidden_size, num_heads),
    )

    def init(rng: jax.Array) -> Params:
        params = draw(rng)
        params["beta"] = {"kernel": params["beta"], "bias": jnp.zeros(num_heads)}
        return params

    def reflections(
        params: Params, x: Float[Array, "B Lk D"], context: HookContext
    ) -> Float[Array, "B Lk H d"]:
        """The vectors w_t."""
        y = jnp.einsum("blr,rhd->blhd", x @ params["down"], params["up"])
        y = row_order.short_convolution(y, params["convolution"], context)
        y = jax.nn.silu(y)
        squares = jnp.sum(y**2, axis=-1, keepdims=True)
        return y * jax.lax.rsqrt(squares + 1e-6)

    def logits(
        params: Params, q: Array, k: Array, context: HookContext
    ) -> Float[Array, "B H Lq Lk"]:
        x = row_order.hidden_states(context, "path_attention", hidden_size)
        rows, known = row_order.rows_of_queries(context, q, k, "path_attention")
        gates = x @ params["beta"]["kernel"] + params["beta"]["bias"]  # [B, Lk, H]
        beta = row_order.without_padding(2 * jax.nn.sigmoid(gates), context)
        w = reflections(params, x, context)
        q = at_least_float32(q)
        k = at_least_float32(k)

        def after(y: Float[Array, "B Lk H d"]) -> Float[Array, "B H Lk Lk"]:
            """β_l w_l·y_m for all tokens m before l."""
            products = jnp.einsum("blhd,bmhd->bhlm", beta[..., None] * w, y)
            return jnp.tril(products, -1)

        # Attention adds q·k to this, which makes q·k - (q·w) W^-1 (β w·k) with W = I + between.
        between = after(w)
        with_keys = after(k)
        products = _inverse(between) @ with_keys
        passed = np.arange(k.shape[1]) <= rows[:, None, :, None]
        with_queries = jnp.einsum("bqhd,blhd->bhql", q, w)
        with_queries = jnp.where(passed, with_queries, 0.0)
        terms = -with_queries @ products
        return jnp.where(known[:, None, :, None], terms, jnp.nan)

    return Part(
        init=init,
        logits=logits,
        traits=Traits(
            causal_only="it multiplies the maps of the tokens from each key to the query, of which "
            "there are none to the right of the query",
            reads_hidden_states=True,
            ordered=True,
        ),
        metadata=Metadata(
            formula="q·(Π_t (I − β_t w_t w_tᵀ))·k, t from query to key, "
            "w = norm(SiLU(conv(U V x)))",
            source="Yang et al. 2025 (PaTH), 3",
            parameters="(D + H·d)·rank + width·H·d + (D + 1)·H",
            invariant=True,
            symmetric=False,
        ),
    )


def _inverse(below: Float[Array, "*B L L"]) -> Float[jax.Array, "*B L L"]:
    """The inverse of I + `below`, a strictly lower triangular matrix, from those of its blocks.

    [[A, 0], [C, B]]^-1 = [[A^-1, 0], [-B^-1 C A^-1, B^-1]], from blocks of one number on: products
    alone, which have derivatives of any order. (A triangular solve of this batch can block the
    threads of a CPU.)
    """
    length = below.shape[-1]
    padded_length = 1 << max(length - 1, 0).bit_length()  # A power of two.
    more = (0, padded_length - length)
    below = jnp.pad(below, [(0, 0)] * (below.ndim - 2) + [more, more])
    # [*B, blocks, size, size]: the inverses of the blocks on the diagonal, which are 1 at first.
    inverses = jnp.ones((*below.shape[:-1], 1, 1), below.dtype)
    size = 1
    while size < padded_length:
        a_inverse = inverses[..., 0::2, :, :]
        b_inverse = inverses[..., 1::2, :, :]
        starts = np.arange(0, padded_length, 2 * size)[:, None, None]
        rows = starts + np.arange(size, 2 * size)[:, None]
        columns = starts + np.arange(size)
        corner = -b_inverse @ below[..., rows, columns] @ a_inverse
        inverses = jnp.block(
            [[a_inverse, jnp.zeros_like(a_inverse)], [corner, b_inverse]]
        )
        size *= 2
    return inverses[..., 0, :length, :length]
