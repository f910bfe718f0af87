"""Mistakes of position code, each as a change of a `Formula`.

Each function below yields the mistakes of one topic, by name, and none where the formula has
nothing of the kind, such as the bias of a layer without one. To add a mistake, add it to the
function of its topic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from pe_jax.encodings.bias.alibi import slopes as alibi_slopes
from pe_jax.encodings.rotary.rope import rope
from pe_jax.encodings.rotary.rotation import Layout
from pe_jax.encodings.rotary.rotation import pairs as dimension_pairs
from pe_jax.golden.formula import Formula, Rotation, rotation_of

# Name -> what is computed instead. One name may come several times.
Mistakes: TypeAlias = Iterator[tuple[str, Formula]]
Rotations: TypeAlias = Iterator[tuple[str, Rotation]]

_BASES = (10_000.0, 500_000.0, 1_000_000.0)  # That code has as a default.


def mistakes(formula: Formula, others: Mapping[str, Formula], length: int) -> Mistakes:
    """Yield what is often computed instead, by name; one name may have several formulas.

    Args:
      others: the formulas of the other kinds of layers.
      length: of the input, the largest position + 1.
    """
    yield from _masks(formula)
    yield from _windows(formula)
    yield from _chunks(formula)
    yield from _heads(formula)
    yield from _scales(formula)
    yield from _temperatures(formula)
    yield from _biases(formula)
    yield from _rotations(formula)
    yield from _positions(formula)
    yield from _rotations_of_other_layers(formula, others)
    if isinstance(formula.rotation, Rotation):
        for name, rotation in _frequencies(formula.rotation, length):
            yield name, formula._replace(rotation=rotation)


# Masks, windows and chunks #######################################################################


def _masks(formula: Formula) -> Mistakes:
    mask = formula.mask  # [B, Lq, L]
    offsets = _index_offsets(formula)
    is_attended = mask.any(1, keepdims=True)  # Padding is not.
    masks = {
        "the mask is ignored": np.ones_like(mask),
        "keys to the right are masked": mask & (offsets <= 0),
        "keys to the right are not masked": mask | (is_attended & (offsets > 0)),
        "padding and documents are not masked": offsets <= 0,
        "the mask of the first row is that of all": mask[:1],
        "the query's own key is masked": mask & (offsets != 0),
    }
    for name, wrong in masks.items():
        yield name, formula._replace(mask=np.broadcast_to(wrong, mask.shape))


def _index_offsets(formula: Formula) -> np.ndarray:
    """Return the index of each key minus that of the query, `[Lq, L]`."""
    return np.arange(formula.mask.shape[2]) - formula.index_q[:, None]


def _windows(formula: Formula) -> Mistakes:
    left, right = formula.left, formula.right
    if left is None or right is None:
        return
    windows: dict[str, tuple[int | None, int | None]] = {
        "the window is missing": (None, None),
        "the window is one key longer": (left + 1, right + 1),
        "the window is one key shorter": (left - 1, right - 1),
        "the window is twice as wide": (2 * left, 2 * right),
        "the window is half as wide": (left // 2, right // 2),
    }
    if (formula.mask & (_index_offsets(formula) > 0)).any():
        # Causal attention has one side alone, so it cannot lose one of two.
        windows |= {
            "the window has no left side": (0, right),
            "the window has no right side": (left, 0),
            "the window has no limit on the left": (None, right),
            "the window has no limit on the right": (left, None),
        }
    for name, (wrong_left, wrong_right) in windows.items():
        yield name, formula._replace(left=wrong_left, right=wrong_right)


def _chunks(formula: Formula) -> Mistakes:
    size = formula.chunk
    if size is None:
        return
    without = formula._replace(chunk=None)
    yield "attention is not in chunks", without
    yield "chunks are one key longer", formula._replace(chunk=size + 1)
    yield "chunks are one key shorter", formula._replace(chunk=size - 1)
    window = size - 1
    yield "a window stands for chunks", without._replace(left=window, right=window)


# Heads, scale, temperature and bias ##############################################################


def _heads(formula: Formula) -> Mistakes:
    num_heads = formula.q.shape[2]
    num_key_heads = formula.k.shape[2]
    if num_heads == num_key_heads:
        return
    key_heads = {  # Of each head of queries.
        "key heads are tiled instead of repeated": np.arange(num_heads) % num_key_heads,
        "all heads use the first key head": np.zeros(num_heads, int),
    }
    for name, used in key_heads.items():
        k = formula.k[:, :, used]
        v = formula.v[:, :, used]
        yield name, formula._replace(k=k, v=v)


def _scales(formula: Formula) -> Mistakes:
    root = formula.divisor  # sqrt(d)
    num_heads, head_size = formula.q.shape[2:]
    divisors = {
        "logits are not divided by sqrt(d)": 1.0,
        "logits are divided by d": root * root,
        "logits are multiplied by sqrt(d)": 1 / root,
        "d of logits is that of all heads": root * math.sqrt(num_heads),
    }
    if isinstance(formula.rotation, Rotation):
        rotated = formula.rotation.pairs.size
        if rotated != head_size:
            name = "d of logits is the rotated dimensions alone"
            divisors[name] = math.sqrt(rotated)
    for name, divisor in divisors.items():
        yield name, formula._replace(divisor=divisor)


def _temperatures(formula: Formula) -> Mistakes:
    scale = formula.temperature
    if scale is None:
        return
    temperatures = {
        "the temperature is missing": None,
        "the temperature counts twice": lambda x: scale(x) ** 2,
        "the temperature divides": lambda x: 1 / scale(x),
        "the temperature is that of the next position": lambda x: scale(x + 1),
        "the temperature is that of the position before": lambda x: scale(x - 1),
    }
    for name, wrong in temperatures.items():
        yield name, formula._replace(temperature=wrong)


def _biases(formula: Formula) -> Mistakes:
    slopes = formula.slopes  # [H], of ALiBi
    if slopes is None:
        return
    count = slopes.size
    heads = np.arange(count)
    power_of_2 = 2 ** math.ceil(math.log2(count))
    biases = {
        "the bias is missing": 0 * slopes,
        "the bias has the wrong sign": -slopes,
        "the bias counts twice": 2 * slopes,
        "the bias is divided by sqrt(d)": slopes / formula.divisor,
        "slopes are in reverse order": slopes[::-1],
        "slopes are those of 2^(-8 h/H), though H is no power of 2": (
            2.0 ** (-8 * (heads + 1) / count)
        ),
        "slopes begin with 1": 2.0 ** (-8 * heads / count),
        "slopes are those of the next power of 2": alibi_slopes(power_of_2)[:count],
    }
    for name, wrong in biases.items():
        yield name, formula._replace(slopes=wrong)


# Rotations #######################################################################################


def _rotations(formula: Formula) -> Mistakes:
    """Yield mistakes that are possible in every rotation; see `_frequencies`."""
    rotation = formula.rotation
    if rotation is None:
        return
    yield "nothing is rotated", formula._replace(rotation=None)
    if not isinstance(rotation, Rotation):
        return
    frequencies = rotation.frequencies
    wrong: dict[str, dict[str, Any]] = {  # Name -> changes of the rotation.
        "rotations are in the opposite direction": {"frequencies": -frequencies}
    }
    unrotated = formula.q.shape[-1] - rotation.pairs.size
    if unrotated:
        last = rotation.pairs + unrotated
        wrong["the last dimensions rotate instead of the first"] = {"pairs": last}
    wrong["frequencies are in reverse order"] = {"frequencies": frequencies[::-1]}
    wrong["frequencies are twice as high"] = {"frequencies": 2 * frequencies}
    for dtype, rounded in (("bfloat16", _bfloat16), ("float16", _float16)):
        wrong |= {
            f"frequencies are rounded to {dtype}": {"round_frequencies": rounded},
            f"angles are rounded to {dtype}": {"round_angles": rounded},
            f"sines and cosines are rounded to {dtype}": {"round_tables": rounded},
        }
    for name, changes in wrong.items():
        yield name, formula._replace(rotation=rotation._replace(**changes))


def _bfloat16(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


def _float16(x: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(np.float16).astype(np.float64)


def _rotations_of_other_layers(
    formula: Formula, others: Mapping[str, Formula]
) -> Mistakes:
    own = formula.rotation.part if formula.rotation is not None else None
    head_size = formula.q.shape[-1]
    for name, other in others.items():
        rotation = other.rotation
        if not isinstance(rotation, Rotation) or rotation.part == own:
            continue
        # Heads may be smaller than the other layer's.
        if rotation.pairs.max() < head_size:
            yield f"the rotation is that of {name}", formula._replace(rotation=rotation)


def _frequencies(rotation: Rotation, length: int) -> Rotations:
    """Yield wrong rotations whose names depend on the encoding and its options."""
    yield _other_layout(rotation)
    scale = rotation.scale
    if scale != 1:
        factor = f"the attention factor, {scale:.4g},"
        yield f"{factor} is missing", rotation._replace(scale=1.0)
        yield f"{factor} counts twice", rotation._replace(scale=scale**2)
        yield f"{factor} is that of logits", rotation._replace(scale=scale**0.5)
    part = rotation.part
    if part.constructor is None:
        return
    options = part.constructor.keywords
    if not part.traits.cacheable:  # Frequencies depend on the length.
        long = options["original_length"] + 1
        yield "frequencies are those of short inputs", rotation_of(part, 2)
        yield "frequencies are those of long inputs", rotation_of(part, long)
    for name, changes in _wrong_options(rotation, options).items():
        (changed,) = part.constructor.func(**options | changes).parts
        yield name, rotation_of(changed, length)
    if part.constructor.func.__name__ != "rope":
        yield from _unscaled(rotation, options, length)


def _other_layout(rotation: Rotation) -> tuple[str, Rotation]:
    """Rotate halves instead of neighbours, or the other way round."""
    count = len(rotation.pairs)
    name = "neighbours rotate instead of halves"
    layout: Layout = "interleaved"
    if count > 1 and rotation.pairs[0, 1] == 1:
        name = "halves rotate instead of neighbours"
        layout = "half"
    pairs = np.array(list(dimension_pairs(count, layout)))
    return name, rotation._replace(pairs=pairs)


def _wrong_options(
    rotation: Rotation, options: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Return changes of the options of a rotary encoding."""
    base = options.get("base", 10_000.0)
    changes = {
        f"the base is {other:,.0f}": {"base": other}
        for other in _BASES
        if other != base
    }
    head_size = options["head_size"]
    if options.get("fraction", 1) != 1:
        # ω = base^(-2i / d), with d of the head where that of the rotated dimensions is right.
        whole = base ** (rotation.pairs.size / head_size)
        changes["exponents are those of whole heads"] = {"base": whole}
        if head_size % 2 == 0:
            changes["all dimensions rotate"] = {"fraction": 1.0}
    if options.get("proportional", 1) != 1:
        changes["no frequency is 0"] = {"proportional": 1.0}
    return changes


