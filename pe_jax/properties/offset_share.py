"""Share of a head's mean logits that a function of the offset explains."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.properties.arithmetic import matrix_sum
from pe_jax.properties.compiled import compiled
from pe_jax.properties.metrics import by_offset


@compiled()
def offset_fit(
    phi: Float[Array, "*B L L"], where: Bool[Array, "L L"] | None = None
) -> Float[jax.Array, "*B M"]:
    """Return the function ψ of the offset that is nearest to Φ where only softmax counts.

    ψ minimises Σ_ij (Φ_ij - r_i - ψ(j - i))² over ψ and a level r_i of each row, which a softmax
    over keys does not see. The levels are eliminated, and the normal equations of ψ solved.

    Args:
      phi: mean logits, row = query.
      where: only these entries count; default all.

    Returns:
      by the offset m = j - i from -(L - 1) to L - 1, and 0 at offsets that do not occur. The mean
      is 0 over the offsets that share rows, directly or through other offsets: `where` may split
      them into several such groups, whose levels nothing compares.
    """
    centered, present = centered_rows(phi, where)
    weights = present.astype(phi.dtype)
    counts = jnp.maximum(weights.sum(-1, keepdims=True), 1)
    shares = weights / counts
    normal = jnp.diag(weights.sum(-2)) - shares.T @ weights
    # ψ has a free level in each group, set to 0. An offset that does not occur is its own group.
    groups = _groups(present)
    normal += groups[:, None] == groups
    return jnp.linalg.solve(normal, centered.sum(-2)[..., None])[..., 0]


def _groups(present: Bool[Array, "L M"]) -> Int[Array, " M"]:
    """Return the least index of the offsets that each offset is connected with by rows."""
    count = present.shape[-1]

    def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        _, labels = carry
        rows = jnp.where(present, labels, count).min(-1, keepdims=True)
        least = jnp.where(present, rows, count).min(-2)
        return labels, jnp.minimum(labels, least)

    def has_changed(carry: tuple[jax.Array, jax.Array]) -> jax.Array:
        before, labels = carry
        return (before != labels).any()

    own = jnp.arange(count)
    start = (jnp.full_like(own, -1), own)
    _, labels = jax.lax.while_loop(has_changed, step, start)
    return labels


@compiled()
def offset_variance(
    phi: Float[Array, "*B L L"],
    where: Bool[Array, "L L"] | None = None,
    error: Float[Array, "*B L L"] | None = None,
) -> tuple[Float[jax.Array, "*B"], Float[jax.Array, "*B"]]:
    """Return the variance of Φ within its rows, and the part of it that offsets explain.

        whole     = mean_ij (Φ_ij - mean of row i)²
        explained = whole - mean_ij (Φ_ij - r_i - ψ(j - i))²

    with ψ and r of `offset_fit`. Their ratio is the share: 1 where a bias of the offset gives the
    same attention. Sums of both over heads give the share of a layer.

    Args:
      phi: mean logits, row = query.
      where: only these entries count; default all.
      error: standard errors of Φ. Their squares are variance of Φ's estimate and not of Φ: they are
        taken off the whole.
    """
    centered, present = centered_rows(phi, where)
    count = jnp.maximum(present.sum(), 1)
    fit = offset_fit(phi, where)[..., None, :]
    explained = matrix_sum(fit * centered) / count
    whole = matrix_sum(centered**2) / count
    if error is not None:
        if where is not None:
            error = jnp.where(where, error, 0)
        noise = matrix_sum(error**2) / count
        whole = jnp.maximum(whole - noise, explained)
    return whole, explained


def centered_rows(
    phi: Float[Array, "*B L L"], where: Bool[Array, "L L"] | None
) -> tuple[Float[Array, "*B L M"], Bool[Array, "L M"]]:
    """Return Φ less the mean of each row, by row and offset, 0 at no entry; and the entries."""
    values, present = by_offset(phi, where)
    counts = jnp.maximum(present.sum(-1, keepdims=True), 1)
    mean = values.sum(-1, keepdims=True) / counts
    return jnp.where(present, values - mean, 0), present
