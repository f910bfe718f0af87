"""Cross-entropy with its backward pass written out."""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp

_Saved: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]  # Logits, labels, log of the sum.


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log p(label) in nats, and 1.0 where no logit is larger than the label's."""
    # Rows in one axis: on TPUs several would have another layout than the product they come from.
    loss, right = _of_rows(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return loss.reshape(labels.shape), right.reshape(labels.shape)


@jax.custom_vjp
def _of_rows(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _forward(logits, labels)[0]


def _forward(logits: jax.Array, labels: jax.Array) -> tuple[tuple[jax.Array, jax.Array], _Saved]:
    largest = logits.max(-1)
    log_total = largest + jnp.log(jnp.exp(logits - largest[..., None]).sum(-1))
    of_label = jax.lax.platform_dependent(logits, labels, cpu=_taken, default=_picked)
    # Not by argmax, a slow further pass over the logits; the two differ only where logits tie.
    right = (of_label == largest).astype(jnp.float32)
    return (log_total - of_label, right), (logits, labels, log_total)


def _taken(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def _picked(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The same within the pass that sums: a gather is slow on accelerators."""
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.where(classes == labels[..., None], logits, 0.0).sum(-1)


def _backward(saved: _Saved, g: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
    # One pass that writes softmax minus one-hot; the gradient of a gather would be a scatter.
    logits, labels, log_total = saved
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    softmax = jnp.exp(logits - log_total[..., None])
    return (softmax - (classes == labels[..., None])) * g[0][..., None], None


_of_rows.defvjp(_forward, _backward)