def _unscaled(rotation: Rotation, options: Mapping[str, Any], length: int) -> Rotations:
    """Yield wrong scalings of RoPE's frequencies, for an encoding that scales them."""
    shared = ("head_size", "base", "layout", "fraction", "proportional")
    rope_options = {key: options[key] for key in shared if key in options}
    (part,) = rope(**rope_options).parts
    plain = rotation_of(part, length)
    if plain.scale != rotation.scale:
        yield "frequencies and scale are those of unscaled RoPE", plain
    unscaled = plain.frequencies
    ratio = np.ones_like(rotation.frequencies)
    np.divide(rotation.frequencies, unscaled, out=ratio, where=unscaled != 0)
    powers = {
        "frequencies are those of unscaled RoPE": 0,
        "frequencies are scaled twice": 2,
        "frequencies are scaled the other way": -1,
    }
    for name, power in powers.items():
        yield name, rotation._replace(frequencies=unscaled * ratio**power)


# Positions #######################################################################################


def _positions(formula: Formula) -> Mistakes:
    for name, (wrong_q, wrong_k) in _wrong_positions(formula).items():
        of_terms = formula._replace(positions_q=wrong_q, positions_k=wrong_k)
        yield name, of_terms
        yield name, of_terms._replace(limits_q=wrong_q, limits_k=wrong_k)


