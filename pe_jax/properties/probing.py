"""Proximity matrices of any encoding, measured on models: logits as a function of positions.

**Identical words** (paper, section 3.1 and equation 5): attention among copies of one token.

**Offset kernel**: Φ[i, j] is the mean over random tokens a and b of the logit of a query from a at
position i and a key from b at position j, by head. No position vectors are needed, so it is a
proximity matrix of every encoding. Identical word probing is the case a = b.

A sample is an input `[T, L]`: T texts of L tokens, where the queries of each text meet the keys of
the next, and those of the last the keys of the first. So one text meets itself, as in a model:

- T = 1, copies of one word: a term of equation 5. Random tokens: what a model computes on them. The
  tokens of different pairs of positions differ then, which is noise of the order of `error`.
- T = 2, copies of one word and copies of another: every pair of positions has the same two words,
  so attention that depends on offsets alone gives an exactly invariant Φ, and a bias that decreases
  with distance an exactly monotone one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from pe_jax.common.axis_blocks import cut_axis
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.properties.compiled import compiled
from pe_jax.properties.estimates import Estimate
from pe_jax.properties.metrics import by_offset

Attend = Callable[[PyTree, Int[Array, "B T L"]], jax.Array]  # -> [B, *S, L, L]


@compiled("attend", "batch")
def offset_kernel(
    attend: Attend,
    params: PyTree,
    inputs: Int[Array, "N T L"],
    *,
    where: Bool[Array, "*S L L"] | None = None,
    batch: int = 8,
) -> Estimate:
    """Return the mean Φ of `attend` over N random inputs and its standard error, in memory of one
    batch.

    Args:
      attend: `attend(params, inputs [B, T, L]) -> [B, *S, L, L]`, the mean over the T texts of the
        logits by head, or by layer and head; any pure function. It is a static argument of jit:
        pass the same object again.
      inputs: tokens, see above; `random_words` and `random_texts` draw them.
      where: entries that exist, where queries do not attend to all keys; it broadcasts to `*S`.
      batch: number of inputs per step of the scan.

    Returns:
      `[*S, L, L]` each, NaN where no logits exist. The error is that of Φ less its level, the mean
      of a sample's entries: neither the softmax nor a metric depends on the level. It is NaN for a
      single sample.
    """
    count, *shape = inputs.shape
    one_input = jax.ShapeDtypeStruct((1, *shape), inputs.dtype)
    _, *shape = jax.eval_shape(attend, params, one_input).shape
    present = jnp.broadcast_to(True if where is None else where, shape)
    entries = jnp.maximum(present.sum((-2, -1), keepdims=True), 1)

    def add(samples, block):
        tokens, is_input = block
        logits = attend(params, tokens).astype(jnp.float32)
        logits = jnp.where(present, logits, 0)
        levels = logits.sum((-2, -1), keepdims=True) / entries
        weights = is_input.astype(jnp.float32).reshape(-1, *[1] * len(shape))
        return _add_samples(samples, levels, logits - levels, weights), None

    zeros = jnp.zeros(shape, jnp.float32)
    start = _Samples(
        number=jnp.float32(0), level=zeros[..., :1, :1], mean=zeros, squares=zeros
    )
    # The last block is filled up with inputs that do not count.
    blocks = cut_axis(inputs, batch, 0, "edge")
    are_inputs = cut_axis(jnp.ones(count, bool), batch, 0)
    samples, _ = jax.lax.scan(add, start, (blocks, are_inputs))
    variance = samples.squares / (count - 1) if count > 1 else jnp.full(shape, jnp.nan)
    error = jnp.sqrt(variance / count)
    return Estimate(
        mean=jnp.where(present, samples.level + samples.mean, jnp.nan),
        error=jnp.where(present, error, jnp.nan),
    )


class _Samples(NamedTuple):
    """Sums over samples: their number, mean level, mean, and squared deviations."""

    number: Array
    level: Array
    mean: Array
    squares: Array


def _add_samples(
    samples: _Samples, levels: Array, centered: Array, weights: Array
) -> _Samples:
    """Add a batch of samples, by means: a sum of squares would cancel in float32."""
    before, level, mean, squares = samples
    new = weights.sum()
    batch_mean = (weights * centered).sum(0) / new
    batch_squares = (weights * (centered - batch_mean) ** 2).sum(0)
    share = new / (before + new)
    change = batch_mean - mean
    squares += batch_squares + change**2 * before * share
    batch_level = (weights * levels).sum(0) / new
    level += (batch_level - level) * share
    return _Samples(
        number=before + new, level=level, mean=mean + change * share, squares=squares
    )


@compiled()
def offset_curve(
    phi: Float[Array, "*S L L"], *, where: Bool[Array, "L L"] | None = None
) -> tuple[Float[jax.Array, "*S M"], Float[jax.Array, "*S M"]]:
    """Return the mean and the spread of each diagonal of Φ: Φ as a function of the offset alone.

    Args:
      where: only these entries count; default all.

    Returns:
      by the offset m = j - i from -(L - 1) to L - 1, NaN where no entry is: the mean of Φ[i, i + m]
      over i, and their standard deviation, 0 where Φ is translation invariant.
    """
    values, present = by_offset(phi, where)  # [*S, L, 2L - 1]
    counts = jnp.where(present.any(-2), present.sum(-2), jnp.nan)
    mean = values.sum(-2) / counts
    deviations = jnp.where(present, values - mean[..., None, :], 0)
    variance = (deviations**2).sum(-2) / counts
    return mean, jnp.sqrt(variance)


def random_words(
    rng: jax.Array, words: Int[Array, " V"], *, count: int, length: int
) -> Int[jax.Array, "N 2 L"]:
    """Draw `count` random pairs of different words, each word in copies over a text of its own.

    Raises:
      ValueError: for fewer than two words.
    """
    size = len(words)
    if size < 2:
        raise ValueError(
            f"Pairs of different words need at least two words, got {size}."
        )
    first_rng, step_rng = jax.random.split(rng)
    first = jax.random.randint(first_rng, (count,), 0, size)
    step = jax.random.randint(step_rng, (count,), 1, size)
    second = (first + step) % size
    pairs = jnp.asarray(words)[jnp.stack([first, second], axis=1)]
    return jnp.broadcast_to(pairs[..., None], (count, 2, length))


def random_texts(
    rng: jax.Array, words: Int[Array, " V"], *, count: int, length: int
) -> Int[jax.Array, "N 1 L"]:
    """Draw `count` texts of random words: a draw in all its rotations, then the next.

    In all rotations together each word is at each position once, and every offset pairs each word
    with one other: what words add by themselves cancels between positions, and the kernel's error,
    which takes samples for independent, is an upper bound. Words are different within a text where
    there are enough.
    """
    draws = -(-count // length)

    def draw(rng: jax.Array) -> jax.Array:
        return jax.random.choice(
            rng, jnp.asarray(words), (length,), replace=len(words) < length
        )

    texts = jax.vmap(draw)(jax.random.split(rng, draws))
    turns = (jnp.arange(length)[:, None] + jnp.arange(length)) % length
    return texts[:, turns].reshape(-1, 1, length)[:count]


@compiled("attend", "length", "batch")
def identical_words(
    attend: Callable[[PyTree, Int[Array, "B L"]], Float[Array, "B H L L"]],
    params: PyTree,
    words: Int[Array, " M"],
    *,
    length: int,
    batch: int = 8,
) -> Float[jax.Array, "H L L"]:
    """Return the mean over words of the attention among `length` copies of a word: Ā of equation 5.

    Args:
      attend: `attend(params, tokens) -> [B, H, L, L]`, a model's logits or weights in one layer;
        any pure function. It is a static argument of jit: pass the same object again.
      words: token ids, one input for each; the paper's figures need a few hundred.
      batch: number of words per step of the scan.
    """
    count = len(words)

    def add(total, block):
        ids, is_word = block
        tokens = jnp.broadcast_to(ids[:, None], (batch, length))
        attention = attend(params, tokens)
        return total + jnp.einsum("b,bhxy->hxy", is_word, attention), None

    one_batch = jax.ShapeDtypeStruct((batch, length), words.dtype)
    shape = jax.eval_shape(attend, params, one_batch).shape[1:]
    # The last block is filled up with words that do not count.
    blocks = cut_axis(words, batch, 0)
    are_words = cut_axis(jnp.ones(count, jnp.float32), batch, 0)
    start = jnp.zeros(shape, jnp.float32)
    total, _ = jax.lax.scan(add, start, (blocks, are_words))
    return total / count


@compiled()
def position_products(
    vectors: Float[Array, "L D"],
    query_kernel: Float[Array, "D H d"],
    key_kernel: Float[Array, "D H d"],
) -> Float[jax.Array, "H L L"]:
    """Return P·W_Q·W_Kᵀ·Pᵀ of each head: the position-position term (figure 7), without token
    embeddings, biases and LayerNorm."""
    q = jnp.einsum("xd,dhe->hxe", vectors, query_kernel)
    k = jnp.einsum("xd,dhe->hxe", vectors, key_kernel)
    return jnp.einsum("hxe,hye->hxy", q, k)
