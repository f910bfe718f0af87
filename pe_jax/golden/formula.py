"""Attention of a layer as a record of numbers, in NumPy: a mistake is the same with other numbers.

Golden vectors themselves are computed by the encodings (`vectors.attend`). The tests compare the
formula with them, so a mistake differs from the right results by what it changes alone.

Shapes as in `vectors`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from pe_jax.encodings.encoding import PositionEncoding
from pe_jax.encodings.part import HookContext, Part
from pe_jax.golden.cases import LENGTH, Case
from pe_jax.golden.vectors import (
    Golden,
    Layer,
    base_name,
    inputs_of,
    offset_bias,
    rotated_pairs,
    rotated_queries,
)

Round = Callable[[np.ndarray], np.ndarray]


def _exactly(x: np.ndarray) -> np.ndarray:
    return x


class Rotation(NamedTuple):
    """A rotation by positions of one axis.

    Attributes:
      frequencies: `[F]`, of the case's length.
      pairs: `[F, 2]`, dimensions of a head.
      scale: c, of sines and cosines.
      part: that the numbers are of.
      round_frequencies, round_angles, round_tables: to the numbers of a low precision; `tables` are
        sines and cosines.
    """

    frequencies: np.ndarray
    pairs: np.ndarray
    scale: float
    part: Part
    round_frequencies: Round = _exactly
    round_angles: Round = _exactly
    round_tables: Round = _exactly

    def turn(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Rotate `[B, L, H, d]`, each pair by position · frequency."""
        frequencies = self.round_frequencies(self.frequencies)
        angles = self.round_angles(positions[:, :, None, None] * frequencies)
        cos = self.scale * self.round_tables(np.cos(angles))
        sin = self.scale * self.round_tables(np.sin(angles))
        first, second = self.pairs.T
        a = x[..., first]
        b = x[..., second]
        turned = x.copy()
        turned[..., first] = a * cos - b * sin
        turned[..., second] = a * sin + b * cos
        return turned


