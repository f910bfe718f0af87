"""Overlapping windows of inputs that are longer than a model's table of positions."""

from __future__ import annotations

import numpy as np

from pe_jax.common.shapes import Int
from pe_jax.trainer.data.masking import ElementSpec


def window_spec(length: int, width: int) -> ElementSpec:
    """Return shape and dtype of each array of `teacher_windows` of a row of `length` tokens."""
    # An input of n > W tokens has at most 2 n / W windows. Of two neighbouring rows of short inputs
    # at least one is half full.
    windows = ((2 * length // width + 1, width), np.int32)
    return {
        "windows": windows,
        "window_document_ids": windows,
        "window_places": ((length,), np.int32),
    }


def teacher_windows(
    document_ids: Int[np.ndarray, " L"], width: int
) -> dict[str, np.ndarray]:
    """Cut the inputs of a row into windows for a model that reads at most `width` tokens at a time.

    An input of at most `width` tokens is one window. A longer one has windows of `width` tokens
    that start half a width apart, but for the last, which ends with the input. The first and the
    last token of each window are those of the input, for BERT `[CLS]` and `[SEP]`. A token takes
    its hidden state from the window whose middle is nearest to it, the earlier of two.

    Args:
      document_ids: the number of each token's input, from 1 in the order of the row; 0 at padding.
      width: W, at least 4.

    Returns:
      The windows, packed into R rows of W tokens; int32. windows `[R, W]`: where in the row each
      token is. window_document_ids `[R, W]`: a number for each window, 0 at padding. window_places
      `[L]`: where in the R · W tokens the state of each token of the row is.
    """
    stride = -(-width // 2)
    spec = window_spec(len(document_ids), width)
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.items()}
    windows = arrays["windows"].reshape(-1)  # Views.
    numbers = arrays["window_document_ids"].reshape(-1)
    places = arrays["window_places"]
    full = 0  # Tokens in the rows that have been begun.
    free = 0  # Where the row of short inputs has room.
    count = 0  # Windows.
    for document in range(1, document_ids.max(initial=0) + 1):
        inside = np.flatnonzero(document_ids == document)
        size = len(inside)
        last = max(size - width, 0) + 1
        # Of what follows the first token in each window.
        starts = np.minimum(np.arange(1, last + stride, stride), last)
        begin = free
        if size > width or size > -free % width:
            begin = full
            full += len(starts) * width
        if size <= width:
            free = begin + size
        for number, start in enumerate(starts):
            window = inside
            if size > width:
                window = inside[np.r_[0, start : start + width - 2, size - 1]]
            place = begin + number * width
            windows[place : place + len(window)] = window
            count += 1
            numbers[place : place + len(window)] = count
        middles = starts + (width - 3) / 2
        owner = np.abs(np.arange(size)[:, None] - middles).argmin(1)
        places[inside] = begin + owner * width + np.arange(size) - starts[owner] + 1
    return arrays
