"""Kinds of values as data: what each accepts, and the words for it in an error.

Configs, `BertConfig` and the config.json of published models state their values in these. Nothing
here imports JAX: `--help` reads the configs.

Not pydantic: it checks types and ranges, but the words of errors, near names and the way out, names
that are known only later, and the text of `--help` would remain.
"""

from __future__ import annotations

import math
import pkgutil
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from pe_jax.common.errors import did_you_mean


class Validator(NamedTuple):
    """A kind of values.

    Attributes:
      type: Python's type of a value, for flags.
      describe: `describe()` goes on after "must be": "an integer from 1 to 10". It is a function
        because names may be known only later.
      accepts: whether a value is one; takes any object, raises nothing.
      hint: the nearest right value or the way out, a sentence that begins with a space, or nothing.
    """

    type: type
    describe: Callable[[], str]
    accepts: Callable[[object], bool]
    hint: Callable[[object], str] = lambda value: ""

    def error(self, value: object) -> str:
        """Return the fault of a value, in one line that follows its name; empty if it is right."""
        if self.accepts(value):
            return ""
        return f"must be {self.describe()}, got {shown(value)}.{self.hint(value)}"


def shown(value: object) -> str:
    """Return a value for a message: one line, not too long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # An integer of thousands of digits has no decimal form.
        text = f"a value of {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _without_quotes(value: object) -> str:
    """Return the hint for the text of a number; nothing for other values."""
    if not isinstance(value, str):
        return ""
    try:
        float(value)
    except ValueError:
        return ""
    digits = reprlib.repr(value.strip())[1:-1]
    return f" Give the number, {digits}, without quotes."


def integer(least: int, most: int) -> Validator:
    """Integers from `least` to `most`, both included; no floats, even whole ones, and no bools."""

    def accepts(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            return False
        return bool(least <= value <= most)

    def hint(value: object) -> str:
        if isinstance(value, float) and math.isfinite(value) and accepts(round(value)):
            return f" The nearest is {round(value)}."
        return _without_quotes(value)

    description = f"an integer from {least:,} to {most:,}"
    return Validator(int, lambda: description, accepts, hint)


def number(least: float, most: float, ends: str = "[]") -> Validator:
    """Numbers between `least` and `most`; no NaN.

    Args:
      ends: which of the two are included, "[]", "(]", "[)" or "()".
    """
    numbers = int | float | np.integer | np.floating

    def accepts(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, numbers):
            return False
        if (value == least and ends[0] == "(") or (value == most and ends[1] == ")"):
            return False
        return bool(least <= value <= most)

    description = f"a number in {ends[0]}{least:g}, {most:.9g}{ends[1]}"
    return Validator(float, lambda: description, accepts, _without_quotes)


# Names, or where a module defines them, such as "pe_jax.attention.implementations:NAMES". That
# module is imported when a value is checked: it may need JAX.
Names: TypeAlias = Iterable[str] | str


def _resolve(names: Names) -> tuple[str, ...]:
    return tuple(pkgutil.resolve_name(names) if isinstance(names, str) else names)


def one_of(
    names: Names, *others: str, renamed: Mapping[str, str] | None = None
) -> Validator:
    """One of several names; an error lists close matches, or the name that replaced an old one."""
    new_names = renamed or {}

    def describe() -> str:
        known = [name or repr(name) for name in (*others, *_resolve(names))]
        return f"one of {', '.join(known)}"

    def accepts(value: object) -> bool:
        if not isinstance(value, str):
            return False
        return value in others or value in _resolve(names)

    def hint(value: object) -> str:
        if not isinstance(value, str):
            return ""
        if value in new_names:
            return f" It is now called {new_names[value]!r}."
        return did_you_mean(value, (*others, *_resolve(names)))

    return Validator(str, describe, accepts, hint)


def some_of(names: Names) -> Validator:
    """Names in a text, separated by commas, or none."""

    def describe() -> str:
        return f"some of {', '.join(_resolve(names))}, separated by commas"

    def unknown(value: str) -> list[str]:
        return [name for name in split_names(value) if name not in _resolve(names)]

    def accepts(value: object) -> bool:
        return isinstance(value, str) and not unknown(value)

    def hint(value: object) -> str:
        if not isinstance(value, str):
            return ""
        first = unknown(value)[0]
        return f" Unknown name {first!r}.{did_you_mean(first, _resolve(names))}"

    return Validator(str, describe, accepts, hint)


def split_names(text: str) -> list[str]:
    """Split names joined by commas; a comma inside parentheses is part of a name."""
    names = [""]
    depth = 0
    for character in text:
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        if character == "," and not depth:
            names.append("")
        else:
            names[-1] += character
    return [name.strip() for name in names if name.strip()]


def text(way_out: str = "") -> Validator:
    """Any text that UTF-8 can hold; with a way out, one that is not empty."""

    description = "a text that is not empty" if way_out else "a text"

    def accepts(value: object) -> bool:
        if not isinstance(value, str) or "\0" in value or not _is_unicode(value):
            return False
        return bool(value or not way_out)

    def hint(value: object) -> str:
        # Python's surrogates stand for bytes of a file name that the locale cannot decode.
        if isinstance(value, str) and not _is_unicode(value):
            return " Set a locale with UTF-8, such as LC_ALL=C.UTF-8."
        return f" {way_out}" if way_out else ""

    return Validator(str, lambda: description, accepts, hint)


def _is_unicode(value: str) -> bool:
    """Return False if a text has halves of surrogate pairs, which UTF-8 cannot hold."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


FLAG = Validator(
    bool, lambda: "True or False", lambda value: isinstance(value, bool | np.bool_)
)


def optional(kind: Validator) -> Validator:
    """A value of that kind, or None, which leaves it open."""
    return kind._replace(
        describe=lambda: f"{kind.describe()}, or None",
        accepts=lambda value: value is None or kind.accepts(value),
    )


def several(
    kind: Validator, least: int = 0, most: int = 1_000, *, repeated: bool = False
) -> Validator:
    """A tuple or list of `least` to `most` values of that kind, different unless `repeated`."""
    count = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    values = "values" if repeated else "different values"

    def describe() -> str:
        return f"a tuple of {count} {values}, each {kind.describe()}"

    def accepts(value: object) -> bool:
        if not isinstance(value, tuple | list) or not least <= len(value) <= most:
            return False
        if not all(map(kind.accepts, value)):
            return False
        return repeated or len(set(value)) == len(value)

    return Validator(tuple, describe, accepts)


# What jax.random and NumPy's generators both take, without two that give the same numbers.
SEED = integer(0, 2**32 - 1)
