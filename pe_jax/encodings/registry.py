"""Functions that make encodings: each is named after itself, and configs find it by that name."""

from __future__ import annotations

import functools
import inspect
import reprlib
import typing
from collections.abc import Callable, Collection, Mapping
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
from pe_jax.encodings.parameters import leaf_path
from pe_jax.encodings.part import Part, no_parameters

# By name: every encoding, and every function that changes another encoding.
ENCODINGS: dict[str, Callable[..., PositionEncoding]] = {"none": none}
WRAPPERS: dict[str, Callable[..., PositionEncoding]] = {}

# The sizes of a model, which every encoding calls by the same names.
SIZES = ("hidden_size", "head_size", "num_heads", "max_length")
# Sizes that an encoding takes only together with an option, and that option.
OPTIONAL_SIZES = {"num_heads": "per_head"}
# The largest integer of an encoding, and the largest array of its parameters: 2 GiB of float32.
_MOST = 2**24
_MOST_NUMBERS = 2**29
_FLOAT32 = np.finfo(np.float32)
_SMALLEST = float(_FLOAT32.tiny)
_LARGEST = float(_FLOAT32.max)
REQUIRED = inspect.Parameter.empty  # The default of an option that has none.

# Former names, those in other libraries and papers, and those here. `encoding(option)` is a name
# that one encoding has in another sense.
_OTHER_NAMES = {
    "clip": "max_distance",
    "inkling(clip)": "max_norm",
    "max_relative_positions": "max_distance",
    "reach": "max_distance",
    "extent": "max_distance",
    "inkling(extent)": "max_distance, which is one less",
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

_P = ParamSpec("_P")


def define_encoding(make: Callable[_P, Part]) -> Callable[_P, PositionEncoding]:
    """Turn a function that makes a part into one that makes an encoding, named after it.

    All arguments are keyword-only: the sizes in `SIZES` that it uses, then options. The name is
    what a config writes: the function's own, with the options that differ from their defaults.

    Args:
      make: `(*, sizes and options) -> Part`.

    Returns:
      `(*, sizes and options) -> PositionEncoding`. It raises a TypeError for positional or unknown
      arguments, and a ValueError for another value than those of an option's `Literal`, numbers
      that float32 does not hold, or parameters of more than 2^29 numbers.
    """

    @functools.wraps(make)
    def build(*args: _P.args, **arguments: _P.kwargs) -> PositionEncoding:
        _check_arguments(build, arguments, args)
        part = make(*args, **arguments)
        if not str(make.__module__).startswith("pe_jax."):
            part = with_notes(part, build.__name__)
        _check_parameters(build.__name__, part, arguments)
        built_for: dict[str, Any] = {}
        for size in ("hidden_size", "head_size", "num_heads"):
            if getattr(part.traits, size) is None:
                built_for[size] = arguments.get(size)
        part = part.replace(
            traits=part.traits.replace(**built_for),
            params_key=part.params_key or make.__name__,
        )
        return _encoding(part, build, arguments)

    signature = inspect.signature(make).replace(return_annotation=PositionEncoding)
    build.__signature__ = signature  # type: ignore[attr-defined]
    return build


def _check_arguments(
    build: Callable[..., PositionEncoding],
    arguments: Mapping[str, Any],
    args: tuple = (),
) -> None:
    encoding = build.__name__
    parameters = inspect.signature(build).parameters
    if args and all(each.kind is each.KEYWORD_ONLY for each in parameters.values()):
        names = ", ".join(f"{name}=..." for name in parameters)
        raise TypeError(
            f"{encoding}() takes keyword arguments only, got {reprlib.repr(args[0])}: write "
            f"{encoding}({names}), of which options may be left out."
        )
    for name in arguments.keys() - parameters.keys():
        raise TypeError(
            f"{encoding}() has no argument {name!r}.{option_hint(encoding, name, parameters)} It "
            f"has: {', '.join(parameters) or 'none'}."
        )
    kinds = _kinds(build)
    for name, value in arguments.items():
        if isinstance(value, jax.Array):
            remedy = "of an encoding that learns"
            if "learnable" in parameters:
                remedy = "learnable=True"
            raise ValueError(
                f"{name} of {encoding} must be a Python value, got {jax.typeof(value)}: options "
                "are fixed when an encoding is built. Arrays, as under jax.vmap, go into "
                f"parameters ({remedy}); float(...) makes a number of a known array."
            )
        numbers = value if isinstance(value, tuple | list) else [value]
        for number in numbers:
            if isinstance(number, int | float | np.number):
                _check_number(f"{name} of {encoding}", number, kinds.get(name))
        choices = choices_of(kinds.get(name))
        if choices and not (isinstance(value, str) and value in choices):
            raise ValueError(
                f"{name} of {encoding} must be {' or '.join(map(repr, choices))}, got "
                f"{reprlib.repr(value)}."
            )


def _check_number(name: str, number: Any, kind: Any) -> None:
    """Raise a ValueError for a number that float32 does not hold, NaN among them, or for an integer
    that fits no size of an array."""
    if isinstance(number, float | np.floating) or _takes_float(kind):
        if number != 0 and not _SMALLEST <= abs(number) <= _LARGEST:
            raise ValueError(
                f"{name} must be a float32 number, 0 or from {_SMALLEST:.2g} to {_LARGEST:.2g} in "
                f"magnitude, got {reprlib.repr(number)}."
            )
    elif abs(number) > _MOST:
        raise ValueError(
            f"{name} must be at most {_MOST:,}, got {reprlib.repr(number)}."
        )


@functools.lru_cache(maxsize=512)
def _kinds(build: Callable[..., PositionEncoding]) -> dict[str, Any]:
    """Return the types of the arguments, float where an annotation names what cannot be found."""
    try:
        return typing.get_type_hints(build)
    except NameError:  # Imported for type checkers only, for example.
        return dict.fromkeys(inspect.signature(build).parameters, float)


def choices_of(kind: Any) -> tuple[str, ...]:
    """Return the values of a Literal; none for another type."""
    is_literal = typing.get_origin(kind) is typing.Literal
    return typing.get_args(kind) if is_literal else ()


def _takes_float(kind: Any) -> bool:
    """Return whether a type is float, a union with it, or a tuple of floats."""
    return kind is float or any(map(_takes_float, typing.get_args(kind)))


def _check_parameters(encoding: str, part: Part, arguments: Mapping[str, Any]) -> None:
    """Raise a ValueError for a parameter of more than 2^29 numbers; none is drawn."""
    if part.init is no_parameters:
        return
    shapes = jax.eval_shape(lambda: part.init(jax.random.key(0)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        if leaf.size > _MOST_NUMBERS:
            options = ", ".join(
                f"{name}={value!r}" for name, value in arguments.items()
            )
            raise ValueError(
                f"{encoding}({options}): the parameter {leaf_path(path)} would have {leaf.size:,} "
                f"numbers, at most {_MOST_NUMBERS:,} are allowed. Use smaller sizes."
            )


def _encoding(
    part: Part,
    build: Callable[..., PositionEncoding],
    arguments: Mapping[str, Any],
    *inside: PositionEncoding,
) -> PositionEncoding:
    """Return the encoding of one part, named after `build(*inside, **arguments)`, which makes it
    again."""
    changed = {}
    options = {}
    for name, parameter in inspect.signature(build).parameters.items():
        if name in arguments and arguments[name] != parameter.default:
            changed[name] = arguments[name]
            if name not in SIZES:
                options[name] = arguments[name]
    inside_names = [encoding.name for encoding in inside]
    name = call_text(build.__name__, options, *inside_names)
    try:
        hash(tuple(changed.values()))
    except TypeError:  # Such as a list: neither equal to another build nor pickled.
        constructor = None
    else:
        constructor = functools.partial(build, *inside, **changed)
    return PositionEncoding(parts=(part.replace(name=name, constructor=constructor),))


def register_encoding(make: Callable[_P, Part]) -> Callable[_P, PositionEncoding]:
    """Turn a function that makes a part into an encoding that configs find by its name.

    Apart from the name it does what `define_encoding` does.
    """
    build = define_encoding(make)
    ENCODINGS[make.__name__] = build
    return build


def register_wrapper(
    make: Callable[Concatenate[Part, _P], Part],
) -> Callable[Concatenate[PositionEncoding, _P], PositionEncoding]:
    """Turn a function that changes a part into one that changes all parts of an encoding.

    Configs know it as `name(encoding, option=...)`. Parameters keep their keys.

    Args:
      make: `(part, *, options) -> Part`.

    Returns:
      `(encoding, *, options) -> PositionEncoding`, with the errors of `define_encoding`.
    """

    @functools.wraps(make)
    def build(
        encoding: PositionEncoding, *args: _P.args, **options: _P.kwargs
    ) -> PositionEncoding:
        _check_arguments(build, options)
        checked_encoding(encoding)

        def wrap(part: Part) -> Part:
            inside = PositionEncoding(parts=(part,))
            wrapped = make(part, *args, **options).replace(params_key=part.key)
            return _encoding(wrapped, build, options, inside).parts[0]

        return map_parts(wrap, encoding)

    part_parameter, *options = inspect.signature(make).parameters.values()
    encoding = part_parameter.replace(name="encoding", annotation=PositionEncoding)
    signature = inspect.Signature(
        [encoding, *options], return_annotation=PositionEncoding
    )
    build.__signature__ = signature  # type: ignore[attr-defined]
    WRAPPERS[make.__name__] = build
    return build


def suggestion(name: str, known: Collection[str]) -> str:
    """Return ` Did you mean rope?`, for a name that is misspelt or that others use; or nothing."""
    name = _OTHER_NAMES.get(name.lower(), name.lower())
    return f" Did you mean {name}?" if name in known else did_you_mean(name, known, 5)


def option_hint(encoding: str, option: str, known: Collection[str]) -> str:
    """Return ` Did you mean base?`, for an option that this encoding does not have; or nothing."""
    own_name = _OTHER_NAMES.get(f"{encoding}({option})")
    return f" Did you mean {own_name}?" if own_name else suggestion(option, known)


def options_of(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a function that makes an encoding, and their defaults.

    They are its keyword-only parameters without the sizes. `REQUIRED` stands for no default.
    """
    return {
        name: parameter.default
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in SIZES
    }


def call_text(name: str, options: Mapping[str, Any], *encodings: str) -> str:
    """Return `name(encoding, option=value, ...)` as a config writes it.

    Args:
      name: of the function that makes an encoding.
      options: its options that differ from their defaults.
      encodings: names of those that a wrapper changes.
    """
    arguments = list(encodings)
    for option, value in options.items():
        arguments.append(f"{option}={_value_text(value)}")
    return f"{name}({', '.join(arguments)})" if arguments else name


def _value_text(value: Any) -> str:
    """Return a literal; whole floats without their point."""
    if isinstance(value, tuple):
        items = ", ".join(map(_value_text, value))
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return repr(value)
