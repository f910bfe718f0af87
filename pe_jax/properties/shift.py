"""What changes when all positions are shifted by one number (Sinha et al. 2022, arXiv 2210.12574).

A sentence at positions k to k + L - 1 is the sentence at 0 to L - 1: attention that depends on
offsets alone gives the same states for all k, up to rounding; a table need not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from pe_jax.properties.estimate import in_batches
from pe_jax.shapes import Array, Float, Int

# `score(params, inputs [B, ...], positions [L]) -> [B, ...]`; inputs and scores are pytrees.
Score = Callable[[PyTree, PyTree, Int[Array, " L"]], PyTree]


@partial(jax.jit, static_argnames=("score", "length", "batch"))
def shift_curve(
    score: Score,
    params: PyTree,
    inputs: PyTree,
    shifts: Int[Array, " K"],
    *,
    length: int,
    batch: int = 16,
) -> PyTree:
    """`score` of inputs `[N, ...]` at positions k to k + length - 1, for each k: `[K, N, ...]`.

    One program for all shifts, in memory of one batch.

    Args:
      score: a pure function, a static argument of jit: passing the same object again avoids
        recompilation.
      shifts: the encoding has to have the positions.
    """
    at = lambda k: k + jnp.arange(length)
    return jax.lax.map(
        lambda k: in_batches(lambda rows: score(params, rows, at(k)), inputs, batch),
        jnp.asarray(shifts),
    )


@jax.jit
def state_change(
    states: Float[Array, "*B L D"], other: Float[Array, "*B L D"]
) -> Float[Array, "*B"]:
    """√(Σ‖h' - h‖² / Σ‖h - mean of h‖²) over the tokens of a text: how far its states move,
    measured by how far they are apart.

    0 if nothing changes, √2 if states have no more in common than those of two tokens of the text;
    more if all move the same way. Where all states are the same, 0 or infinite.
    """
    moved = ((other - states) ** 2).sum((-2, -1))
    apart = ((states - states.mean(-2, keepdims=True)) ** 2).sum((-2, -1))
    return jnp.where(moved == 0, 0.0, jnp.sqrt(moved / apart))
