"""The formula of an encoding for one pair of query and key, and attention built from it in float64.

A reference is written as its paper writes it, independently of the encoding's own code. The suite
maps it over all pairs, masks, applies the softmax, and compares outputs and all gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings.part import Params


class Pair(Record, pytree=True):
    """One query and one key of one head, and the row of tokens they are in; all of it float64.

    Indices and positions are traced: select with `jnp.where` and masks over a row rather than with
    Python's `if` and slices of a length that depends on them.

    Attributes:
      q, k, v: vectors of the query, the key and the value, `[d]`, `[d]`, `[f]`, unscaled and before
        any map of the encoding.
      i, j: positions of query and key, real numbers (an index into a table: `i.astype(int)`), or
        `[A]` for an encoding of A axes.
      head, heads: this head, an integer from 0, and how many there are.
      row_q, row_k: all queries `[Lq, H, d]` and keys `[Lk, H, d]` of the row.
      x_q, x_k: hidden states `[Lq, D]`, `[Lk, D]` that queries and keys were projected from.
      at_q, at_k: indices of query and key in their rows.
      positions_q, positions_k: of the rows, `[Lq]`, `[Lk]`, or `[.., A]`.
      w_q, w_k: the layer's projections `[D, H, d]` of hidden states to queries and keys.
      mask: `[Lk]`, True for the keys that the mask lets this query attend to.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    i: jax.Array
    j: jax.Array
    head: jax.Array
    heads: int
    row_q: jax.Array
    row_k: jax.Array
    x_q: jax.Array
    x_k: jax.Array
    at_q: jax.Array
    at_k: jax.Array
    positions_q: jax.Array
    positions_k: jax.Array
    w_q: jax.Array
    w_k: jax.Array
    mask: jax.Array


def content(params: Params, p: Pair) -> jax.Array:
    """The logit without any position: q·k / sqrt(d)."""
    return p.q @ p.k / np.sqrt(p.q.shape[-1])


def value(params: Params, p: Pair) -> jax.Array:
    """The value without any position."""
    return p.v


class Reference(Record):
    """An encoding as a formula for one pair; what it leaves alone keeps its default.

    `params` are the encoding's own, `{"slopes": ...}`, where it has one part, and nested by name,
    `{"rope": {...}, "alibi": {...}}`, where it has several.

    Attributes:
      score: `(params, Pair) ->` the logit that enters the softmax, scaled; -inf forbids the key.
      value: `(params, Pair) -> [f]`, what the weight a_ij multiplies, as it is seen after the hook
        `map_output` of the encoding.
      embed: `(params, x [D], position, token) -> [D]`, what the encoding makes of the embedding of
        one token.
      embed_row: `(params, x [L, D], positions [L]) -> [L, D]`, the same of a whole row, for an
        encoding that looks at neighbours.
      positions: what the formulas above see instead of a row's positions `[L]`, or `[L, A]`.
      sink: `(params, head) ->` a logit in the softmax's denominator; -inf is none.
    """

    score: Callable[[Params, Pair], jax.Array] = content
    value: Callable[[Params, Pair], jax.Array] = value
    embed: Callable[[Params, jax.Array, jax.Array, jax.Array], jax.Array] = (
        lambda params, x, position, token: x
    )
    embed_row: Callable[[Params, jax.Array, jax.Array], jax.Array] = (
        lambda params, x, positions: x
    )
    positions: Callable[[jax.Array], jax.Array] = lambda positions: positions
    sink: Callable[[Params, jax.Array], ArrayLike] = lambda params, head: -np.inf


