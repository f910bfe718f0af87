"""Order sensitivity: how far the hidden states of a text move when its words are shuffled.

Shapes: K kinds of shuffle, C = K + 1 with the text as it is, N texts, L tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.properties.arithmetic import ratio
from pe_jax.properties.compiled import compiled
from pe_jax.properties.estimates import in_batches, state_change
from pe_jax.properties.shuffling import shuffled_order

SHUFFLES = ("words", "neighbours", "sentences")  # The K kinds, in this order.


class OrderSensitivity(Record, pytree=True):
    """Changes of hidden states by kind of shuffle, means over the texts that it changes; NaN where
    it changes none.

    Attributes:
      pooled: 1 - cosine of the mean states of a text and of its shuffle.
      token: `state_change` of the text's tokens, each followed to its new place.
      pooled_r2, token_r2: 1 - ‖Δ - Δ′‖² / ‖Δ′‖², with Δ the change of a mean state or of a token's
        state and Δ′ the teacher's: 0 is as far from it as no change. None without a teacher.
    """

    pooled: Float[jax.Array, " K"]
    token: Float[jax.Array, " K"]
    pooled_r2: Float[jax.Array, " K"] | None = None
    token_r2: Float[jax.Array, " K"] | None = None


def shuffled_orders(
    begins: Bool[np.ndarray, "2 N _"], *, ends: tuple[int, int] = (0, 0), seed: int = 0
) -> Int[np.ndarray, "K N L"]:
    """Return the `shuffled_order` of each text by kind of shuffle: all words, neighbouring words in
    pairs, sentences.

    Args:
      begins: where words and where sentences begin, without special tokens.
      ends: the numbers of special tokens before and after a text, which stay in place.
    """
    before, after = ends
    words, sentences = begins
    texts, tokens = words.shape
    length = before + tokens + after
    orders = np.tile(np.arange(length), (len(SHUFFLES), texts, 1))
    inside = orders[..., before : length - after]  # A view.
    for number in range(texts):
        rng = np.random.default_rng([seed, number])
        inside[0, number] = shuffled_order(words[number], rng)
        inside[1, number] = shuffled_order(words[number])
        inside[2, number] = shuffled_order(sentences[number], rng)
    inside += before
    return orders


@compiled("states", "batch")
def states_by_order(
    states: Callable[[PyTree, Int[Array, "B L"]], Float[Array, "B L D"]],
    params: PyTree,
    tokens: Int[Array, "N L"],
    orders: Int[Array, "K N L"],
    *,
    batch: int = 16,
) -> Float[jax.Array, "C N L D"]:
    """Return `states(params, tokens)` of the texts as they are and of each of their shuffles, all
    in the order of the tokens of the text.

    Args:
      states: a pure function, a static argument of jit.
      params: of `states`.
      tokens: ids of the tokens of the texts.
      orders: of `shuffled_orders`.
      batch: texts at a time.
    """
    shuffles = jnp.take_along_axis(tokens[None], orders, -1)
    rows = jnp.concatenate([tokens[None], shuffles])
    flat_rows = rows.reshape(-1, rows.shape[-1])
    flat_states = in_batches(lambda block: states(params, block), flat_rows, batch)
    by_order = flat_states.reshape(*rows.shape, -1)
    places = jnp.argsort(orders, -1)[..., None]
    in_text_order = jnp.take_along_axis(by_order[1:], places, -2)
    return jnp.concatenate([by_order[:1], in_text_order])


@compiled()
def order_sensitivity(
    states: Float[Array, "C N L D"],
    orders: Int[Array, "K N L"],
    teacher: Float[Array, "C N L D"] | None = None,
) -> OrderSensitivity:
    """Return how far shuffles of texts move their states, and how well that imitates a teacher.

    Args:
      states: of `states_by_order`.
      orders: of `shuffled_orders`.
      teacher: the states of another model, of the same texts and shuffles.
    """
    is_shuffled = (orders != jnp.arange(orders.shape[-1])).any(-1)

    def mean(by_text: Float[Array, "K N"]) -> Float[Array, " K"]:
        return jnp.where(is_shuffled, by_text, 0).sum(-1) / is_shuffled.sum(-1)

    pooled = states.mean(-2)
    unit = ratio(pooled, jnp.linalg.norm(pooled, axis=-1, keepdims=True), 0.0)
    # 1 - u·v = |u - v|² / 2 for unit vectors, without the rounding errors of 1.
    distance = ((unit[1:] - unit[:1]) ** 2).sum(-1) / 2
    text = jnp.broadcast_to(states[:1], states[1:].shape)
    sensitivity = OrderSensitivity(
        pooled=mean(distance), token=mean(state_change(text, states[1:]))
    )
    if teacher is None:
        return sensitivity
    return sensitivity.replace(
        pooled_r2=_r2_of_changes(pooled, teacher.mean(-2)),
        token_r2=_r2_of_changes(states, teacher),
    )


def _r2_of_changes(
    student: Float[Array, "C *T D"], teacher: Float[Array, "C *T D"]
) -> Float[Array, " K"]:
    student_change = student[1:] - student[:1]
    teacher_change = teacher[1:] - teacher[:1]
    axes = tuple(range(1, teacher.ndim))
    missed = ((student_change - teacher_change) ** 2).sum(axes)
    return 1 - ratio(missed, (teacher_change**2).sum(axes), jnp.nan)
