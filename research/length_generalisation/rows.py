"""Tasks as rows of tokens for one model: what it reads, and where it answers what.

An encoder reads the input and as many blanks as the answer has symbols, all at once, and answers at
the blanks (Ruoss et al.). A decoder reads the input, a separator and the answer, and answers each
token with the next one (Kazemnejad et al.): if it does so with the true answer before its eyes, it
also writes it by itself, choosing the most likely token each time.
"""

from __future__ import annotations

import numpy as np

from pe_jax.common.shapes import Int
from pe_jax.trainer.training.pytrees import HostBatch
from research.length_generalisation.tasks import AlgorithmicTask

PAD, BLANK, FIRST = (
    0,
    1,
    2,
)  # The separator is a blank; symbols are numbered from FIRST.


def row_length(task: AlgorithmicTask, length: int) -> int:
    """Return the length of a row for inputs of up to this length: a multiple of it, and one more.
    Tasks whose rows are equally long run in the same compiled program."""
    return length * -(-(task.answer_length(length) - 1) // length) + length + 1


def vocabulary_size(tasks: dict[str, AlgorithmicTask]) -> int:
    """Return the vocabulary size of a model for any of these tasks, which share its programs."""
    return FIRST + max(task.symbols for task in tasks.values())


def rows(
    task: AlgorithmicTask,
    rng: np.random.Generator,
    lengths: Int[np.ndarray, " N"],
    size: int,
) -> HostBatch:
    """A row of `size` tokens for an input of each of these lengths.

    Returns:
      `tokens` that are read, `targets` where there is an answer to a token, `asked` True there, and
      `valid` False at padding: `[N, T]` each.
    """
    shape = (len(lengths), size)
    tokens, targets = np.full(shape, PAD, np.int32), np.zeros(shape, np.int32)
    asked, valid = np.zeros(shape, bool), np.zeros(shape, bool)
    for length in np.unique(lengths):
        these = np.flatnonzero(lengths == length)
        strings = task.sample(rng, len(these), int(length))
        begin, width = strings.inputs.shape[1], strings.answers.shape[1]
        end = begin + width
        tokens[these, :begin] = strings.inputs + FIRST
        tokens[these, begin:end] = BLANK
        if task.causal:
            tokens[these, begin + 1 : end] = strings.answers[:, :-1] + FIRST
        targets[these, begin:end] = strings.answers + FIRST
        asked[these, begin:end] = True if strings.asked is None else strings.asked
        valid[these, :end] = True
    return {"tokens": tokens, "targets": targets, "asked": asked, "mask": valid}
