"""Mistakes of position code, each as a change of a `Formula`.

A mistake returns None where it changes nothing that the formula has, such as the bias of a layer
without one. To add a mistake, add it to a table; `_wrong_positions` and `_wrong_frequencies` have
those that need more than the numbers of the formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pe_jax.encodings.bias.alibi import slopes
from pe_jax.encodings.part import Part
from pe_jax.encodings.rotary.rope import rope
from pe_jax.encodings.rotary.rotation import Layout
from pe_jax.encodings.rotary.rotation import pairs as dimension_pairs
from pe_jax.golden.formula import Formula, Rotation, Round, rotation_of

Mistake = Callable[[Formula], Formula | None]
_BASES = (10_000.0, 500_000.0, 1_000_000.0)  # That code has as a default.


def mistakes(
    formula: Formula, others: Mapping[str, Formula], length: int
) -> Iterator[tuple[str, Formula]]:
    """Yield what is often computed instead, by name; one name may have several formulas.

    Args:
      others: the formulas of the other kinds of layers.
      length: of the input, the largest position + 1.
    """
    for name, change in _TABLE.items():
        changed = change(formula)
        if changed is not None:
            yield name, changed
    for name, (wrong_q, wrong_k) in _wrong_positions(formula).items():
        of_terms = formula._replace(positions_q=wrong_q, positions_k=wrong_k)
        yield name, of_terms
        yield name, of_terms._replace(limits_q=wrong_q, limits_k=wrong_k)
    for name, other in others.items():
        rotation = other.rotation
        if not isinstance(rotation, Rotation) or rotation.part == _part(formula):
            continue
        if (
            rotation.pairs.max() < formula.q.shape[-1]
        ):  # Heads may be smaller than the other's.
            yield f"the rotation is that of {name}", formula._replace(rotation=rotation)
    if isinstance(formula.rotation, Rotation):
        for name, rotation in _wrong_frequencies(formula.rotation, length).items():
            yield name, formula._replace(rotation=rotation)


def _part(formula: Formula) -> Part | None:
    return formula.rotation.part if formula.rotation is not None else None


# Masks ###########################################################################################


def _mask(change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Mistake:
    """Return a mistake that changes the mask `[B, Lq, L]`, by the index of each key minus that of
    the query, `[Lq, L]`."""

    def mistake(formula: Formula) -> Formula:
        mask = change(formula.mask, _index_offsets(formula))
        return formula._replace(mask=np.broadcast_to(mask, formula.mask.shape))

    return mistake


def _index_offsets(formula: Formula) -> np.ndarray:
    return np.arange(formula.mask.shape[2]) - formula.index_q[:, None]


_MASKS: Mapping[str, Mistake] = {
    "the mask is ignored": _mask(lambda mask, offsets: np.ones_like(mask)),
    "keys to the right are masked": _mask(lambda mask, offsets: mask & (offsets <= 0)),
    "keys to the right are not masked": _mask(
        lambda mask, offsets: mask | (mask.any(1, keepdims=True) & (offsets > 0))
    ),
    "padding and documents are not masked": _mask(lambda mask, offsets: offsets <= 0),
    "the mask of the first row is that of all": _mask(lambda mask, offsets: mask[:1]),
    "the query's own key is masked": _mask(lambda mask, offsets: mask & (offsets != 0)),
}


# Windows #########################################################################################


def _window(
    left: Callable[[int], int | None], right: Callable[[int], int | None] | None = None
) -> Mistake:
    """Return a mistake that changes the window's sides, by default both in the same way.

    One of a single side is none of causal attention, which has one side.
    """
    change_right = left if right is None else right

    def mistake(formula: Formula) -> Formula | None:
        if formula.left is None or formula.right is None:
            return None
        if (
            right is not None
            and not (formula.mask & (_index_offsets(formula) > 0)).any()
        ):
            return None
        return formula._replace(
            left=left(formula.left), right=change_right(formula.right)
        )

    return mistake


def _unchanged(distance: int) -> int:
    return distance


_WINDOWS: Mapping[str, Mistake] = {
    "the window is missing": _window(lambda distance: None),
    "the window is one key longer": _window(lambda distance: distance + 1),
    "the window is one key shorter": _window(lambda distance: distance - 1),
    "the window is twice as wide": _window(lambda distance: 2 * distance),
    "the window is half as wide": _window(lambda distance: distance // 2),
    "the window has no left side": _window(lambda distance: 0, _unchanged),
    "the window has no right side": _window(_unchanged, lambda distance: 0),
    "the window has no limit on the left": _window(lambda distance: None, _unchanged),
    "the window has no limit on the right": _window(_unchanged, lambda distance: None),
}


def _chunk(change: Callable[[Formula, int], Formula]) -> Mistake:
    def mistake(formula: Formula) -> Formula | None:
        return None if formula.chunk is None else change(formula, formula.chunk)

    return mistake


_CHUNKS: Mapping[str, Mistake] = {
    "attention is not in chunks": _chunk(
        lambda formula, size: formula._replace(chunk=None)
    ),
    "chunks are one key longer": _chunk(
        lambda formula, size: formula._replace(chunk=size + 1)
    ),
    "chunks are one key shorter": _chunk(
        lambda formula, size: formula._replace(chunk=size - 1)
    ),
    "a window stands for chunks": _chunk(
        lambda formula, size: formula._replace(
            chunk=None, left=size - 1, right=size - 1
        )
    ),
}


# Heads and scale #################################################################################


def _key_heads(order: Callable[[int, int], np.ndarray]) -> Mistake:
    """Return a mistake in which query head h uses the key head `order(H, G)[h]`."""

    def mistake(formula: Formula) -> Formula | None:
        heads, key_heads = formula.q.shape[2], formula.k.shape[2]
        if heads == key_heads:
            return None
        used = order(heads, key_heads)
        return formula._replace(k=formula.k[:, :, used], v=formula.v[:, :, used])

    return mistake


def _scaled(factor: Callable[[Formula], float]) -> Mistake:
    return lambda formula: formula._replace(divisor=formula.divisor * factor(formula))


def _rotated_share(formula: Formula) -> Formula | None:
    if not isinstance(formula.rotation, Rotation):
        return None
    rotated = formula.rotation.pairs.size
    if rotated == formula.q.shape[-1]:
        return None
    return formula._replace(divisor=math.sqrt(rotated))


_HEADS: Mapping[str, Mistake] = {
    "key heads are tiled instead of repeated": _key_heads(
        lambda heads, key_heads: np.arange(heads) % key_heads
    ),
    "all heads use the first key head": _key_heads(
        lambda heads, key_heads: np.zeros(heads, int)
    ),
}
_SCALES: Mapping[str, Mistake] = {
    "logits are not divided by sqrt(d)": _scaled(lambda formula: 1 / formula.divisor),
    "logits are divided by d": _scaled(lambda formula: formula.divisor),
    "logits are multiplied by sqrt(d)": _scaled(lambda formula: formula.divisor**-2),
    "d of logits is that of all heads": _scaled(
        lambda formula: math.sqrt(formula.q.shape[2])
    ),
    "d of logits is the rotated dimensions alone": _rotated_share,
}


# Temperatures and biases #########################################################################


def _temperature(
    change: Callable[[Callable[[np.ndarray], np.ndarray]], Callable[[np.ndarray], Any]],
) -> Mistake:
    def mistake(formula: Formula) -> Formula | None:
        if formula.temperature is None:
            return None
        return formula._replace(temperature=change(formula.temperature))

    return mistake


def _slopes(change: Callable[[np.ndarray], np.ndarray]) -> Mistake:
    def mistake(formula: Formula) -> Formula | None:
        return (
            None
            if formula.slopes is None
            else formula._replace(slopes=change(formula.slopes))
        )

    return mistake


def _bias_over_sqrt_d(formula: Formula) -> Formula | None:
    if formula.slopes is None:
        return None
    return formula._replace(slopes=formula.slopes / formula.divisor)


def _of_power(head: np.ndarray) -> np.ndarray:
    return 2.0 ** (-8 * head / head.size)


_TEMPERATURES: Mapping[str, Mistake] = {
    "the temperature is missing": _temperature(lambda scale: lambda x: np.ones(())),
    "the temperature counts twice": _temperature(lambda scale: lambda x: scale(x) ** 2),
    "the temperature divides": _temperature(lambda scale: lambda x: 1 / scale(x)),
    "the temperature is that of the next position": _temperature(
        lambda scale: lambda x: scale(x + 1)
    ),
    "the temperature is that of the position before": _temperature(
        lambda scale: lambda x: scale(x - 1)
    ),
}
_BIASES: Mapping[str, Mistake] = {
    "the bias is missing": _slopes(lambda m: 0 * m),
    "the bias has the wrong sign": _slopes(lambda m: -m),
    "the bias counts twice": _slopes(lambda m: 2 * m),
    "the bias is divided by sqrt(d)": _bias_over_sqrt_d,
    "slopes are in reverse order": _slopes(lambda m: m[::-1]),
    "slopes are those of 2^(-8 h/H), though H is no power of 2": _slopes(
        lambda m: _of_power(np.arange(1, m.size + 1))
    ),
    "slopes begin with 1": _slopes(lambda m: _of_power(np.arange(m.size))),
    "slopes are those of the next power of 2": _slopes(
        lambda m: slopes(2 ** math.ceil(math.log2(m.size)))[: m.size]
    ),
}


# Rotations #######################################################################################


def _rotation(change: Callable[[Rotation, Formula], Rotation | None]) -> Mistake:
    def mistake(formula: Formula) -> Formula | None:
        if not isinstance(formula.rotation, Rotation):
            return None
        changed = change(formula.rotation, formula)
        return None if changed is None else formula._replace(rotation=changed)

    return mistake


def _other_layout(rotation: Rotation) -> Rotation:
    """Rotate neighbours where halves rotate, and the other way round."""
    count = len(rotation.pairs)
    layout: Layout = "half" if _are_neighbours(rotation) else "interleaved"
    return rotation._replace(pairs=np.array(list(dimension_pairs(count, layout))))


def _are_neighbours(rotation: Rotation) -> bool:
    return len(rotation.pairs) > 1 and rotation.pairs[0, 1] == 1


def _at_the_end(rotation: Rotation, formula: Formula) -> Rotation | None:
    unrotated = formula.q.shape[-1] - rotation.pairs.size
    return rotation._replace(pairs=rotation.pairs + unrotated) if unrotated else None


def _rounded(dtype: Any) -> Round:
    def rounded(x: np.ndarray) -> np.ndarray:
        return np.asarray(x).astype(dtype).astype(np.float64)

    return rounded


_bfloat16, _float16 = _rounded(ml_dtypes.bfloat16), _rounded(np.float16)


def _low_precision(dtype: str, rounded: Round) -> dict[str, Mistake]:
    return {
        f"frequencies are rounded to {dtype}": _rotation(
            lambda rotation, formula: rotation._replace(round_frequencies=rounded)
        ),
        f"angles are rounded to {dtype}": _rotation(
            lambda rotation, formula: rotation._replace(round_angles=rounded)
        ),
        f"sines and cosines are rounded to {dtype}": _rotation(
            lambda rotation, formula: rotation._replace(round_tables=rounded)
        ),
    }


_ROTATIONS: Mapping[str, Mistake] = {
    "nothing is rotated": lambda formula: (
        formula.rotation and formula._replace(rotation=None)
    ),
    "rotations are in the opposite direction": _rotation(
        lambda rotation, formula: rotation._replace(frequencies=-rotation.frequencies)
    ),
    "the last dimensions rotate instead of the first": _rotation(_at_the_end),
    "frequencies are in reverse order": _rotation(
        lambda rotation, formula: rotation._replace(
            frequencies=rotation.frequencies[::-1]
        )
    ),
    "frequencies are twice as high": _rotation(
        lambda rotation, formula: rotation._replace(
            frequencies=2 * rotation.frequencies
        )
    ),
    **_low_precision("bfloat16", _bfloat16),
    **_low_precision("float16", _float16),
}


def _wrong_frequencies(rotation: Rotation, length: int) -> dict[str, Rotation]:
    """Return wrong rotations whose names depend on the encoding and its options."""
    wrong: dict[str, Rotation] = {}
    halves = "halves rotate instead of neighbours"
    what = (
        halves if _are_neighbours(rotation) else "neighbours rotate instead of halves"
    )
    wrong[what] = _other_layout(rotation)
    if rotation.scale != 1:
        factor = f"the attention factor, {rotation.scale:.4g},"
        wrong[f"{factor} is missing"] = rotation._replace(scale=1.0)
        wrong[f"{factor} counts twice"] = rotation._replace(scale=rotation.scale**2)
        wrong[f"{factor} is that of logits"] = rotation._replace(
            scale=rotation.scale**0.5
        )
    if rotation.part.constructor is None:
        return wrong
    make, options = rotation.part.constructor.func, rotation.part.constructor.keywords
    base = options.get("base", 10_000.0)
    with_options = {
        f"the base is {other:,.0f}": {"base": other}
        for other in _BASES
        if other != base
    }
    if not rotation.part.traits.cacheable:
        wrong["frequencies are those of short inputs"] = rotation_of(rotation.part, 2)
        long = options["original_length"] + 1
        wrong["frequencies are those of long inputs"] = rotation_of(rotation.part, long)
    head_size, rotated = options["head_size"], rotation.pairs.size
    if options.get("fraction", 1) != 1:
        whole = base ** (rotated / head_size)
        with_options["exponents are those of whole heads"] = {"base": whole}
        if head_size % 2 == 0:
            with_options["all dimensions rotate"] = {"fraction": 1.0}
    if options.get("proportional", 1) != 1:
        with_options["no frequency is 0"] = {"proportional": 1.0}
    for name, changed in with_options.items():
        (part,) = make(**options | changed).parts
        wrong[name] = rotation_of(part, length)
    if make.__name__ != "rope":
        kept = ("head_size", "base", "layout", "fraction", "proportional")
        (part,) = rope(
            **{key: value for key, value in options.items() if key in kept}
        ).parts
        plain = rotation_of(part, length)
        if plain.scale != rotation.scale:
            wrong["frequencies and scale are those of unscaled RoPE"] = plain
        unscaled, scaled = plain.frequencies, rotation.frequencies
        ratio = np.divide(
            scaled, unscaled, out=np.ones_like(scaled), where=unscaled != 0
        )
        for what, power in {
            "frequencies are those of unscaled RoPE": 0,
            "frequencies are scaled twice": 2,
            "frequencies are scaled the other way": -1,
        }.items():
            wrong[what] = rotation._replace(frequencies=unscaled * ratio**power)
    return wrong


# Positions #######################################################################################


def _wrong_positions(formula: Formula) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return wrong positions of queries and keys."""
    q, k = formula.positions_q, formula.positions_k
    keys = np.arange(k.shape[1])
    first = (
        0 * formula.index_q if formula.steps else formula.index_q - formula.index_q[0]
    )
    index_q, index_k, from_0 = (
        _of_all_rows(x, like)
        for x, like in ((formula.index_q, q), (keys, k), (first, q))
    )
    wrong = {
        "positions are rounded to bfloat16": (_bfloat16(q), _bfloat16(k)),
        "positions are rounded to float16": (_float16(q), _float16(k)),
        "positions are indices in the row": (index_q, index_k),
        "queries are at 0, 1, ...": (from_0, k),
        "positions are indices, and queries at 0, 1, ...": (from_0, index_k),
        "queries are at their indices": (index_q, k),
        "keys are at their indices": (q, index_k),
        "all rows have the positions of the first": (
            np.broadcast_to(q[:1], q.shape), np.broadcast_to(k[:1], k.shape),
        ),
        "positions count from 1": (q + 1, k + 1),
        "queries are one position late": (q + 1, k),
        "queries are one position early": (q - 1, k),
    }  # fmt: skip
    if formula.rotation is not None:
        wrong["queries are not rotated"] = (0 * q, k)
        wrong["keys are not rotated"] = (q, 0 * k)
        wrong["keys are rotated twice"] = (q, 2 * k)
    if q.ndim > 2:
        wrong["axes are in reverse order"] = (q[..., ::-1], k[..., ::-1])
        for axis in range(q.shape[-1]):
            only = [axis] * q.shape[-1]
            wrong[f"all axes have the positions of axis {axis}"] = (
                q[..., only],
                k[..., only],
            )
    return wrong


def _of_all_rows(positions: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return positions `[L]` in the shape of `like`."""
    return np.broadcast_to(positions.reshape(1, -1, *[1] * (like.ndim - 2)), like.shape)


_TABLE: Mapping[str, Mistake] = {
    **_MASKS,
    **_WINDOWS,
    **_CHUNKS,
    **_HEADS,
    **_SCALES,
    **_TEMPERATURES,
    **_BIASES,
    **_ROTATIONS,
}
