"""Documents in one row, and padding on either side."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from pe_jax.attention import document_mask, document_positions
from pe_jax.common.shapes import Array, Bool, Int
from pe_jax.testing.problems import Problems, differences
from pe_jax.testing.subject import LENGTH, ROWS, Mask

ALONE = 3  # Tokens of the documents that are compared with the same ones by themselves.

# Documents of each row, counted from 1; 0 is padding.
DOCUMENTS = np.array([[1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 2, 2, 2, 3, 3, 3]])


def packed() -> tuple[Int[np.ndarray, "B L"], Mask]:
    """Return positions that restart in each of `DOCUMENTS`, and the mask of attention within."""
    ids = jnp.asarray(DOCUMENTS)
    return np.asarray(document_positions(ids)), np.asarray(document_mask(ids, ids))


def document_differences(out: Array, outputs_alone: Callable[[int], Array]) -> Problems:
    """Yield how outputs of `DOCUMENTS` differ from `outputs_alone(first)`, those of each alone."""
    for row, document_ids in enumerate(DOCUMENTS):
        for document in range(1, document_ids.max() + 1):
            inside = document_ids == document
            if inside.sum() == ALONE:
                expected = outputs_alone(int(np.argmax(inside)))[row]
                name = f"row {row}, document {document}"
                yield from differences(name, out[row, inside], expected, 1e-4)


def padded(first: int) -> tuple[Bool[Array, " L"], dict[str, Int[Array, "B L"]]]:
    """Return where `ALONE` tokens are that begin at `first`, amid padding, and all positions by the
    kind of those of padding."""
    index = np.arange(LENGTH) - first
    valid = (index >= 0) & (index < ALONE)
    kinds = {"at 0": 0 * index, "counted on": index, "far away": 1000 * index}
    positions = {}
    for kind, of_padding in kinds.items():
        row = np.where(valid, index, of_padding)
        positions[kind] = np.tile(row, (ROWS, 1))
    return valid, positions
