"""Hidden states of the texts that a model reads, in all layers."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from pe_jax.models import BertConfig, hidden_states
from pe_jax.reports.property_report.section import Settings
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import texts
from pe_jax.shapes import Float, Int
from pe_jax.training.pytrees import Params

_BATCH = 16  # Texts at a time.


class Hidden(NamedTuple):
    """What enters the first layer and what leaves each, of C texts at T positions.

    The ends of real texts are left out: [CLS] and [SEP] are at the same position in all texts, so
    what they are and where they are cannot be told apart.

    Attributes:
      states: in a file that has no name and ends with the array; a layer lies in one piece.
      positions: those of the T tokens.
      source: of the texts, for the report.
    """

    states: Float[np.ndarray, "N C T D"]
    positions: Int[np.ndarray, " T"]
    source: str


def hidden(subject: Subject, settings: Settings) -> Hidden:
    """The hidden states of `texts(subject, settings)`, which several parts of a report use."""
    if subject not in settings.hidden:
        settings.hidden[subject] = _hidden(subject, settings)
    return settings.hidden[subject]


def _hidden(subject: Subject, settings: Settings) -> Hidden:
    model, read = subject.model, texts(subject, settings)
    assert model is not None
    count, length = read.tokens.shape
    ends = 0 if subject.tokenizer is None else 1
    positions = np.arange(ends, length - ends)
    shape = (model.num_layers + 1, count, len(positions), model.hidden_size)
    with tempfile.TemporaryFile() as file:  # It stays until the array is dropped.
        states = np.memmap(file, np.float32, "w+", shape=shape)
    size = min(_BATCH, count)
    for first in range(0, count, size):
        rows = np.arange(first, first + size).clip(max=count - 1)  # One shape, one program.
        found = _states(model)(subject.params, read.tokens[rows])
        states[:, rows] = np.asarray(found, np.float32)[:, :, positions]
    return Hidden(states, positions, read.source)


@functools.cache
def _states(model: BertConfig) -> Callable[[Params, np.ndarray], jax.Array]:
    return jax.jit(functools.partial(hidden_states, model))
