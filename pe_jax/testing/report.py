"""Results of checks: all of them for one subject, or a table of several subjects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from pe_jax.console.markdown import table as markdown


class Named(Protocol):
    """Anything that checks are run on."""

    @property
    def name(self) -> str: ...


S = TypeVar("S", bound=Named)
Checks = Mapping[str, Callable[..., str]]


def check_all(subject: S, checks: Checks, excused: Mapping[str, str]) -> dict[str, str]:
    """Run all checks on a subject; see `pe_jax.testing.check`."""
    if unknown := [name for name in excused if name not in checks]:
        raise ValueError(
            f"excused lists checks that do not exist, {unknown}. The checks are "
            f"{', '.join(checks)}."
        )
    results, wrong = _results(subject, checks, excused)
    assert not wrong, "\n".join(wrong.values())
    return results


def check_table(
    title: str, subjects: Iterable[S], checks: Checks, excused: Mapping[str, Mapping[str, str]]
) -> str:
    """Return subjects × checks as Markdown; see `pe_jax.testing.table`.

    Args:
      title: the header of the first column.
    """
    rows: list[list[str]] = []
    notes: list[str] = []
    for subject in subjects:
        reasons = excused.get(subject.name, {})
        results, wrong = _results(subject, checks, reasons)
        words = {"ok": "ok", **dict.fromkeys(reasons.values(), "no")}
        cells = ["WRONG" if c in wrong else words.get(results[c].strip(), "–") for c in checks]
        rows.append([f"`{subject.name}`", *cells])
        notes += [f"`{subject.name}`, {name}: {reason}." for name, reason in reasons.items()]
        notes += wrong.values()
    return "\n".join([*markdown([title, *checks], rows), *(f"\n{note}" for note in notes)])


def _results(
    subject: S, checks: Checks, excused: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the result of each check, and the failures by check."""
    results, wrong = {}, {}
    for name, check in checks.items():
        try:
            results[name] = check(subject, excused.get(name, ""))
        except AssertionError as error:
            wrong[name] = str(error)
    return results, wrong
