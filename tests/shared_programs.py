"""Runs of the same settings share their programs within a process: of a test's run, tracing and
compiling is nearly all."""

import dataclasses
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any

from jax.custom_batching import custom_vmap
from ml_collections import ConfigDict

SHARED = ("pe_jax.tasks.", "pe_jax.training.", "pe_jax.reports.", "pe_jax.length_generalisation.")


def key(x: Any) -> Hashable:
    """Equal for functions that have the same code and close over equal things, however deep.

    Raises:
      TypeError: for a function of something that cannot be hashed, such as an array.
    """
    match x:
        case types.FunctionType():
            held = [cell.cell_contents for cell in x.__closure__ or ()]
            return x.__code__, key((held, x.__defaults__, x.__kwdefaults__))
        case types.MethodType():
            return key((x.__func__, x.__self__))
        case functools.partial():
            return functools.partial, key((x.func, x.args, x.keywords))
        case custom_vmap():  # Its rule closes over it again.
            return custom_vmap, x.vmap_rule.__code__, key(x.fun)
        case tuple() | list():
            return type(x), *map(key, x)
        case set():
            return set, frozenset(map(key, x))
        case dict() | ConfigDict():
            return type(x), *(key(item) for item in sorted(x.items()))
        case _ if dataclasses.is_dataclass(x) and not isinstance(x, type):
            fields = [field.name for field in dataclasses.fields(x) if field.compare]
            return type(x), key([getattr(x, name) for name in fields])
        case _:
            hash(x)
            return type(x), x


def remembering(jit: Callable) -> Callable:
    """`jax.jit`, which compiles a function of the library only once if it is given again."""
    made: dict[Hashable, Any] = {}

    @functools.wraps(jit)
    def jit_or_recall(fun=None, **options):
        code = fun.func if isinstance(fun, functools.partial) else fun
        if not (getattr(code, "__module__", None) or "").startswith(SHARED):
            return jit(fun, **options) if fun is not None else jit(**options)
        try:
            asked = key((fun, options))
        except TypeError:
            return jit(fun, **options)
        if asked not in made:
            made[asked] = jit(fun, **options)
        return made[asked]

    return jit_or_recall
