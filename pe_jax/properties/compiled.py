"""`jax.jit` for functions of measured arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array

F = TypeVar("F", bound=Callable[..., object])


def compiled(*static_argnames: str, refuse_nan: bool = False) -> Callable[[F], F]:
    """Decorate a function with `jax.jit`; type checkers still see the function's own signature.

    Arguments annotated `Float[...]` are cast to float32 unless they are wider. A complex one raises
    `ValueError`, by name.

    Args:
      refuse_nan: raise `ValueError` for NaN in these arguments as well, unless the call is traced.
        For results that cannot be NaN themselves, such as integers.
    """

    def decorate(function: F) -> F:
        parameters = inspect.signature(function).parameters
        annotations = {name: str(parameters[name].annotation) for name in parameters}

        def mapped(leaf_function: Callable[[str, Array], Array], call: F) -> F:
            """Return `call` on arguments whose arrays went through `leaf_function(name, array)`."""

            def argument(name: str, value: object) -> object:
                if not annotations.get(name, "").startswith("Float["):
                    return value
                return jax.tree.map(functools.partial(leaf_function, name), value)

            @functools.wraps(function)
            def mapped_call(*args: object, **kwargs: object) -> object:
                surplus = args[len(annotations) :]  # For Python's own error.
                named = {name: argument(name, value) for name, value in kwargs.items()}
                return call(*map(argument, annotations, args), *surplus, **named)

            return cast(F, mapped_call)

        of_floats = mapped(_as_float, function)
        jitted = cast(F, jax.jit(of_floats, static_argnames=static_argnames))
        return mapped(_without_nan, jitted) if refuse_nan else jitted

    return decorate


def _as_float(name: str, x: Array) -> jax.Array:
    x = jnp.asarray(x)
    refuse_complex(name, x)
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    if is_float and jnp.finfo(x.dtype).bits >= 32:
        return x
    return x.astype(jnp.float32)


def refuse_complex(name: str, x: Array) -> None:
    """Raise `ValueError` for a complex array."""
    if jnp.iscomplexobj(x):
        raise ValueError(
            f"{name} must be real, got {x.dtype}. Pass its real part or its modulus."
        )


def _without_nan(name: str, x: Array) -> Array:
    if isinstance(x, jax.core.Tracer):
        return x
    count = int(jnp.isnan(x).sum())
    if count:
        raise ValueError(
            f"{name} must not contain NaN, got {count} in {np.size(x)} values."
        )
    return x