class AxesRotation(NamedTuple):
    """A rotation by positions of several axes."""

    part: Part

    def turn(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Rotate `[B, L, H, d]` by positions `[B, L, A]`."""
        with jax.enable_x64(True):
            return np.asarray(_turned(self.part, x, positions.astype(np.float64)))


_turned = jax.jit(rotated_queries, static_argnames="part")


class Formula(NamedTuple):
    """Attention of a case and a layer.

    Attributes:
      q, k, v: `[B, Lq, H, d]`, `[B, L, G, d]`, `[B, L, G, f]`, float64.
      positions_q, positions_k: `[B, Lq]`, `[B, L]`, or with a last axis A, as rotations and biases
        see them.
      limits_q, limits_k: the same, as windows, chunks and temperatures see them.
      mask: `[B, Lq, L]`, without the window.
      index_q: `[Lq]`, which tokens are queries.
      steps: queries come one at a time, each with the keys up to itself alone.
      rotation: of queries and keys.
      left, right: the window, inclusive; None has no limit.
      chunk: size of the chunks; None has none.
      slopes: `[H]`, of ALiBi.
      temperature: of all logits, by positions of queries `[B, Lq]`; broadcasts to `[B, Lq]`.
      divisor: of products of queries and keys.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    positions_q: np.ndarray
    positions_k: np.ndarray
    limits_q: np.ndarray
    limits_k: np.ndarray
    mask: np.ndarray
    index_q: np.ndarray
    steps: bool
    rotation: Rotation | AxesRotation | None
    left: int | None
    right: int | None
    chunk: int | None
    slopes: np.ndarray | None
    temperature: Callable[[np.ndarray], np.ndarray] | None
    divisor: float


def formula_of(golden: Golden, kind: str, case: Case) -> Formula:
    """Return what a kind of layer computes for a case."""
    layer = golden.layers[kind]
    q, k, v = inputs_of(golden, kind, case)
    positions_q = case.positions[:, case.queries]
    length = int(case.positions.max()) + 1
    rotation: Rotation | AxesRotation | None = None
    slopes = chunk = None
    for part in layer.parts:
        if part.map_qkv is not None and rotated_pairs(part):
            rotation = rotation_of(part, length)
        elif part.map_qkv is not None:
            rotation = AxesRotation(part)
        if part.offsets and part.offsets.bias:
            slopes = _slopes(part)
        if base_name(part) == "chunks" and part.constructor:
            chunk = part.constructor.keywords["size"]
    return Formula(
        q=q[:, case.queries].astype(np.float64),
        k=k.astype(np.float64),
        v=v.astype(np.float64),
        positions_q=positions_q,
        positions_k=case.positions,
        limits_q=positions_q,
        limits_k=case.positions,
        mask=case.mask[:, case.queries],
        index_q=np.arange(LENGTH)[case.queries],
        steps=case.steps,
        rotation=rotation,
        left=layer.window.left,
        right=layer.window.right,
        chunk=chunk,
        slopes=slopes,
        temperature=_temperature(layer),
        divisor=math.sqrt(q.shape[-1]),
    )


def _temperature(layer: PositionEncoding) -> Round | None:
    """Return the product of all scales of logits by the positions `[B, Lq]` of queries."""
    factors = [part.scale for part in layer.parts if part.scale]
    if not factors:
        return None

    def temperature(positions: np.ndarray) -> np.ndarray:
        context = HookContext(positions_q=positions, positions_k=positions)
        product = np.ones(())
        for factor in factors:
            with jax.enable_x64(True):
                scale = np.asarray(factor({}, context))
            if scale.ndim:  # [B, Lq, 1, 1]; otherwise a number.
                scale = scale[..., 0, 0]
            product = product * scale
        return product

    return temperature


def rotation_of(part: Part, length: int) -> Rotation:
    """Return the rotation of a rotary encoding of one axis, for an input of some length."""
    return _rotation_of(part, 2 if part.traits.cacheable else length)


@functools.cache
def _rotation_of(part: Part, length: int) -> Rotation:
    pairs = np.array(rotated_pairs(part))
    # The first dimension of each pair at position 1 shows its angle, which is below pi.
    x = np.zeros((1, 2, 1, int(pairs.max()) + 1))
    x[..., pairs[:, 0]] = 1
    with jax.enable_x64(True):
        turned = np.asarray(rotated_queries(part, x, np.array([1, length - 1])))
    cos, sin = turned[0, 0, 0][pairs].T
    scale = float(np.hypot(cos, sin)[0])
    return Rotation(
        frequencies=np.arctan2(sin, cos), pairs=pairs, scale=scale, part=part
    )


def _slopes(part: Part) -> np.ndarray:
    """Return what ALiBi subtracts for each step of distance, `[H]`."""
    return -offset_bias(part, np.array([-1]))[0]


def evaluate(formula: Formula) -> Layer:
    """Compute logits, allowed pairs and outputs of a formula."""
    q = formula.q
    k = formula.k
    if formula.rotation is not None:
        q = formula.rotation.turn(q, formula.positions_q)
        k = formula.rotation.turn(k, formula.positions_k)
    group = q.shape[2] // k.shape[2]
    keys = np.repeat(k, group, axis=2)
    values = np.repeat(formula.v, group, axis=2)
    logits = np.einsum("bqhd,bkhd->bhqk", q, keys) / formula.divisor
    if formula.temperature is not None:
        scale = np.broadcast_to(formula.temperature(formula.limits_q), q.shape[:2])
        logits = logits * scale[:, None, :, None]
    if formula.slopes is not None:
        offsets = formula.positions_k[:, None, :] - formula.positions_q[:, :, None]
        logits = logits - formula.slopes[:, None, None] * np.abs(offsets)[:, None]
    allowed = formula.mask & _within(formula)
    if formula.steps:  # The key of a later token is not there yet.
        allowed = allowed & (np.arange(k.shape[1]) <= formula.index_q[:, None])
    allowed = allowed[:, None]
    largest = np.max(logits, axis=-1, keepdims=True, where=allowed, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0)  # Of a query without any key.
    exponents = np.where(allowed, logits - largest, 0)
    weights = np.where(allowed, np.exp(exponents), 0)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    out = np.einsum("bhqk,bkhf->bqhf", weights, values)
    return Layer(logits=logits, allowed=allowed, out=out)


def _within(formula: Formula) -> np.ndarray:
    """Return `[B, Lq, L]`, True where window and chunk let a query attend to a key."""
    q = formula.limits_q[:, :, None]
    k = formula.limits_k[:, None, :]
    within = np.ones(formula.mask.shape, bool)
    if formula.left is not None:
        within &= k - q >= -formula.left
    if formula.right is not None:
        within &= k - q <= formula.right
    if formula.chunk is not None:
        within &= k // formula.chunk == q // formula.chunk
    return within
