"""Arithmetic under the strict modes of `jax_numpy_rank_promotion` and `_dtype_promotion`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def standard_promotion() -> Iterator[None]:
    """Allow NumPy's promotion of ranks and dtypes in a `with` statement or a decorated function.

    The strict modes are for the caller's own code. A hand-written backward pass needs it as well:
    JAX traces that after the call.
    """
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
