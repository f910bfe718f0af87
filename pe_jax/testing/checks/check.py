"""Checks: functions that yield the problems of an encoding, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from pe_jax.shapes import Array
from pe_jax.testing.subject import Subject

Problems = Iterator[str]


class NotApplicable(Exception):
    """An encoding that a check does not apply to; the message is the reason."""


class Check(NamedTuple):
    """One thing that must hold.

    Attributes:
      about: the claim, in a line.
      problems: everything that is wrong with an encoding.
    """

    about: str
    problems: Callable[[Subject], Problems]

    def run(self, subject: Subject, excuse: str = "") -> str:
        """Put an encoding through the check.

        Args:
          excuse: why it does not have to hold here. It must not hold, then.

        Returns:
          `"ok"`, or why the check does not apply.

        Raises:
          AssertionError: with everything that is wrong, or for an excuse that is not needed.
        """
        cause = None
        try:
            problems = list(self.problems(subject))
        except NotApplicable as reason:
            return str(reason)
        except Exception as error:  # An encoding that fails is reported like any other mistake.
            problems, cause = [f"{type(error).__name__}: {error}"], error
        if excuse:
            assert problems, (
                f"{subject.name} is excused from {self.about!r} ({excuse}), but has it."
            )
            return excuse
        if problems:
            lines = [f"{subject.name}: {self.about}. But:", *problems]
            raise AssertionError("\n  ".join(lines)) from cause
        return "ok"


CHECKS: dict[str, Check] = {}


def check(about: str) -> Callable[[Callable[[Subject], Problems]], Callable[[Subject], Problems]]:
    """Add a function to `CHECKS`, by its name, with the claim that it checks."""

    def add(problems: Callable[[Subject], Problems]) -> Callable[[Subject], Problems]:
        CHECKS[problems.__name__] = Check(about, problems)
        return problems

    return add


def differences(name: str, values: Any, expected: Any, tolerance: float) -> Problems:
    """Yield the leaves of `values` that are not as expected.

    Args:
      tolerance: a share of the largest value that is expected.
    """

    def difference(path: tuple, a: Array, b: Array) -> str:
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        leaf = name + jax.tree_util.keystr(path)
        if a.shape != b.shape:
            return f"{leaf}: shape {a.shape}, expected {b.shape}"
        apart, allowed = np.abs(a - b), tolerance * np.abs(b).max(initial=0.0) + 1e-5
        if (apart <= allowed).all():
            return ""
        index = np.unravel_index(np.argmax(np.nan_to_num(apart, nan=np.inf)), a.shape)
        place = ", ".join(map(str, index))
        return f"{leaf}[{place}]: {a[index]:.6g}, expected {b[index]:.6g} within {allowed:.2g}"

    found = jax.tree_util.tree_map_with_path(difference, values, expected)
    yield from filter(None, jax.tree.leaves(found))
