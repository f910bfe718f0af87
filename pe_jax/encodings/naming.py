"""Functions that make encodings: each is named after itself, and configs find it by that name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec

from pe_jax.encodings.encoding import PositionEncoding, none
from pe_jax.encodings.part import Part

# By name: every encoding, and every function that changes another encoding.
ENCODINGS: dict[str, Callable[..., PositionEncoding]] = {"none": none}
WRAPPERS: dict[str, Callable[..., PositionEncoding]] = {}

# The sizes of a model, which every encoding calls by the same names.
SIZES = ("hidden_size", "head_size", "num_heads", "max_length")
REQUIRED = inspect.Parameter.empty  # The default of an option that has none.

_P = ParamSpec("_P")


def named(make: Callable[_P, Part]) -> Callable[_P, PositionEncoding]:
    """Turn a function that makes a part into one that makes an encoding, named after it.

    All arguments are keyword-only: the sizes in `SIZES` that it uses, then options. The name is
    what a config writes: the function's own, with the options that differ from their defaults. Its
    traits have the sizes that `make` leaves open.
    """
    defaults = options_of(make)

    @functools.wraps(make)
    def build(*args: _P.args, **arguments: _P.kwargs) -> PositionEncoding:
        part = make(*args, **arguments)
        known: dict[str, Any] = {
            size: arguments[size]
            for size in SIZES[:3]
            if size in arguments and getattr(part.traits, size) is None
        }
        part = part._replace(traits=part.traits._replace(**known))
        name = call_text(make.__name__, changed(arguments, defaults))
        return _encoding(part, name, part.family or make.__name__, build, arguments)

    signature = inspect.signature(make)
    build.__signature__ = signature.replace(return_annotation=PositionEncoding)  # type: ignore[attr-defined]
    return build


def _encoding(
    part: Part,
    name: str,
    family: str,
    build: Callable[..., PositionEncoding],
    arguments: Mapping[str, Any],
    *inside: PositionEncoding,
) -> PositionEncoding:
    """The encoding of one part, which `build(*inside, **arguments)` makes again."""
    signature = inspect.signature(build).parameters
    used = {
        key: arguments[key]
        for key, parameter in signature.items()
        if key in arguments and arguments[key] != parameter.default
    }
    try:
        hash(tuple(used.values()))
    except TypeError:  # Such as a list: neither equal to another build nor pickled.
        recipe = None
    else:
        recipe = functools.partial(build, *inside, **used)
    return PositionEncoding((part._replace(name=name, family=family, recipe=recipe),))


def registered(make: Callable[_P, Part]) -> Callable[_P, PositionEncoding]:
    """`named`, and known to configs by that name."""
    ENCODINGS[make.__name__] = encoding = named(make)
    return encoding


def wrapper(
    make: Callable[Concatenate[Part, _P], Part],
) -> Callable[Concatenate[PositionEncoding, _P], PositionEncoding]:
    """Turn a function that changes a part into one that changes all parts of an encoding, known to
    configs as `name(encoding, option=...)`. Parameters keep their keys."""
    defaults = options_of(make)

    @functools.wraps(make)
    def build(encoding: PositionEncoding, *args: _P.args, **options: _P.kwargs) -> PositionEncoding:
        text = call_text("", changed(options, defaults))[1:-1]

        def wrap(part: Part) -> Part:
            name = f"{make.__name__}({', '.join(filter(None, (part.name, text)))})"
            changed_part, alone = make(part, *args, **options), PositionEncoding((part,))
            return _encoding(changed_part, name, part.key, build, options, alone).parts[0]

        return encoding.map_parts(wrap)

    WRAPPERS[make.__name__] = build
    return build


def options_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function that makes an encoding, with their defaults: its keyword-only
    parameters without the sizes."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in SIZES
    }


def changed(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from their defaults, in the order of the latter; a required one, with
    the default `REQUIRED`, always does."""
    return {
        name: options[name]
        for name, default in defaults.items()
        if name in options and options[name] != default
    }


def call_text(name: str, options: Mapping[str, Any]) -> str:
    """`name(option=value, ...)` as a config writes it; whole floats without their point."""

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return f"({', '.join(map(text, value))}{',' if len(value) == 1 else ''})"
        return repr(value).removesuffix(".0") if isinstance(value, float) else repr(value)

    inside = ", ".join(f"{option}={text(value)}" for option, value in options.items())
    return f"{name}({inside})" if inside else name
