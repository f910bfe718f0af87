"""Cross-entropy with its derivative written out."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log p(label) in nats, and 1.0 where no logit is larger than the label's."""
    # Rows in one axis: on TPUs several would have another layout than the product they come from.
    loss, right = _of_rows(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return loss.reshape(labels.shape), right.reshape(labels.shape)


@jax.custom_jvp
def _of_rows(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    log_total, of_label, largest = _sums(logits, labels)
    # Not by argmax, a slow further pass over the logits; the two differ only where logits tie.
    return log_total - of_label, (of_label == largest).astype(jnp.float32)


@_of_rows.defjvp
def _of_rows_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, object]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    logits, labels = primals
    loss, right = _of_rows(logits, labels)
    log_total, _, _ = _sums(logits, labels)
    # Backward, one pass that writes softmax minus one-hot; the gradient of a gather is a scatter.
    slope = jnp.exp(logits - log_total[..., None]) - _one_hot(logits, labels)
    return (loss, right), ((slope * tangents[0]).sum(-1), jnp.zeros_like(right))


def _sums(
    logits: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logarithm of the softmax's denominator, logit of the label, largest logit."""
    largest = logits.max(-1)
    log_total = largest + jnp.log(jnp.exp(logits - largest[..., None]).sum(-1))
    of_label = jax.lax.platform_dependent(
        logits, labels, cpu=_gathered_logits, default=_masked_logits
    )
    return log_total, of_label, largest


def _gathered_logits(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def _masked_logits(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The same within the pass that sums: a gather is slow on accelerators."""
    return jnp.where(_one_hot(logits, labels), logits, 0.0).sum(-1)


def _one_hot(logits: jax.Array, labels: jax.Array) -> jax.Array:
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return classes == labels[..., None]
