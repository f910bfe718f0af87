"""What a change inside of a model does to its masked-LM loss, text by text.

Shapes: N texts, L tokens each, C changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pe_jax.reports.property_report.texts import Texts
from pe_jax.shapes import Array, Float, Int
from pe_jax.training.pytrees import Params

_TOKENS = 1024  # Of a batch: bounds the memory of logits over the vocabulary.

# `loss(params, change, tokens [B, L], targets [B, L]) -> [B, L]`, nats.
ChangedLoss = Callable[[Params, PyTree, Int[Array, "B L"], Int[Array, "B L"]], jax.Array]


class Change(NamedTuple):
    """The loss less that of the unchanged model, nats: the mean over texts, and its standard error.

    The same texts with the same masks: what texts differ in cancels.
    """

    mean: float
    error: float


@partial(jax.jit, static_argnames="f")
def over_texts(f: Callable[..., PyTree], texts: PyTree, *args: PyTree) -> PyTree:
    """`f(*args, texts [B, ...]) -> [B, ...]` of all texts `[N, ...]`, in memory of one batch.

    Args:
      f: pure; the same object compiles once.
      texts: arrays `[N, L]`.
    """
    count, length = jax.tree.leaves(texts)[0].shape
    batch = max(1, min(count, _TOKENS // length))
    steps = -(-count // batch)

    def batched(x: Array) -> jax.Array:
        padded = jnp.pad(x, ((0, steps * batch - count), (0, 0)), mode="edge")
        return padded.reshape(steps, batch, length)

    found = jax.lax.map(lambda some: f(*args, some), jax.tree.map(batched, texts))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], found)


def changed_losses(
    loss: ChangedLoss, params: Params, changes: PyTree, texts: Texts
) -> Float[np.ndarray, "C N"]:
    """The mean loss of the masked tokens of each text, for each change.

    Args:
      loss: pure.
      changes: a tree of arrays `[C, ...]`.
      texts: with masked tokens.
    """
    assert texts.masked is not None
    each = over_texts(
        partial(_all_changes, loss), (texts.masked, texts.tokens, texts.where), params, changes
    )
    return np.asarray(each).T


def _all_changes(loss: ChangedLoss, params: Params, changes: PyTree, texts: tuple) -> jax.Array:
    """The mean loss of each text under each change, `[B, C]`."""
    tokens, targets, where = texts

    def one(change: PyTree) -> jax.Array:
        return jnp.where(where, loss(params, change, tokens, targets), 0).sum(1) / where.sum(1)

    return jax.lax.map(one, changes).T


def compared(losses: Float[np.ndarray, "C N"]) -> list[Change]:
    """Of each change but the first, which is none."""
    differences = losses[1:].astype(np.float64) - losses[:1]
    errors = differences.std(1, ddof=1) / np.sqrt(differences.shape[1])
    return [Change(float(m), float(e)) for m, e in zip(differences.mean(1), errors, strict=True)]
