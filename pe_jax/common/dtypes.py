"""Dtypes of operands, and of sums: float32, or float64 where an operand is (`JAX_ENABLE_X64`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def check_floats(**arrays: object) -> None:
    """Check the dtypes of arrays, by the names of arguments.

    Results have the dtype of an operand: integers would be truncated, 8 bits round to 4 digits, and
    the imaginary part of a complex number would be lost.

    Raises:
      ValueError: for an array that is not float16, bfloat16, float32 or float64.
    """
    for name, x in arrays.items():
        dtype = getattr(x, "dtype", None)
        got = str(dtype)
        if got in _FLOATS:  # In the byte order of JAX.
            continue
        if dtype is None:
            got = type(x).__name__
            fix = f"Pass an array, such as jnp.asarray({name}, jnp.float32)"
        elif jnp.issubdtype(dtype, jnp.complexfloating):
            fix = f"Pass real numbers, such as {name}.real"
        else:
            fix = f"Convert it, such as {name}.astype(jnp.float32)"
        raise ValueError(
            f"{name} must be {', '.join(_FLOATS[:-1])} or float64, got {got}. {fix}."
        )


def wide_dtype(*arrays: Array) -> np.dtype:
    """Return float64 if any array has it, else float32.

    Unlike `jnp.promote_types`, it allows `jax.numpy_dtype_promotion("strict")`.
    """
    has_float64 = any(x.dtype == np.float64 for x in arrays)
    return np.dtype(np.float64 if has_float64 else np.float32)


def at_least_float32(x: Array) -> jax.Array:
    """Return `x` in its `wide_dtype`."""
    return jnp.asarray(x, wide_dtype(x))


@contextlib.contextmanager
def standard_promotion() -> Iterator[None]:
    """Allow NumPy's promotion of ranks and dtypes in a `with` statement or a decorated function.

    `jax_numpy_rank_promotion` and `jax_numpy_dtype_promotion` have strict modes, which are for the
    caller's own code. A hand-written backward pass needs the decorator as well: JAX traces it after
    the call.
    """
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
