"""A suite that every position encoding is put through, ours or your own; jax and NumPy only.

>>> from pe_jax import encodings, testing
>>> encoding = encodings.learned_relative(head_size=4, clip=3)
>>> testing.CHECKS["packing"](testing.Subject(encoding))  # All of them: testing.check(encoding)
'ok'

`python -m pe_jax.testing rope "alibi+learned_absolute"` prints what holds of encodings by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pe_jax.console.markdown import table as markdown
from pe_jax.encodings import PositionEncoding
from pe_jax.testing.checks import CHECKS, NotApplicable
from pe_jax.testing.reference import Pair, Reference, joined
from pe_jax.testing.subject import SIZES, Sizes, Subject

__all__ = [
    "CHECKS",
    "SIZES",
    "NotApplicable",
    "Pair",
    "Reference",
    "Subject",
    "check",
    "joined",
    "table",
]


def check(
    encoding: PositionEncoding,
    reference: Reference | None = None,
    *,
    sizes: Sizes = SIZES,
    excused: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Puts an encoding through every check in `CHECKS`.

    Args:
      encoding: built for `sizes`.
      reference: its formula. Without one, what the naive form computes is taken to be right.
      sizes: small ones, hidden_size = num_heads * head_size.
      excused: checks that are known not to hold, with the reason. They must fail.

    Returns:
      By the name of the check, `"ok"` or the reason why it does not apply.

    Raises:
      AssertionError: that lists everything that is wrong, with the numbers met.
      ValueError: for an excuse from a check that there is none of.
    """
    excused = excused or {}
    if unknown := [name for name in excused if name not in CHECKS]:
        raise ValueError(f"There are no checks {unknown} to excuse from: {', '.join(CHECKS)}.")
    results, wrong = _results(Subject(encoding, reference, sizes), excused)
    assert not wrong, "\n".join(wrong.values())
    return results


def table(
    encodings: Sequence[PositionEncoding],
    references: Mapping[str, Reference] | None = None,
    excused: Mapping[str, Mapping[str, str]] | None = None,
    sizes: Sizes = SIZES,
) -> str:
    """Encodings × checks as Markdown: what holds, what does not apply (–), what is excused (no) and
    what is WRONG, with the reasons of the latter two below.

    Args:
      references, excused: by the encoding's name, see `check`.
    """
    rows: list[list[str]] = []
    notes: list[str] = []
    for encoding in encodings:
        reasons = (excused or {}).get(encoding.name, {})
        subject = Subject(encoding, (references or {}).get(encoding.name), sizes)
        results, wrong = _results(subject, reasons)
        words = {"ok": "ok", **dict.fromkeys(reasons.values(), "no")}
        cells = ["WRONG" if c in wrong else words.get(results[c].strip(), "–") for c in CHECKS]
        rows.append([f"`{encoding.name}`", *cells])
        notes += [f"`{encoding.name}`, {name}: {reason}." for name, reason in reasons.items()]
        notes += wrong.values()
    return "\n".join([*markdown(["encoding", *CHECKS], rows), *(f"\n{note}" for note in notes)])


def _results(subject: Subject, excused: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The result of each check, and the failures by check."""
    results, wrong = {}, {}
    for name, check in CHECKS.items():
        try:
            results[name] = check(subject, excused.get(name, ""))
        except AssertionError as error:
            wrong[name] = str(error)
    return results, wrong
