"""Attention of a layer as a record of numbers, in NumPy: a mistake is the same with other numbers.

Golden vectors themselves are computed by the encodings (`vectors.attend`). The tests compare the
formula with them, so a mistake differs from the right results by what it changes alone.

Shapes as in `vectors`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from pe_jax.encodings.encoding import PositionEncoding
from pe_jax.encodings.part import HookContext, Part
from pe_jax.golden.cases import LENGTH, Case
from pe_jax.golden.vectors import Layer, inputs_of, rotated_pairs

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
        a, b = x[..., first], x[..., second]
        turned = x.copy()
        turned[..., first] = a * cos - b * sin
        turned[..., second] = a * sin + b * cos
        return turned


class AxesRotation(NamedTuple):
    """A rotation by positions of several axes."""

    part: Part

    def turn(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(_turned(self.part, x, positions.astype(np.float64)))


@functools.partial(jax.jit, static_argnames="part")
def _turned(part: Part, x: jax.Array, positions: jax.Array) -> jax.Array:
    assert part.map_qkv is not None
    return part.map_qkv(
        {}, x, x, x, HookContext(positions_q=positions, positions_k=positions)
    )[0]


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


def formula_of(
    layer: PositionEncoding, case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> Formula:
    """Return what a kind of layer computes for a case."""
    q, k, v = (x.astype(np.float64) for x in inputs_of(layer, case, q, k, v))
    positions_q = case.positions[:, case.queries]
    sizes = [part.constructor.keywords["size"] for part in _named(layer, "chunks")]
    length = int(case.positions.max()) + 1
    rotations = [
        _rotation(part, length) for part in layer.parts if part.map_qkv is not None
    ]
    biased = [part for part in layer.parts if part.offsets and part.offsets.bias]
    factors = [part.scale for part in layer.parts if part.scale]

    def temperature(positions: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            context = HookContext(positions_q=positions, positions_k=positions)
            scales = [np.asarray(factor({}, context)) for factor in factors]
        product = np.ones(())
        for scale in scales:  # [B, Lq, 1, 1], or a number.
            product = product * (scale[..., 0, 0] if scale.ndim else scale)
        return product

    return Formula(
        q=q[:, case.queries],
        k=k,
        v=v,
        positions_q=positions_q,
        positions_k=case.positions,
        limits_q=positions_q,
        limits_k=case.positions,
        mask=case.mask[:, case.queries],
        index_q=np.arange(LENGTH)[case.queries],
        steps=case.steps,
        rotation=rotations[0] if rotations else None,
        left=layer.window.left,
        right=layer.window.right,
        chunk=sizes[0] if sizes else None,
        slopes=_slopes(biased[0]) if biased else None,
        temperature=temperature if factors else None,
        divisor=math.sqrt(q.shape[-1]),
    )


def _named(layer: PositionEncoding, name: str) -> list[Any]:
    return [part for part in layer.parts if part.name.partition("(")[0] == name]


def _rotation(part: Part, length: int) -> Rotation | AxesRotation:
    return rotation_of(part, length) if rotated_pairs(part) else AxesRotation(part)


def rotation_of(part: Part, length: int) -> Rotation:
    """Return the rotation of a rotary encoding of one axis, for an input of some length."""
    return _rotation_of(part, 2 if part.traits.cacheable else length)


@functools.cache
def _rotation_of(part: Part, length: int) -> Rotation:
    assert part.map_qkv is not None
    pairs = np.array(rotated_pairs(part))
    # The first dimension of each pair at position 1 shows its angle, which is below pi.
    x = np.zeros((1, 2, 1, int(pairs.max()) + 1))
    x[..., pairs[:, 0]] = 1
    positions = np.array([1, length - 1])
    with jax.enable_x64(True):
        turned = np.asarray(
            part.map_qkv(
                {}, x, x, x, HookContext(positions_q=positions, positions_k=positions)
            )[0]
        )[0, 0, 0]
    cos, sin = turned[pairs].T
    return Rotation(np.arctan2(sin, cos), pairs, float(np.hypot(cos, sin)[0]), part)


def _slopes(part: Part) -> np.ndarray:
    """Return what ALiBi subtracts for each step of distance, `[H]`."""
    assert part.offsets is not None and part.offsets.bias is not None
    offset = np.array([-1])
    with jax.enable_x64(True):
        return -np.asarray(
            part.offsets.bias(
                {}, offset, HookContext(positions_q=offset, positions_k=offset)
            )
        )[0]


def evaluate(formula: Formula) -> Layer:
    """Compute logits, allowed pairs and outputs of a formula."""
    q, k = formula.q, formula.k
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
    seen = (np.arange(k.shape[1]) <= formula.index_q[:, None]) | (not formula.steps)
    allowed = (formula.mask & seen & _within(formula))[:, None]
    largest = np.max(logits, axis=-1, keepdims=True, where=allowed, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0)  # Of a query without any key.
    weights = np.where(allowed, np.exp(np.where(allowed, logits - largest, 0)), 0)
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    return Layer(logits, allowed, np.einsum("bhqk,bkhf->bqhf", weights, values))


def _within(formula: Formula) -> np.ndarray:
    """Return `[B, Lq, L]`, True where window and chunk let a query attend to a key."""
    q, k = formula.limits_q[:, :, None], formula.limits_k[:, None, :]
    within = np.ones(formula.mask.shape, bool)
    if formula.left is not None:
        within &= k - q >= -formula.left
    if formula.right is not None:
        within &= k - q <= formula.right
    if formula.chunk is not None:
        within &= k // formula.chunk == q // formula.chunk
    return within
