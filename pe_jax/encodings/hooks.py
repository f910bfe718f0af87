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

_HOOKS = (
    "init",
    "positions",
    "embed",
    "map_qkv",
    "map_output",
    "logits",
    "scale",
    "sink",
    "map_logits",
)
_BY_OFFSET = ("key_vectors", "query_vectors", "value_vectors", "bias")
_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (jax.__file__, np.__file__, os.path.dirname(__file__))
)


def with_notes(part: Part, name: str) -> Part:
    """`part` whose hooks add a note to their errors: hook, encoding and the last line outside of
    this library, JAX and NumPy. Terms of the offset of a wrong shape are errors."""
    hooks = {hook: getattr(part, hook) for hook in _HOOKS}
    noted: dict[str, Any] = {
        h: _noted(f, f"hook {h!r} of {name}") for h, f in hooks.items() if f
    }
    if part.offsets:
        terms = {term: getattr(part.offsets, term) for term in _BY_OFFSET}
        changed: dict[str, Any] = {
            term: _shaped(
                _noted(function, f"OffsetTerms({term}=...) of {name}"), term, name
            )
            for term, function in terms.items()
            if function
        }
        noted["offsets"] = part.offsets.replace(**changed)
    return part.replace(**noted)


def _noted(hook: Callable[..., Any], where: str) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(*args: Any) -> Any:
        try:
            result = hook(*args)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            outside = [
                frame for frame in frames if not frame.filename.startswith(_LIBRARIES)
            ]
            if outside:
                last = outside[-1]
                error.add_note(
                    f"In {where}, {last.filename}:{last.lineno}: {last.line}"
                )
            raise
        if isinstance(result, LogitTerms):
            function = _noted(result.function, f"LogitTerms, {where}")
            return result.replace(function=function)
        return result

    return call


def _shaped(function: Callable[..., Any], term: str, name: str) -> Callable[..., Any]:
    """`function` of offsets, which must return as many biases or vectors as there are offsets."""
    vector = "" if term == "bias" else ", d"

    @functools.wraps(function)
    def call(params: Any, offset: Any, context: Any) -> Any:
        result = function(params, offset, context)
        shape, axes = np.shape(result), np.ndim(offset) + (term != "bias")
        if len(shape) not in (axes, axes + 1) or shape[: np.ndim(offset)] != np.shape(
            offset
        ):
            of = str(list(np.shape(offset)))[1:-1]
            raise ValueError(
                f"OffsetTerms({term}=...) of {name} must return [{of}{vector}] or "
                f"[{of}, H{vector}] for offsets [{of}], got {list(shape)}."
            )
        return result

    return call
