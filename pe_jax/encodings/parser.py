"""Names of encodings, as configs and command lines write them.

A name is an expression: encodings joined by `+`, each with options where they differ from the
defaults, `rope(base=160000)+alibi`. `cycle(a, b)` lets the layers take a and b in turn,
`per_layer(a)`, or `own(a)`, gives every layer parameters of its own. It is parsed, never evaluated.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from pe_jax.common.values import split_names
from pe_jax.encodings.encoding import PositionEncoding, cycle, per_layer
from pe_jax.encodings.registry import (
    ENCODINGS,
    OPTIONAL_SIZES,
    REQUIRED,
    SIZES,
    WRAPPERS,
    choices_of,
    option_hint,
    options_of,
    suggestion,
)

# The paper's rows of tables 2 and 3, in its order.
PAPER = (
    "none",
    "learned_absolute",
    "sinusoidal_absolute",
    "learnable_sinusoidal_absolute",
    "learned_relative",
    "sinusoidal_relative",
    "learnable_sinusoidal_relative",
    "learned_absolute+learned_relative",
    "learned_absolute+sinusoidal_relative",
    "learned_absolute+learnable_sinusoidal_relative",
    "learnable_sinusoidal_absolute+learned_relative",
    "learnable_sinusoidal_absolute+sinusoidal_relative",
    "learnable_sinusoidal_absolute+learnable_sinusoidal_relative",
)
_LAYERED = {"cycle": cycle, "per_layer": per_layer, "own": per_layer}
_MOST_PARTS = 100  # Of a name; far more would exceed Python's depth of recursion.
_LONGEST_SHOWN = 200  # Characters of a name in a message.
_EXAMPLES = (
    " Among others there are none, learned_absolute, learned_relative, rope and alibi."
)
_FORM = "write names joined with '+', options in parentheses, as in 'rope(base=160000)+alibi'."


def from_name(
    name: str, *, hidden_size: int, head_size: int, num_heads: int, max_length: int
) -> PositionEncoding:
    """Build the encoding that `name` stands for, such as `"learned_absolute+rope(base=500)"`.

    Args:
      name: encodings joined with `+`, options in parentheses; see the module's docstring.
      hidden_size: D, the dimension of absolute position vectors.
      head_size: d, the dimension of relative ones.
      num_heads: Number H of heads of queries.
      max_length: rows of a learned absolute table.

    Raises:
      ValueError: for a name or option that is not known (the message suggests close matches), an
        option's value of the wrong type, or a family used twice.

    Example:
      >>> from pe_jax import encodings
      >>> sizes = {"hidden_size": 256, "head_size": 64, "num_heads": 4, "max_length": 512}
      >>> encodings.from_name("learned_absolute+rope", **sizes).name
      'learned_absolute+rope'
    """
    sizes = {
        "hidden_size": hidden_size,
        "head_size": head_size,
        "num_heads": num_heads,
        "max_length": max_length,
    }
    try:
        return _read(_parsed(name), sizes)
    except _Unreadable as problem:
        message = str(problem)
        place = "" if repr(name) in message else f" (in {name!r})"
        raise ValueError(
            f"Cannot read the position encoding: {message}{place}. {_FORM.capitalize()}"
        ) from None


def for_text() -> list[str]:
    """Return the names of all encodings of tokens in a row that require no option.

    Those that need causal attention are joined with `causal`. Encodings of positions of several
    axes are left out.
    """
    names = []
    for name, make in ENCODINGS.items():
        if REQUIRED in options_of(make).values():
            continue
        encoding = from_name(
            name, hidden_size=8, head_size=4, num_heads=2, max_length=8
        )
        if any(part.traits.causal_only for part in encoding.parts):
            name = f"{name}+causal"
        if encoding.axes == 1:
            names.append(name)
    return names


def expand_names(text: str) -> list[str]:
    """Split names joined by commas, each once; `all` stands for `for_text()`, `paper` for PAPER."""
    expanded: list[str] = []
    for name in split_names(text):
        if name == "all":
            expanded += for_text()
        elif name == "paper":
            expanded += PAPER
        else:
            expanded.append(name)
    return list(dict.fromkeys(expanded))


def without_options(name: str) -> str:
    """Return the name as tables have it: `rope(base=500)+alibi` is `rope+alibi`,
    `interpolated(rope, factor=4)` is `interpolated(rope)`.

    Raises:
      ValueError: if it cannot be read.
    """
    expression = _parsed(name)
    for node in ast.walk(expression):
        if isinstance(node, ast.Call):
            node.keywords = []
    return ast.unparse(expression).replace(" + ", "+").replace("()", "")


def _parsed(name: str) -> ast.expr:
    shown = repr(name[:_LONGEST_SHOWN])
    if len(name) > _LONGEST_SHOWN:
        shown += "..."
    parts = name.count("+") + name.count("(")
    if parts > _MOST_PARTS:
        raise ValueError(
            f"The position encoding {shown} has {parts:,} '+' and '(', but at most {_MOST_PARTS} "
            "are allowed."
        )
    try:
        expression = ast.parse(name.strip(), mode="eval").body
        ast.unparse(expression)  # Messages show parts of it.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(
            f"Cannot read the position encoding {shown}: {_FORM}"
        ) from None
    return expression


class _Unreadable(Exception):
    """The fault of a name."""


def _read(node: ast.expr, sizes: dict[str, int]) -> PositionEncoding:
    match node:
        case ast.BinOp(left, ast.Add(), right):
            first = _read(left, sizes)
            second = _read(right, sizes)
            if first.layers and second.layers:
                raise _Unreadable("it has more than one 'cycle' or 'per_layer'")
            return first + second
        case ast.Name(name):
            return _call(name, [], [], sizes)
        case ast.Call(ast.Name(name), arguments, keywords):
            return _call(name, arguments, keywords, sizes)
    raise _Unreadable(f"{ast.unparse(node)!r} is not an encoding")


def _call(
    name: str,
    arguments: list[ast.expr],
    keywords: list[ast.keyword],
    sizes: dict[str, int],
) -> PositionEncoding:
    names = [*ENCODINGS, *WRAPPERS, *_LAYERED]
    if name not in names:
        raise _Unreadable(
            f"{name!r} is unknown.{suggestion(name, names) or _EXAMPLES} "
            "docs/catalogue.md lists all names"
        )
    if name in ENCODINGS and arguments:
        raise _Unreadable(f"the options of {name!r} must be written NAME=VALUE")
    inside = [_read(argument, sizes) for argument in arguments]
    if any(encoding.layers for encoding in inside):
        raise _Unreadable("'cycle' and 'per_layer' cannot be inside another encoding")
    if name in _LAYERED:
        if keywords or not inside:
            raise _Unreadable(f"{name!r} takes one or more encodings and no options")
        return _LAYERED[name](*inside)
    if name in WRAPPERS:
        if len(inside) != 1:
            raise _Unreadable(f"{name!r} takes one encoding, as in '{name}(rope)'")
        return WRAPPERS[name](*inside, **_options(name, WRAPPERS[name], keywords))
    make = ENCODINGS[name]
    options = _options(name, make, keywords)
    parameters = inspect.signature(make).parameters
    used = {}
    for size in SIZES:
        if size in parameters:
            is_required = parameters[size].default is REQUIRED
            if is_required or options.get(OPTIONAL_SIZES.get(size, "")):
                used[size] = sizes[size]
    return make(**used, **options)


def _options(
    name: str, make: Callable[..., PositionEncoding], keywords: list[ast.keyword]
) -> dict[str, Any]:
    option_types = typing.get_type_hints(make)
    defaults = options_of(make)
    options: dict[str, Any] = {}
    for keyword in keywords:
        option = str(keyword.arg)
        if option not in defaults:
            raise _Unreadable(
                f"{name!r} has no option {option!r}.{option_hint(name, option, defaults)} "
                f"It has: {', '.join(defaults) or 'none'}"
            )
        if option in options:
            raise _Unreadable(f"the option {option!r} is given twice")
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError:
            problem = f"the value of {option!r} is not a number, a word or a tuple"
            raise _Unreadable(problem) from None
        options[option] = _convert(option, value, option_types[option])
    required = [option for option in defaults if defaults[option] is REQUIRED]
    missing = [repr(option) for option in required if option not in options]
    if missing:
        raise _Unreadable(f"{name!r} needs the option {' and '.join(missing)}")
    return options


def _convert(option: str, value: Any, kind: Any) -> Any:
    is_union = isinstance(kind, types.UnionType)
    for choice in typing.get_args(kind) if is_union else [kind]:
        with contextlib.suppress(TypeError):
            return _as_kind(value, choice)
    kind_name = getattr(kind, "__name__", str(kind).replace("typing.", ""))
    if choices := choices_of(kind):
        kind_name = " or ".join(map(repr, choices))
    raise _Unreadable(f"the option {option!r} takes {kind_name}, got {value!r}")


def _as_kind(value: Any, kind: Any) -> Any:
    """Return `value` as a type or Literal, or raise a TypeError. A whole number is a float as well;
    a truth value is no number, and 1e999 is no float."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is tuple and isinstance(value, tuple):
        return tuple(_as_kind(item, arguments[0]) for item in value)
    if origin is Literal and value in arguments:
        return value
    if kind is float:
        if type(value) in (int, float) and abs(value) <= sys.float_info.max:
            return float(value)
    elif type(value) is kind:
        return value
    raise TypeError
