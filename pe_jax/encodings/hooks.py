"""Hooks that others wrote: their errors name them, and what they return is checked."""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pe_jax.encodings.part import LogitTerms, Part

_BY_OFFSET = ("key_vectors", "query_vectors", "value_vectors", "bias")
_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (jax.__file__, np.__file__, os.path.dirname(__file__))
)


def with_notes(part: Part, name: str) -> Part:
    """Return `part` whose hooks add a note to their errors: hook, encoding and the last line
    outside of this library, JAX and NumPy. Terms of the offset of a wrong shape are errors."""
    noted: dict[str, Any] = {}
    for hook, function in vars(part).items():
        if callable(function) and hook != "constructor":
            noted[hook] = _noted(function, f"hook {hook!r} of {name}")
    if part.offsets:
        terms: dict[str, Any] = {}
        for term in _BY_OFFSET:
            function = getattr(part.offsets, term)
            if function:
                where = f"OffsetTerms({term}=...) of {name}"
                terms[term] = _shaped(_noted(function, where), where, term == "bias")
        noted["offsets"] = part.offsets.replace(**terms)
    return part.replace(**noted)


def _noted(hook: Callable[..., Any], where: str) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(*args: Any) -> Any:
        try:
            result = hook(*args)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            for frame in reversed(frames):
                if not frame.filename.startswith(_LIBRARIES):
                    place = f"{frame.filename}:{frame.lineno}: {frame.line}"
                    error.add_note(f"In {where}, {place}")
                    break
            raise
        if isinstance(result, LogitTerms):
            function = _noted(result.function, f"LogitTerms, {where}")
            return result.replace(function=function)
        return result

    return call


def _shaped(
    function: Callable[..., Any], where: str, is_bias: bool
) -> Callable[..., Any]:
    """Return `function` of offsets, which must return a bias or vector for each of them."""
    vector = "" if is_bias else ", d"

    @functools.wraps(function)
    def call(params: Any, offset: Any, context: Any) -> Any:
        result = function(params, offset, context)
        shape = np.shape(result)
        offset_shape = np.shape(offset)
        further_axes = len(shape) - len(offset_shape)  # Of heads, of vectors, or both.
        expected = (0, 1) if is_bias else (1, 2)
        if further_axes not in expected or shape[: len(offset_shape)] != offset_shape:
            sizes = ", ".join(map(str, offset_shape))
            raise ValueError(
                f"{where} must return [{sizes}{vector}] or [{sizes}, H{vector}] for offsets "
                f"[{sizes}], got {list(shape)}."
            )
        return result

    return call
