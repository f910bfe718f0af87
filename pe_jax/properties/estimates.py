"""Means over texts with their standard errors, and scores by shift and by place of the tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

from pe_jax.common.axis_blocks import cut_axis, join_axis
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float, Int
from pe_jax.properties.arithmetic import matrix_sum, ratio
from pe_jax.properties.compiled import compiled

# `score(params, inputs [B, ...], positions [L]) -> [B, ...]`; inputs and scores are pytrees.
Score = Callable[[PyTree, PyTree, Int[Array, " L"]], PyTree]

if TYPE_CHECKING:
    _Numbers = jax.Array
else:  # Reports make estimates of NumPy's and Python's numbers as well.
    _Numbers = ArrayLike


class Estimate(Record, pytree=True):
    """A mean over texts and its standard error, NaN for a single text."""

    mean: _Numbers
    error: _Numbers


@compiled()
def mean_over_texts(values: Float[Array, " N *S"]) -> Estimate:
    """Return the mean of N numbers, one of each text, with its error.

    Tokens of a text are not independent, texts are.
    """
    count = len(values)
    mean = values.mean(0)
    if count == 1:
        return Estimate(mean=mean, error=jnp.full_like(mean, jnp.nan))
    return Estimate(mean=mean, error=values.std(0, ddof=1) / count**0.5)


def in_batches(
    function: Callable[[PyTree], PyTree], inputs: PyTree, batch: int
) -> PyTree:
    """Return `function(inputs)`, computed so many rows at a time, one batch after the other.

    Args:
      function: its results have the rows of its inputs as their leading axis.
      inputs: arrays `[N, ...]`.
    """
    count = len(jax.tree.leaves(inputs)[0])
    size = min(batch, count)
    blocks = jax.tree.map(lambda x: cut_axis(x, size, 0, "edge"), inputs)
    results = jax.lax.map(function, blocks)
    return jax.tree.map(lambda x: join_axis(x, 0, count), results)


@compiled("score", "length", "batch")
def shift_curve(
    score: Score,
    params: PyTree,
    inputs: PyTree,
    shifts: Int[Array, " K"],
    *,
    length: int,
    batch: int = 16,
) -> PyTree:
    """Return `score` of inputs `[N, ...]` at positions k to k + length - 1, for each k.

    Attention that depends on offsets alone gives the same states for all k, up to rounding; a table
    need not (Sinha et al. 2022, arXiv 2210.12574). One program, in memory of one batch.

    Args:
      score: a pure function, a static argument of jit: pass the same object again.
      shifts: the encoding has to have the positions.

    Returns:
      arrays `[K, N, ...]`.
    """

    def shifted(k: Array) -> PyTree:
        positions = k + jnp.arange(length)
        return in_batches(lambda rows: score(params, rows, positions), inputs, batch)

    return jax.lax.map(shifted, jnp.asarray(shifts))


@compiled()
def state_change(
    states: Float[Array, "*B L D"], other: Float[Array, "*B L D"]
) -> Float[jax.Array, "*B"]:
    """Return √(Σ‖h' - h‖² / Σ‖h - mean of h‖²) over the tokens of a text.

    That is the distance that its states move, in units of their spread. √2 is that of two tokens of
    the text. States that are all the same, as of one token, have no spread: 0 if none moves, else 1
    (see `relative_change`).
    """
    change = matrix_sum((other - states) ** 2)
    from_first = states - states[..., :1, :]  # Exactly 0 where all states are the same.
    centered = from_first - from_first.mean(-2, keepdims=True)
    spread = matrix_sum(centered**2)
    squares = jnp.where(change == 0, 0.0, ratio(change, spread, 1.0))
    return jnp.sqrt(squares)


def bin_edges(places: int, bins: int) -> Int[np.ndarray, " E"]:
    """Return the first place of each bin, and the end of the last; a bin for each place at most."""
    edges = np.linspace(0, places, min(bins, places) + 1)
    return edges.round().astype(int)


@compiled("bins")
def losses_by_place(
    losses: Float[Array, "N P"], *, bins: int = 16
) -> dict[str, Estimate]:
    """Return means over texts of the losses of tokens at P places, in bins of about equal width.

    Returns:
      "bins": `[K]`, of places next to each other; "first" and "last": the first and the last bin
      less the middle half of the places, text by text.
    """
    places = losses.shape[1]
    edges = itertools.pairwise(bin_edges(places, bins))
    by_bin = jnp.stack([losses[:, a:b].mean(1) for a, b in edges], axis=1)
    quarter = places // 4
    middle = losses[:, quarter : places - quarter].mean(1)
    return {
        "bins": mean_over_texts(by_bin),
        "first": mean_over_texts(by_bin[:, 0] - middle),
        "last": mean_over_texts(by_bin[:, -1] - middle),
    }
