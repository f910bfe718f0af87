"""Errors: near names, options that are too small, extras that are not installed, stops."""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LONGEST_NAME = 200  # Characters: comparing takes time in proportion to their square.


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """` Did you mean tiny?`, or nothing where no known name begins so or is near."""
    name = name[:_LONGEST_NAME]
    known = list(known)
    near = difflib.get_close_matches(name, known, most)
    if len(name) > 3:
        near = [other for other in known if other.startswith(name)] + near
    different = list(dict.fromkeys(near))[:most]
    return f" Did you mean {' or '.join(different)}?" if different else ""


def check_at_least(least: float, **options: float | None) -> None:
    """Check options that have a least value.

    Raises:
      ValueError: for an option below `least`, or NaN; None is left out.
    """
    for name, value in options.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")


def check_positive(**options: float | None) -> None:
    """Check options that have to be above 0.

    Raises:
      ValueError: for an option that is not positive; None is left out.
    """
    for name, value in options.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value}.")


def former_arguments(**advice: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Let a function answer former names of its arguments with a TypeError that gives advice.

    Args:
      advice: by former name, a sentence: `rows="It is batch_size now."`.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def call(*args: _P.args, **arguments: _P.kwargs) -> _T:
            for name in arguments.keys() & advice.keys():
                raise TypeError(
                    f"{function.__name__}() has no argument {name!r}. {advice[name]}"
                )
            return function(*args, **arguments)

        return call

    return decorate


@contextlib.contextmanager
def extra(
    name: str, error: Callable[[str], BaseException] = ModuleNotFoundError
) -> Iterator[None]:
    """Context for imports of packages that the extra `name` installs.

    Raises:
      error: where a package is missing, with a message that names it and the extra.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package in ("", "pe_jax"):  # No package that pip would install.
            raise
        raise error(
            f"{package} is not installed. It is part of the extra {name!r}: in a checkout "
            f"of pe_jax, pip install '.[{name}]'."
        ) from missing


class Interrupted(SystemExit):
    """A request to stop the command. No handler of errors catches it.

    Attributes:
      code: what the process exits with.
      on_all_hosts: True if every host of the run stops with it.
    """

    code: int

    def __init__(self, message: str, status: int, *, on_all_hosts: bool = False):
        super().__init__(status)
        self._message, self.on_all_hosts = message, on_all_hosts

    def __str__(self) -> str:
        return self._message