def _wrong_positions(formula: Formula) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return wrong positions of queries and keys."""
    q, k = formula.positions_q, formula.positions_k
    index = formula.index_q
    index_q = _of_all_rows(index, q)
    index_k = _of_all_rows(np.arange(k.shape[1]), k)
    # Of the queries of one call; in steps each call has one query.
    from_0 = _of_all_rows(0 * index if formula.steps else index - index[0], q)
    first_q = np.broadcast_to(q[:1], q.shape)
    first_k = np.broadcast_to(k[:1], k.shape)
    wrong = {
        "positions are rounded to bfloat16": (_bfloat16(q), _bfloat16(k)),
        "positions are rounded to float16": (_float16(q), _float16(k)),
        "positions are indices in the row": (index_q, index_k),
        "queries are at 0, 1, ...": (from_0, k),
        "positions are indices, and queries at 0, 1, ...": (from_0, index_k),
        "queries are at their indices": (index_q, k),
        "keys are at their indices": (q, index_k),
        "all rows have the positions of the first": (first_q, first_k),
        "positions count from 1": (q + 1, k + 1),
        "queries are one position late": (q + 1, k),
        "queries are one position early": (q - 1, k),
    }
    if formula.rotation is not None:
        wrong["queries are not rotated"] = (0 * q, k)
        wrong["keys are not rotated"] = (q, 0 * k)
        wrong["keys are rotated twice"] = (q, 2 * k)
    if q.ndim > 2:
        wrong["axes are in reverse order"] = (q[..., ::-1], k[..., ::-1])
        axes = q.shape[-1]
        for axis in range(axes):
            name = f"all axes have the positions of axis {axis}"
            same = [axis] * axes
            wrong[name] = (q[..., same], k[..., same])
    return wrong


def _of_all_rows(positions: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return positions `[L]` in the shape of `like`."""
    return np.broadcast_to(positions.reshape(1, -1, *[1] * (like.ndim - 2)), like.shape)