def joined(references: Mapping[str, Reference]) -> Reference:
    """The reference of encodings joined with `+`, from those of its parts by key: what each adds to
    logits and values adds up, embeddings follow one another.

    Right where at most one part maps queries, keys or values, and none changes the temperature or
    the positions.
    """

    def score(params: Params, p: Pair) -> jax.Array:
        plain = content({}, p)
        added: ArrayLike = 0.0
        for key, part in references.items():
            added = added + (part.score(params.get(key, {}), p) - plain)
        return plain + added

    def of_value(params: Params, p: Pair) -> jax.Array:
        added: ArrayLike = 0.0
        for key, part in references.items():
            added = added + (part.value(params.get(key, {}), p) - p.v)
        return p.v + added

    def embed(
        params: Params, x: jax.Array, position: jax.Array, token: jax.Array
    ) -> jax.Array:
        for key, part in references.items():
            x = part.embed(params.get(key, {}), x, position, token)
        return x

    return Reference(score=score, value=of_value, embed=embed)


class Layer(NamedTuple):
    """Everything a layer of attention over some tokens is computed from, but positions and mask.

    `q`, `k` and `v` are added to what is projected: their gradients are those of queries, keys and
    values. D = H·d.
    """

    x: Float[Array, "B L D"]
    q: Float[Array, "B L H d"]
    k: Float[Array, "B L H d"]
    v: Float[Array, "B L H d"]
    w_q: Float[Array, "D H d"]
    w_k: Float[Array, "D H d"]
    w_v: Float[Array, "D H d"]
    params: Params


def attend(
    reference: Reference,
    layer: Layer,
    tokens: Int[Array, "B L"],
    positions: Float[Array, "B L *A"],
    mask: Bool[Array, "B 1 L L"],
) -> Float[Array, "B L H d"]:
    """The layer's output, pair by pair."""
    rows = jax.vmap(lambda *row: _row(reference, layer, *row))
    return rows(layer.x, layer.q, layer.k, layer.v, tokens, positions, mask[:, 0])


def _row(reference, layer, x, q, k, v, tokens, positions, mask):
    """One row of tokens: x [L, D]; q, k, v [L, H, d]."""
    params = layer.params
    positions = reference.positions(positions)
    length, heads, _ = q.shape
    x = jax.vmap(lambda *token: reference.embed(params, *token))(x, positions, tokens)
    x = reference.embed_row(params, x, positions)
    q = q + jnp.einsum("lD,Dhd->lhd", x, layer.w_q)
    k = k + jnp.einsum("lD,Dhd->lhd", x, layer.w_k)
    v = v + jnp.einsum("lD,Dhd->lhd", x, layer.w_v)

    def query(head, at_q, mask_q, q_i, position_q, key_arrays):
        def key(at_k, k_j, v_j, position_k):
            pair = Pair(
                q=q_i,
                k=k_j,
                v=v_j,
                i=position_q,
                j=position_k,
                head=head,
                heads=heads,
                row_q=q,
                row_k=k,
                x_q=x,
                x_k=x,
                at_q=at_q,
                at_k=at_k,
                positions_q=positions,
                positions_k=positions,
                w_q=layer.w_q,
                w_k=layer.w_k,
                mask=mask_q,
            )
            return reference.score(params, pair), reference.value(params, pair)

        scores, values = jax.vmap(key)(*key_arrays)
        allowed = mask_q & (scores > -jnp.inf)
        # A row without any key gives zeros; both selections keep its gradient from being NaN.
        finite_scores = jnp.where(allowed, scores, 0.0)
        largest = finite_scores.max()
        raised = jnp.where(allowed, jnp.exp(finite_scores - largest), 0.0)
        sink = jnp.exp(reference.sink(params, head) - largest)
        total = raised.sum() + sink
        return raised @ values / jnp.where(allowed.any(), total, 1.0)

    # Mapped over arrays: to index them would compile slowly, above all for gradients.
    index = jnp.arange(length)

    def of_head(head, q_h, k_h, v_h):
        queries = jax.vmap(query, (None, 0, 0, 0, 0, None))
        key_arrays = (index, k_h, v_h, positions)
        return queries(head, index, mask, q_h, positions, key_arrays)

    return jax.vmap(of_head, (0, 1, 1, 1), 1)(jnp.arange(heads), q, k, v)
