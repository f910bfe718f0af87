"""Windows of a teacher's layers, which its student keeps.

A window is a part of how a layer attends, not of how it tells positions apart. A ModernBERT that
attends to all tokens in all layers is another model.
"""

from __future__ import annotations

import dataclasses
import math

from pe_jax.configs.model import BertConfig, ModelChanges
from pe_jax.encodings import PositionEncoding
from pe_jax.encodings.part import Part
from pe_jax.schema import changed

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


def keep_windows(
    model: BertConfig | ModelChanges, teacher: BertConfig
) -> BertConfig | ModelChanges:
    """Return the `config.model` of a run with the windows of its teacher, unless it is resolved."""
    if not isinstance(model, ModelChanges):
        return model
    encoding = model.applied(teacher).encoding()
    joined = with_windows(encoding, teacher.encoding())
    return model if joined == encoding else changed(model, {"position": joined.name})


def without_positions(model: BertConfig) -> BertConfig:
    """Return a model without positions, whose windows stay."""
    return dataclasses.replace(model, position=windows_of(model.encoding()).name)
