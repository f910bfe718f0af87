"""A suite that every position encoding is put through, ours or your own; jax and NumPy only.

>>> from pe_jax import encodings, testing
>>> encoding = encodings.learned_relative(head_size=4, max_distance=3)
>>> testing.CHECKS["packing"](testing.Subject(encoding))  # All of them: testing.check(encoding)
'ok'

`python -m pe_jax.testing rope "alibi+learned_absolute"` prints what holds of encodings by name.
`pe_jax.testing.foreign` checks attention that is not ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pe_jax.encodings import PositionEncoding
from pe_jax.testing.checks import CHECKS
from pe_jax.testing.problems import check_all, check_table
from pe_jax.testing.reference import Pair, Reference
from pe_jax.testing.subject import Sizes, Subject

__all__ = ["CHECKS", "Pair", "Reference", "Subject", "check", "table"]


def check(
    encoding: PositionEncoding,
    reference: Reference | None = None,
    *,
    sizes: Sizes | None = None,
    excused: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Run every check in `CHECKS` on an encoding.

    Args:
      encoding: of any sizes; small ones compile fast.
      reference: its formula. Without it, the naive implementation is the reference.
      sizes: hidden_size, num_heads and so on, with hidden_size = num_heads * head_size. The default
        is those that the encoding was built for, and small ones where it leaves them open.
      excused: reasons of checks that cannot hold, by name. They must fail.

    Returns:
      By the name of the check, `"ok"` or the reason why it does not apply.

    Raises:
      AssertionError: lists all faults with their numbers.
      ValueError: if `excused` names an unknown check, or `sizes` do not fit each other.
    """
    return check_all(Subject(encoding, reference, sizes), CHECKS, excused or {})


def table(
    encodings: Sequence[PositionEncoding],
    references: Mapping[str, Reference] | None = None,
    excused: Mapping[str, Mapping[str, str]] | None = None,
    sizes: Sizes | None = None,
) -> str:
    """Encodings × checks as Markdown: what holds, what does not apply (–), what is excused (no) and
    what is WRONG, with the reasons of the latter two below.

    Args:
      references, excused: by the encoding's name, see `check`.

    Raises:
      ValueError: for `sizes` that do not fit each other.
    """
    references = references or {}
    subjects = (
        Subject(encoding, references.get(encoding.name), sizes)
        for encoding in encodings
    )
    return check_table("encoding", subjects, CHECKS, excused or {})
