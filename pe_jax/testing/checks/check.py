"""What a check is: problems that it finds, numbers that it compares."""

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
      about: what, in a line.
      problems: what is wrong with an encoding.
    """

    about: str
    problems: Callable[[Subject], Problems]

    def run(self, subject: Subject, excuse: str = "") -> str:
        """Puts an encoding through the check.

        Args:
          excuse: why it does not have to hold here. It must not hold, then.

        Returns:
          `"ok"`, or why the check does not apply.

        Raises:
          AssertionError: with everything that is wrong, or for an excuse that is not needed.
        """
        cause = None
        try:
            found = list(self.problems(subject))
        except NotApplicable as reason:
            return str(reason)
        except Exception as error:  # An encoding that fails is told like any other mistake.
            found, cause = [f"{type(error).__name__}: {error}"], error
        if excuse:
            assert found, f"{subject.name} is excused from {self.about!r} ({excuse}), but has it."
            return excuse
        if found:
            told = [f"{subject.name}: {self.about}. But:", *found]
            raise AssertionError("\n  ".join(told)) from cause
        return "ok"


def differences(what: str, found: Any, expected: Any, tolerance: float) -> Problems:
    """The leaves of `found` that are not as expected."""

    def one(path: tuple, a: Array, b: Array) -> str:
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        name = what + jax.tree_util.keystr(path)
        if a.shape != b.shape:
            return f"{name}: shape {a.shape}, expected {b.shape}"
        apart, allowed = np.abs(a - b), tolerance * np.abs(b).max(initial=0.0) + 1e-5
        if (apart <= allowed).all():
            return ""
        at = np.unravel_index(np.argmax(np.nan_to_num(apart, nan=np.inf)), a.shape)
        where = ", ".join(map(str, at))
        return f"{name}[{where}]: {a[at]:.6g}, expected {b[at]:.6g} within {allowed:.2g}"

    told = jax.tree_util.tree_map_with_path(one, found, expected)
    yield from filter(None, jax.tree.leaves(told))
