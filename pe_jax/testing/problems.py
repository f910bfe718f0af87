"""Checks, functions that yield the problems of a subject; their results, and tables of these."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from pe_jax.common.markdown import raw_table as markdown
from pe_jax.common.shapes import Array
from pe_jax.testing.subject import Result

Problems = Iterator[str]
# By name, functions `(subject, excuse="")` whose docstring is the claim. They return `"ok"`, or why
# the check does not apply. An excuse is the reason why the claim does not hold here. An
# AssertionError has everything that is wrong, or tells that an excuse is not needed.
Checks = dict[str, Callable[..., str]]


class NotApplicable(Exception):
    """A check does not apply to a subject; the message is the reason."""


def add_check(
    checks: Checks, problems: Callable[[Any], Problems]
) -> Callable[..., str]:
    """Turn a function that yields the problems of a subject into a check, added by its name.

    The check raises AssertionError with all problems, or if an excuse is not needed.
    """
    claim = " ".join(str(problems.__doc__).split())

    @functools.wraps(problems)
    def run(subject: Any, excuse: str = "") -> str:
        cause = None
        try:
            lines = list(problems(subject))
        except NotApplicable as reason:
            return str(reason)
        except Exception as error:
            # An encoding that fails is reported like any other mistake.
            cause = error
            notes = getattr(error, "__notes__", ())
            places = [note for note in notes if note.startswith("In ")]
            lines = [": ".join([type(error).__name__, str(error), *places])]
        if excuse:
            assert lines, (
                f"{subject.name} is excused from {claim!r} ({excuse}), but has it."
            )
            return excuse
        if lines:
            message = "\n  ".join([f"{subject.name}: {claim} But:", *lines])
            raise AssertionError(message) from cause
        return "ok"

    run.__doc__ = claim
    checks[problems.__name__] = run
    return run


def differences(name: str, values: Any, expected: Any, tolerance: float) -> Problems:
    """Yield the leaves of `values` that are not as expected.

    Args:
      tolerance: a share of the largest value that is expected.
    """

    def difference(path: tuple, a: Array, b: Array) -> str:
        a = np.asarray(a, np.float64)
        b = np.asarray(b, np.float64)
        leaf = name + jax.tree_util.keystr(path)
        if a.shape != b.shape:
            return f"{leaf}: shape {a.shape}, expected {b.shape}"
        distance = np.abs(a - b)
        allowed = tolerance * np.abs(b).max(initial=0.0) + 1e-5
        if (distance <= allowed).all():
            return ""
        worst = np.argmax(np.nan_to_num(distance, nan=np.inf))
        index = np.unravel_index(worst, a.shape)
        place = ", ".join(map(str, index))
        return f"{leaf}[{place}]: {a[index]:.6g}, expected {b[index]:.6g} within {allowed:.2g}"

    messages = jax.tree_util.tree_map_with_path(difference, values, expected)
    yield from filter(None, jax.tree.leaves(messages))


def result_differences(
    name: str,
    values: Result,
    expected: Result,
    tolerance: float,
    of_grads: float | None = None,
) -> Problems:
    """Yield what differs between two results of a layer."""
    yield from differences(f"{name}: out", values.out, expected.out, tolerance)
    yield from differences(
        f"{name}: gradient of ", values.grads, expected.grads, of_grads or tolerance
    )


def check_all(
    subject: Any, checks: Checks, excused: Mapping[str, str]
) -> dict[str, str]:
    """Run all checks on a subject; see `pe_jax.testing.check`.

    Raises:
      AssertionError: lists all faults with their numbers.
      ValueError: if `excused` names an unknown check.
    """
    unknown = [name for name in excused if name not in checks]
    if unknown:
        raise ValueError(
            f"excused lists checks that do not exist, {unknown}. The checks are "
            f"{', '.join(checks)}."
        )
    results, wrong = _results(subject, checks, excused)
    assert not wrong, "\n".join(wrong.values())
    return results


def check_table(
    title: str,
    subjects: Iterable[Any],
    checks: Checks,
    excused: Mapping[str, Mapping[str, str]],
) -> str:
    """Return subjects × checks as Markdown, with a title of the subjects; see `testing.table`."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for subject in subjects:
        reasons = excused.get(subject.name, {})
        results, wrong = _results(subject, checks, reasons)
        words = {"ok": "ok", **dict.fromkeys(reasons.values(), "no")}
        row = [f"`{subject.name}`"]
        for check in checks:
            is_wrong = check in wrong
            row.append("WRONG" if is_wrong else words.get(results[check].strip(), "–"))
        rows.append(row)
        for check, reason in reasons.items():
            notes.append(f"\n`{subject.name}`, {check}: {reason}.")
        notes += [f"\n{fault}" for fault in wrong.values()]
    return "\n".join([*markdown([title, *checks], rows), *notes])


def _results(
    subject: Any, checks: Checks, excused: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    results = {}
    wrong = {}
    for name, check in checks.items():
        try:
            results[name] = check(subject, excused.get(name, ""))
        except AssertionError as error:
            wrong[name] = str(error)
    return results, wrong
