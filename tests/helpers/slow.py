"""Parameters of tests that run by default, and those that run with `-m slow` alone."""

from collections.abc import Collection, Iterable

import pytest


def slow_except(kept: Collection, values: Iterable) -> list:
    """Return parameters of a test, marked as slow except those that are kept.

    Args:
      values: one for each case; tuples are several parameters.
    """
    values = list(values)
    assert not set(kept) - set(values), f"{set(kept) - set(values)} are no values"
    slow = lambda value: pytest.param(
        *(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow
    )
    return [value if value in kept else slow(value) for value in values]
