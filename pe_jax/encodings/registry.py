"""Functions that make encodings: each is named after itself, and configs find it by that name."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec

import jax
import numpy as np

from pe_jax.common.errors import did_you_mean
from pe_jax.encodings.encoding import (
    PositionEncoding,
    checked_encoding,
    map_parts,
    none,
)
from pe_jax.encodings.hooks import with_notes
from pe_jax.encodings.part import Part, no_parameters

# By name: every encoding, and every function that changes another encoding.
ENCODINGS: dict[str, Callable[..., PositionEncoding]] = {"none": none}
WRAPPERS: dict[str, Callable[..., PositionEncoding]] = {}

# The sizes of a model, which every encoding calls by the same names.
SIZES = ("hidden_size", "head_size", "num_heads", "max_length")
# The largest integer of an encoding, and the largest array of its parameters: 2 GiB of float32.
_MOST, _MOST_NUMBERS = 2**24, 2**29
_SMALLEST, _LARGEST = (
    float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max)
)
REQUIRED = inspect.Parameter.empty  # The default of an option that has none.

# Names in other libraries and papers or former ones, and those here.
_SYNONYMS = {
    "clip": "max_distance",
    "max_relative_positions": "max_distance",
    "reach": "max_distance",
    "extent": "max_distance",
    "buckets": "num_buckets",
    "longest": "num_positions",
    "npos_max": "num_positions",
    "length": "original_length",
    "factorised": "factorized",
    "centred": "centered",
    "randomised": "randomized",
    "normalised_index": "normalized_index",
    "rope_centred": "rope_centered",
    "registered": "register_encoding",
    "named": "define_encoding",
    "rotary": "rope",
    "roformer": "rope",
    "theta": "base",
    "rope_theta": "base",
    "max_wavelength": "base",
    "nope": "none",
    "shaw": "learned_relative",
    "sliding_window": "window",
    "make": "from_name",
}
# Former options whose names other encodings used in another sense.
_FORMER_OPTIONS = {
    "inkling": {"clip": "max_norm", "extent": "max_distance, which is one less"},
}

_P = ParamSpec("_P")


def define_encoding(make: Callable[_P, Part]) -> Callable[_P, PositionEncoding]:
    """Turn a function that makes a part into one that makes an encoding, named after it.

    All arguments are keyword-only: the sizes in `SIZES` that it uses, then options. The name is
    what a config writes: the function's own, with the options that differ from their defaults.
    """

    @functools.wraps(make)
    def build(*args: _P.args, **arguments: _P.kwargs) -> PositionEncoding:
        _check_arguments(build, arguments, args)
        part = make(*args, **arguments)
        if not str(make.__module__).startswith("pe_jax."):
            part = with_notes(part, build.__name__)
        _check_parameters(build.__name__, part, arguments)
        open_sizes = [size for size in SIZES[:3] if getattr(part.traits, size) is None]
        known: dict[str, Any] = {size: arguments.get(size) for size in open_sizes}
        params_key = part.params_key or make.__name__
        part = part.replace(traits=part.traits.replace(**known), params_key=params_key)
        return _encoding(part, build, arguments)

    signature = inspect.signature(make).replace(return_annotation=PositionEncoding)
    build.__signature__ = signature  # type: ignore[attr-defined]
    return build


def _check_arguments(
    build: Callable[..., PositionEncoding],
    arguments: Mapping[str, Any],
    args: tuple = (),
) -> None:
    parameters = inspect.signature(build).parameters
    if args and all(each.kind is each.KEYWORD_ONLY for each in parameters.values()):
        names = ", ".join(f"{name}=..." for name in parameters)
        raise TypeError(
            f"{build.__name__}() takes keyword arguments only, got {reprlib.repr(args[0])}: write "
            f"{build.__name__}({names}), of which options may be left out."
        )
    for name in arguments.keys() - parameters.keys():
        raise TypeError(
            f"{build.__name__}() has no argument {name!r}."
            f"{option_hint(build.__name__, name, parameters)} It has: "
            f"{', '.join(parameters) or 'none'}."
        )
    for name, value in arguments.items():
        _check_numbers(build.__name__, name, value, str(parameters[name].annotation))
        if isinstance(value, jax.Array):
            how = (
                "learnable=True"
                if "learnable" in parameters
                else "of an encoding that learns"
            )
            raise ValueError(
                f"{name} of {build.__name__} must be a Python value, got {jax.typeof(value)}: "
                "options are fixed when an encoding is built. Arrays, as under jax.vmap, go into "
                f"parameters ({how}); float(...) makes a number of a known array."
            )


def _check_numbers(encoding: str, name: str, value: Any, annotation: str) -> None:
    """Raise a ValueError for a size of an array that fits nowhere, or a number beyond float32."""
    numbers: Iterable[Any] = value if isinstance(value, tuple | list) else (value,)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float | np.number):
            continue
        size: Any = abs(number)
        if "float" in annotation or isinstance(number, float | np.floating):
            if not (size == 0 or _SMALLEST <= size <= _LARGEST):
                raise ValueError(
                    f"{name} of {encoding} must be a float32 number, 0 or from {_SMALLEST:.2g} to "
                    f"{_LARGEST:.2g} in magnitude, got {reprlib.repr(number)}."
                )
        elif size > _MOST:
            raise ValueError(
                f"{name} of {encoding} must be at most {_MOST:,}, got {reprlib.repr(number)}."
            )


def _check_parameters(encoding: str, part: Part, arguments: Mapping[str, Any]) -> None:
    """Raise a ValueError for a parameter of more than 2^29 numbers; none is drawn."""
    if part.init is no_parameters:
        return
    shapes = jax.eval_shape(lambda: part.init(jax.random.key(0)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        if leaf.size > _MOST_NUMBERS:
            key = jax.tree_util.keystr(path, simple=True, separator="/")
            options = ", ".join(
                f"{name}={value!r}" for name, value in arguments.items()
            )
            raise ValueError(
                f"{encoding}({options}): the parameter {key} would have {leaf.size:,} numbers, at "
                f"most {_MOST_NUMBERS:,} are allowed. Use smaller sizes."
            )


def _encoding(
    part: Part,
    build: Callable[..., PositionEncoding],
    arguments: Mapping[str, Any],
    *inside: PositionEncoding,
) -> PositionEncoding:
    """The encoding of one part, named after `build(*inside, **arguments)`, which makes it again."""
    used = {
        key: arguments[key]
        for key, parameter in inspect.signature(build).parameters.items()
        if key in arguments and arguments[key] != parameter.default
    }
    options = {key: value for key, value in used.items() if key not in SIZES}
    name = call_text(build.__name__, options, *(encoding.name for encoding in inside))
    try:
        hash(tuple(used.values()))
    except TypeError:  # Such as a list: neither equal to another build nor pickled.
        constructor = None
    else:
        constructor = functools.partial(build, *inside, **used)
    return PositionEncoding(parts=(part.replace(name=name, constructor=constructor),))


def register_encoding(make: Callable[_P, Part]) -> Callable[_P, PositionEncoding]:
    """Do as `define_encoding`, and let configs find the encoding by its name."""
    ENCODINGS[make.__name__] = encoding = define_encoding(make)
    return encoding


def register_wrapper(
    make: Callable[Concatenate[Part, _P], Part],
) -> Callable[Concatenate[PositionEncoding, _P], PositionEncoding]:
    """Turn a function that changes a part into one that changes all parts of an encoding, known to
    configs as `name(encoding, option=...)`. Parameters keep their keys."""

    @functools.wraps(make)
    def build(
        encoding: PositionEncoding, *args: _P.args, **options: _P.kwargs
    ) -> PositionEncoding:
        _check_arguments(build, options)
        checked_encoding(encoding)

        def wrap(part: Part) -> Part:
            changed = make(part, *args, **options).replace(params_key=part.key)
            return _encoding(
                changed, build, options, PositionEncoding(parts=(part,))
            ).parts[0]

        return map_parts(wrap, encoding)

    part, *options = inspect.signature(make).parameters.values()
    encoding = part.replace(name="encoding", annotation=PositionEncoding)
    signature = inspect.Signature(
        [encoding, *options], return_annotation=PositionEncoding
    )
    build.__signature__ = signature  # type: ignore[attr-defined]
    WRAPPERS[make.__name__] = build
    return build


def suggestion(name: str, known: Collection[str]) -> str:
    """` Did you mean rope?`, for a name that is misspelt or that others use; or nothing."""
    name = _SYNONYMS.get(name.lower(), name.lower())
    return f" Did you mean {name}?" if name in known else did_you_mean(name, known, 5)


def option_hint(encoding: str, option: str, known: Collection[str]) -> str:
    """` Did you mean base?`, for an option that an encoding of this name does not have."""
    former = _FORMER_OPTIONS.get(encoding, {}).get(option)
    return f" Did you mean {former}?" if former else suggestion(option, known)


def options_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function that makes an encoding, with their defaults, `REQUIRED` for none:
    its keyword-only parameters without the sizes."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in SIZES
    }


def call_text(name: str, options: Mapping[str, Any], *encodings: str) -> str:
    """`name(encoding, option=value, ...)` as a config writes it; whole floats without their point.

    Args:
      encodings: names of those that a wrapper changes.
    """

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return f"({', '.join(map(text, value))}{',' if len(value) == 1 else ''})"
        return (
            repr(value).removesuffix(".0") if isinstance(value, float) else repr(value)
        )

    inside = (
        *encodings,
        *(f"{option}={text(value)}" for option, value in options.items()),
    )
    return f"{name}({', '.join(inside)})" if inside else name
