"""Arithmetic under the strict modes of `jax_numpy_rank_promotion` and `_dtype_promotion`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

_P = ParamSpec("_P")
_T = TypeVar("_T")


def standard_promotion(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function that is written for NumPy's promotion of ranks and dtypes.

    The strict modes are for the caller's own code. A hand-written backward pass needs the decorator
    as well: JAX traces it after the call.
    """

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return function(*args, **kwargs)

    return call
