"""Means over texts with their standard errors, and functions of many texts in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from pe_jax.shapes import Array, Float


class Estimate(NamedTuple):
    """A mean over texts and its standard error, NaN for a single text."""

    mean: Float[Array, "*S"]
    error: Float[Array, "*S"]


@jax.jit
def over_texts(values: Float[Array, "N *S"]) -> Estimate:
    """The mean of N numbers, one of each text: tokens of a text are not independent, texts are."""
    count = len(values)
    mean = values.mean(0)
    if count == 1:
        return Estimate(mean, jnp.full_like(mean, jnp.nan))
    return Estimate(mean, values.std(0, ddof=1) / count**0.5)


def in_batches(f: Callable[[PyTree], PyTree], inputs: PyTree, batch: int) -> PyTree:
    """`f(inputs)`, so many rows at a time, one batch after the other.

    Args:
      f: what it returns has the rows of what it is given as its leading axis.
      inputs: arrays `[N, ...]`.
    """
    count = len(jax.tree.leaves(inputs)[0])
    batch = min(batch, count)
    steps = -(-count // batch)

    def blocks(x: Array) -> jax.Array:
        last = [(0, steps * batch - count), *[(0, 0)] * (x.ndim - 1)]
        return jnp.pad(x, last, mode="edge").reshape(steps, batch, *x.shape[1:])

    out = jax.lax.map(f, jax.tree.map(blocks, inputs))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], out)
