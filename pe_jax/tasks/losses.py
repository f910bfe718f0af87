"""Cross-entropy with its backward pass written out."""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp

_Saved: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]  # Logits, labels, log of the sum.


@jax.custom_vjp
def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log p(label) in nats, and 1.0 where no logit is larger than the label's."""
    return _forward(logits, labels)[0]


def _forward(logits: jax.Array, labels: jax.Array) -> tuple[tuple[jax.Array, jax.Array], _Saved]:
    largest = logits.max(-1)
    log_total = largest + jnp.log(jnp.exp(logits - largest[..., None]).sum(-1))
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    # Not by argmax, a slow further pass over the logits; the two differ only where logits tie.
    right = (of_label == largest).astype(jnp.float32)
    return (log_total - of_label, right), (logits, labels, log_total)


def _backward(saved: _Saved, g: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
    # One pass that writes softmax minus one-hot; the gradient of a gather would be a scatter.
    logits, labels, log_total = saved
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    softmax = jnp.exp(logits - log_total[..., None])
    return (softmax - (classes == labels[..., None])) * g[0][..., None], None


cross_entropy.defvjp(_forward, _backward)
