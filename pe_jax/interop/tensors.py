"""The interface of every checkpoint format: tensors by name, read one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Header(NamedTuple):
    """Shape and dtype of a tensor that is not read yet; dtype by its safetensors name, "BF16"."""

    shape: tuple[int, ...]
    dtype: str


class Tensors(NamedTuple):
    """The headers of all tensors, and `read(name)`, a tensor in its dtype in the file.

    `read` raises ValueError for a damaged file.
    """

    headers: dict[str, Header]
    read: Callable[[str], np.ndarray]
