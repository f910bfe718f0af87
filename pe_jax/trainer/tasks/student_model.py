"""What a student keeps of its teacher's positions: the windows of layers, and a table's mean.

A window is a part of how a layer attends, not of how it tells positions apart. A ModernBERT that
attends to all tokens in all layers is another model.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from pe_jax.common.schema import changed
from pe_jax.encodings import Context, Params, PositionEncoding, embed
from pe_jax.encodings.part import Part
from pe_jax.models.config import BertConfig, ModelChanges

_KEYS = ("window", "chunks", "causal")


def windows_of(encoding: PositionEncoding) -> PositionEncoding:
    """Return the windows of an encoding, by layer where they differ; without any, `none`."""

    def only(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(part for part in parts if part.key in _KEYS)

    layers = tuple(
        PositionEncoding(parts=only(layer.parts)) for layer in encoding.layers
    )
    if not any(layer.parts for layer in layers):
        layers = ()
    return PositionEncoding(parts=only(encoding.parts), layers=layers)


def with_windows(
    student: PositionEncoding, teacher: PositionEncoding
) -> PositionEncoding:
    """Return a student's encoding with the windows of its teacher, unless it has its own.

    `t5` becomes `t5+cycle(none, window(max_distance=64), window(max_distance=64))`, one table for
    all layers, and `per_layer(t5)` becomes
    `per_layer(t5, t5+window(max_distance=64), t5+window(max_distance=64))`.
    """
    windows = windows_of(teacher)
    if windows_of(student)._all_parts or not windows._all_parts:
        return student
    if not (student.layers and windows.layers):
        return student + windows
    count = math.lcm(len(student.layers), len(windows.layers))
    layers = tuple(student._at_layer(i) + windows._at_layer(i) for i in range(count))
    return PositionEncoding(
        parts=student.parts + windows.parts, layers=layers, per_layer=student.per_layer
    )


def keep_windows(changes: ModelChanges, teacher: BertConfig) -> ModelChanges:
    """Return the `config.model` of a run with the windows of its teacher."""
    encoding = changes.resolve(teacher).encoding()
    joined = with_windows(encoding, teacher.encoding())
    if joined == encoding:
        return changes
    return changed(changes, {"position": joined.name})


def without_positions(model: BertConfig) -> BertConfig:
    """Return a model without positions, whose windows stay."""
    return dataclasses.replace(model, position=windows_of(model.encoding()).name)


@functools.partial(jax.jit, static_argnames=("teacher", "length"))
def keep_table_mean(
    teacher: BertConfig, teacher_params: Params, student_params: Params, length: int
) -> Params:
    """Return the parameters of the student's `Bert` with the mean of the teacher's first `length`
    position vectors added to the embedding of token types, or of tokens where there is none.

    The mean is the same for all tokens. So it is no position, and a student without the table
    should keep it.
    """
    zeros = jnp.zeros((1, length, teacher.hidden_size))
    tokens = jnp.zeros((1, length), jnp.int32)
    context = Context(positions_q=range(length), tokens=tokens)
    position_params = teacher_params.get("position", {})
    vectors = embed(zeros, teacher.encoding(), position_params, context)
    name = "token_type" if "token_type" in student_params else "token"
    table = student_params[name]["embedding"]
    shifted = table + vectors.mean((0, 1)).astype(table.dtype)
    return {**student_params, name: {"embedding": shifted}}
