"""Windows of a teacher's layers, which its student keeps.

They say which keys a query sees, as the pattern of an attention, and not where: a ModernBERT whose
student saw everything in every layer would be another model.
"""

from __future__ import annotations

import math

from pe_jax.encodings import PositionEncoding
from pe_jax.encodings.part import Part

_KEYS = ("window", "chunks", "causal")


def windows_of(encoding: PositionEncoding) -> PositionEncoding:
    """Return the windows of an encoding, by layer where they differ; without any, `none`."""

    def only(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(part for part in parts if part.key in _KEYS)

    layers = tuple(PositionEncoding(only(layer.parts)) for layer in encoding.layers)
    return PositionEncoding(
        only(encoding.parts), layers if any(layer.parts for layer in layers) else ()
    )


def with_windows(student: PositionEncoding, teacher: PositionEncoding) -> PositionEncoding:
    """Return a student's encoding with the windows of its teacher, unless it has its own.

    Example:
      `t5` becomes `t5+cycle(none, window(reach=64), window(reach=64))`, one table for all layers,
      and `per_layer(t5)` becomes `per_layer(t5, t5+window(reach=64), t5+window(reach=64))`.
    """
    windows = windows_of(teacher)
    if windows_of(student).all_parts or not windows.all_parts:
        return student
    if not (student.layers and windows.layers):
        return student + windows
    count = math.lcm(len(student.layers), len(windows.layers))
    layers = tuple(student.at_layer(i) + windows.at_layer(i) for i in range(count))
    return PositionEncoding(student.parts + windows.parts, layers, student.per_layer)
