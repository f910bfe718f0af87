"""What a change inside of a model does to its masked-LM loss, text by text.

Shapes: N texts, B of them in a batch, L tokens each, C changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pe_jax import properties
from pe_jax.properties import Estimate
from pe_jax.reports.property_report.texts import Texts
from pe_jax.shapes import Array, Float, Int
from pe_jax.training.pytrees import Params

_TOKENS = 1024  # Of a batch: bounds the memory of logits over the vocabulary.

# `loss(params, change, tokens [B, L], targets [B, L]) -> [B, L]`, nats.
ChangedLoss = Callable[[Params, PyTree, Int[Array, "B L"], Int[Array, "B L"]], jax.Array]


@partial(jax.jit, static_argnames="f")
def by_text(f: Callable[..., PyTree], texts: PyTree, *args: PyTree) -> PyTree:
    """`f(*args, texts [B, L]) -> [B, ...]` of all texts `[N, L]`, in memory of one batch.

    Args:
      f: pure; the same object compiles once.
    """
    length = jax.tree.leaves(texts)[0].shape[1]
    return properties.in_batches(partial(f, *args), texts, max(1, _TOKENS // length))


def changed_losses(
    loss: ChangedLoss, params: Params, changes: PyTree, texts: Texts
) -> Float[np.ndarray, "C N"]:
    """The mean loss of the masked tokens of each text, under each change.

    Args:
      loss: pure.
      changes: a tree of arrays `[C, ...]`.
      texts: with masked tokens.
    """
    assert texts.masked is not None
    inputs = texts.masked, texts.tokens, texts.where
    return np.asarray(by_text(partial(_under_all, loss), inputs, params, changes)).T


def _under_all(
    loss: ChangedLoss, params: Params, changes: PyTree, inputs: tuple[Array, Array, Array]
) -> Float[Array, "B C"]:
    tokens, targets, where = inputs

    def under(change: PyTree) -> jax.Array:
        return jnp.where(where, loss(params, change, tokens, targets), 0).sum(1) / where.sum(1)

    return jax.lax.map(under, changes).T


def differences(losses: Float[np.ndarray, "C N"]) -> Estimate:
    """What each change but the first, which is none, adds to the loss: `[C - 1]`. What texts differ
    in cancels: all changes have the same texts with the same masks."""
    return properties.over_texts((losses[1:] - losses[:1]).T)
