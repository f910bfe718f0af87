"""The names that configs use, and what each stands for.

A name is an expression: encodings joined by `+`, each with options where they differ from the
defaults, `rope(base=160000)+alibi`. `cycle(a, b)` lets the layers take a and b in turn, `own(a)`
gives every layer parameters of its own. It is parsed, never evaluated.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pe_jax.encodings import absolute, base, bias, content, modifiers, relative, rotary
from pe_jax.encodings.base import REQUIRED, PositionEncoding, options_of
from pe_jax.encodings.stack import Stack, as_stack
from pe_jax.errors import did_you_mean


class Sizes(NamedTuple):
    """The sizes of the model that an encoding is built for, as the functions below name them."""

    hidden_size: int
    head_size: int
    num_heads: int
    max_length: int


def _by_name(*makers: Callable[..., PositionEncoding]) -> dict[str, Callable[..., Any]]:
    return {make.__name__: make for make in makers}


# Every encoding. A new one is a new line here: its arguments are sizes, then the options that a
# name may give.
ENCODINGS: Mapping[str, Callable[..., PositionEncoding]] = _by_name(
    base.none,
    absolute.learned_absolute,
    absolute.sinusoidal_absolute,
    absolute.learnable_sinusoidal_absolute,
    absolute.fourier_features,
    absolute.floater,
    absolute.complex_order,
    absolute.tupe,
    absolute.raw_index,
    absolute.normalised_index,
    absolute.sinusoidal_concatenated,
    relative.learned_relative,
    relative.sinusoidal_relative,
    relative.learnable_sinusoidal_relative,
    relative.nezha,
    relative.relative_key,
    relative.relative_key_query,
    relative.transformer_xl,
    relative.tener,
    relative.deberta,
    bias.alibi,
    bias.t5,
    bias.fire,
    bias.kerple,
    bias.sandwich,
    bias.tisa,
    bias.dynamic_position_bias,
    rotary.rope,
    rotary.rope_linear,
    rotary.rope_ntk,
    rotary.rope_dynamic_ntk,
    rotary.rope_yarn,
    rotary.rope_llama3,
    rotary.rope_longrope,
    rotary.rope_axial,
    rotary.rope_mixed,
    rotary.mrope,
    rotary.xpos,
    rotary.pope,
    content.fox,
    content.cable,
    content.cope,
    modifiers.log_n,
    modifiers.window,
    modifiers.causal,
)

# Those that change another: `name(encoding, option=...)`.
WRAPPERS: Mapping[str, Callable[..., PositionEncoding]] = _by_name(
    modifiers.randomised, modifiers.shape, modifiers.cape, modifiers.interpolated
)

_PAPERS_RELATIVE = ("learned_relative", "sinusoidal_relative", "learnable_sinusoidal_relative")
_PAPERS_ABSOLUTE = ("learned_absolute", "sinusoidal_absolute", "learnable_sinusoidal_absolute")

# The paper's rows of tables 2 and 3, in its order.
PAPER: tuple[str, ...] = (
    "none",
    *_PAPERS_ABSOLUTE,
    *_PAPERS_RELATIVE,
    *(
        f"{left}+{right}"
        for left in ("learned_absolute", "learnable_sinusoidal_absolute")
        for right in _PAPERS_RELATIVE
    ),
)


def from_name(
    name: str, *, hidden_size: int, head_size: int, num_heads: int, max_length: int
) -> PositionEncoding:
    """The encoding that `name` stands for, such as `"learned_absolute+rope(base=500)"`.

    Args:
      hidden_size: D, the dimension of absolute position vectors.
      head_size: d, the dimension of relative ones.
      num_heads: H.
      max_length: rows of a learned absolute table.

    Raises:
      ValueError: for a name, or an option, that is not known (the message lists the near ones), an
        option's value of the wrong type, a family used twice, or encodings that differ from layer
        to layer (see `stack_from_name`).

    Example:
      >>> from pe_jax import encodings
      >>> encoding = encodings.from_name(
      ...     "learned_absolute+rope", hidden_size=256, head_size=64, num_heads=4, max_length=512
      ... )
      >>> encoding.name, encodings.parameter_count(encoding)
      ('learned_absolute+rope', 131072)
    """
    stack = stack_from_name(name, Sizes(hidden_size, head_size, num_heads, max_length))
    if stack.layers:
        raise ValueError(
            f"{name!r} differs from layer to layer: for a model, take encodings.stack_from_name."
        )
    return stack.common


def stack_from_name(name: str, sizes: Sizes) -> Stack:
    """As `from_name`, for a whole model: the name may have one `cycle(...)` or `own(...)`.

    The same name and sizes give the same object, which is immutable: what is compiled for it is
    found again.
    """
    return _built(name, sizes)


@functools.lru_cache(maxsize=512)
def _built(name: str, sizes: Sizes) -> Stack:
    return as_stack(_Reader(name, sizes).read(_parsed(name)))


def _parsed(name: str) -> ast.expr:
    try:
        return ast.parse(name.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"Cannot read the position encoding {name!r}: {_FORM}") from None


def for_text() -> list[str]:
    """A name of each encoding of tokens in a row that requires no option: its own, or
    `name+causal`. Encodings of positions of several axes are left out."""
    sizes = Sizes(hidden_size=8, head_size=4, num_heads=2, max_length=8)
    plain = [name for name, make in ENCODINGS.items() if REQUIRED not in options_of(make).values()]
    built = {name: from_name(name, **sizes._asdict()) for name in plain}
    return [
        f"{name}+causal" if any(part.traits.causal_only for part in encoding.parts) else name
        for name, encoding in built.items()
        if encoding.axes == 1
    ]


def split_names(text: str) -> list[str]:
    """Names joined by commas, which may be inside parentheses as well."""
    names, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            names.append("")
        else:
            names[-1] += character
    return [name.strip() for name in names if name.strip()]


def without_options(name: str) -> str:
    """The name as tables have it: `rope(base=500)+alibi` is `rope+alibi`,
    `interpolated(rope, factor=4)` is `interpolated(rope)`.

    Raises:
      ValueError: if it cannot be read.
    """
    return ast.unparse(_WithoutOptions().visit(_parsed(name))).replace(" + ", "+")


class _WithoutOptions(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        arguments = [self.visit(one) for one in node.args]
        return ast.Call(node.func, arguments, []) if arguments else node.func


_FORM = "write names joined with '+', options in parentheses, as in 'rope(base=160000)+alibi'."


class _Reader(NamedTuple):
    """Reads one name."""

    text: str
    sizes: Sizes

    def read(self, node: ast.expr) -> PositionEncoding | Stack:
        match node:
            case ast.BinOp(left, ast.Add(), right):
                return self._joined(self.read(left), self.read(right))
            case ast.Name(name):
                return self._made(name, [], [])
            case ast.Call(ast.Name(name), arguments, keywords):
                return self._made(name, arguments, keywords)
        raise self._error(f"{ast.unparse(node)!r} is no encoding")

    def _joined(
        self, left: PositionEncoding | Stack, right: PositionEncoding | Stack
    ) -> PositionEncoding | Stack:
        if isinstance(left, PositionEncoding) and isinstance(right, PositionEncoding):
            return left + right
        one, other = as_stack(left), as_stack(right)
        if one.layers and other.layers:
            raise self._error("it has more than one 'cycle' or 'own'")
        layers = one if one.layers else other
        return Stack(one.common + other.common, layers.layers, layers.own)

    def _made(
        self, name: str, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> PositionEncoding | Stack:
        if name in ("cycle", "own"):
            if keywords or not arguments:
                raise self._error(f"{name!r} takes encodings, at least one, and no options")
            return Stack(layers=tuple(map(self._plain, arguments)), own=name == "own")
        if name in WRAPPERS:
            if len(arguments) != 1:
                raise self._error(f"{name!r} takes one encoding, as in '{name}(rope)'")
            make = WRAPPERS[name]
            return make(self._plain(arguments[0]), **self._options(name, make, keywords))
        if name not in ENCODINGS:
            known = [*ENCODINGS, *WRAPPERS, "cycle", "own"]
            raise self._error(
                f"{name!r} is not known.{did_you_mean(name, known)} Known: {', '.join(known)}"
            )
        if arguments:
            raise self._error(f"the options of {name!r} need their names")
        make = ENCODINGS[name]
        used = inspect.signature(make).parameters
        sizes = {size: value for size, value in self.sizes._asdict().items() if size in used}
        return make(**sizes, **self._options(name, make, keywords))

    def _plain(self, node: ast.expr) -> PositionEncoding:
        encoding = self.read(node)
        if isinstance(encoding, Stack):
            raise self._error("'cycle' and 'own' cannot be inside another encoding")
        return encoding

    def _options(
        self, name: str, make: Callable[..., Any], keywords: list[ast.keyword]
    ) -> dict[str, Any]:
        types_of = typing.get_type_hints(make)
        defaults = options_of(make)
        known = list(defaults)
        options: dict[str, Any] = {}
        for keyword in keywords:
            option = keyword.arg
            if option not in known:
                raise self._error(
                    f"{name!r} has no option {option!r}.{did_you_mean(str(option), known)} "
                    f"It has: {', '.join(known) or 'none'}"
                )
            if option in options:
                raise self._error(f"the option {option!r} is given twice")
            try:
                value = ast.literal_eval(keyword.value)
            except ValueError:
                raise self._error(f"the value of {option!r} is no number, word or tuple") from None
            options[option] = self._typed(option, value, types_of[option])
        needed = [one for one in known if defaults[one] is REQUIRED]
        if missing := [one for one in needed if one not in options]:
            raise self._error(f"{name!r} needs the option {' and '.join(map(repr, missing))}")
        return options

    def _typed(self, option: str, value: Any, wanted: Any) -> Any:
        for one in typing.get_args(wanted) if isinstance(wanted, types.UnionType) else [wanted]:
            if (fitting := _fit(value, one)) is not _UNFIT:
                return fitting
        told = getattr(wanted, "__name__", str(wanted).replace("typing.", ""))
        raise self._error(f"the option {option!r} takes {told}, got {value!r}")

    def _error(self, what: str) -> ValueError:
        of = f" (in {self.text!r})"
        return ValueError(f"Unknown position encoding: {what}{of}. {_FORM.capitalize()}")


_UNFIT = object()


def _fit(value: Any, wanted: Any) -> Any:
    """`value` as `wanted`, a type or a Literal, or `_UNFIT`. A whole number is a float as well; a
    truth value is no number, and 1e999 is no float."""
    if typing.get_origin(wanted) is Literal:
        return value if value in typing.get_args(wanted) else _UNFIT
    if typing.get_origin(wanted) is tuple:
        of = typing.get_args(wanted)[0]
        each = [_fit(one, of) for one in value] if isinstance(value, tuple) else [_UNFIT]
        return _UNFIT if any(one is _UNFIT for one in each) else tuple(each)
    if wanted is float and type(value) in (int, float):
        return float(value) if abs(value) <= sys.float_info.max else _UNFIT
    return value if type(value) is wanted else _UNFIT
