"""Labels of words that mark entities: their schemes, and the spans that they mark.

A label is `O`, or a prefix and a type, such as `B-person`:

| scheme | prefixes |
|---|---|
| `iob2` | B at the first word of an entity, I at the others |
| `iob1` | I at all of them; B at the first if an entity of the same type ends right before it |
| `bioes` | B at the first, I inside, E at the last, S at a single word |
| `none` | labels are no spans, such as parts of speech |

Two ways to read the spans of a sequence differ where it is impossible under its scheme, which the
predictions of a model may be: `strict_spans` drops them, `lenient_spans` takes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pe_jax.common.values import shown

NONE = "none"
_PREFIXES = {"iob2": "BI", "iob1": "BI", "bioes": "BIES"}
SCHEMES = (*_PREFIXES, NONE)
OUTSIDE = "O"


class LabelSpan(NamedTuple):
    """Words `start` to `stop - 1` of a sequence, and their type."""

    start: int
    stop: int
    type: str


class _Label(NamedTuple):
    prefix: str
    type: str


_OUTSIDE = _Label(OUTSIDE, "")


def _parse(label: str) -> _Label:
    """Return prefix and type; a label without a prefix is its own type, inside."""
    if label == OUTSIDE:
        return _OUTSIDE
    if has_prefix(label):
        return _Label(label[0], label[2:])
    return _Label("I", label)


def has_prefix(label: str, prefixes: str = "BIES") -> bool:
    """Return whether a label is one of the prefixes, a hyphen and a type."""
    return len(label) > 2 and label[1] == "-" and label[0] in prefixes


def _continues(previous: _Label, label: _Label) -> bool:
    """Return whether a label is inside the entity of the one before it."""
    is_inside = label.prefix in "IE" and previous.prefix in "BI"
    return is_inside and label.type == previous.type


def _follows(previous: _Label, label: _Label) -> bool:
    """Return whether a label may be the first of another entity of the same type, in IOB1."""
    return previous.prefix in "BI" and label.type == previous.type


def _can_follow(previous: _Label, label: _Label, scheme: str) -> bool:
    if scheme == "iob2":
        return label.prefix != "I" or _continues(previous, label)
    if scheme == "iob1":
        return label.prefix != "B" or _follows(previous, label)
    if previous.prefix in "BI":
        return _continues(previous, label)
    return label.prefix not in "IE"


def impossible_at(labels: Sequence[str], scheme: str) -> int | None:
    """Return the index of the first label that cannot stand there under a scheme; None if all can.

    It is the number of labels if the sequence cannot end there, as after `B-x` in BIOES.
    """
    if scheme == NONE:
        return None
    previous = _OUTSIDE
    for index, label in enumerate(map(_parse, labels)):
        if not _can_follow(previous, label, scheme):
            return index
        previous = label
    if not _can_follow(previous, _OUTSIDE, scheme):
        return len(labels)
    return None


def label_fault(label: str, scheme: str) -> str:
    """Return why a label is none of a scheme, a phrase that follows it; empty if it is one."""
    if scheme == NONE or label == OUTSIDE or has_prefix(label, _PREFIXES[scheme]):
        return ""
    prefixes = ", ".join(f"{prefix}-TYPE" for prefix in _PREFIXES[scheme])
    return f"is no label of {scheme}, which are O, {prefixes}"


def detect_scheme(sequences: Iterable[Sequence[str]]) -> str:
    """Return the scheme of sequences of labels; "none" if no label has a prefix.

    Of IOB1 and IOB2 it is the one under which fewer sequences are impossible.

    Raises:
      ValueError: if labels have the prefixes of another scheme, or only some of them have one.
    """
    listed = list(sequences)
    labels = {label for sequence in listed for label in sequence} - {OUTSIDE}
    prefixed = {label for label in labels if has_prefix(label, "BIESLUM")}
    if not prefixed:
        return NONE
    if prefixed != labels:
        other = min(labels - prefixed)
        raise ValueError(
            f"Labels such as {min(prefixed)!r} have a prefix, but {shown(other)} has none. Set "
            "config.data.scheme='none' to take all as plain tags, or correct it."
        )
    used = {label[0] for label in labels}
    if used & set("LUM"):
        raise ValueError(
            f"Labels with the prefixes {', '.join(sorted(used))} are of BILOU or BMES, which are "
            "not read. Convert them to BIOES (L and M to E and I, U to S)."
        )
    if used & set("ES"):
        return "bioes"

    def faults(scheme: str) -> int:
        return sum(impossible_at(sequence, scheme) is not None for sequence in listed)

    return min(("iob2", "iob1"), key=faults)


def strict_spans(labels: Sequence[str], scheme: str) -> list[LabelSpan]:
    """Return the spans that follow a scheme to the letter, as seqeval does with mode="strict".

    Args:
      labels: of the words of a sentence.
      scheme: one of `SCHEMES` but "none".
    """
    parsed = [*map(_parse, labels), _OUTSIDE]
    spans = []
    previous = _OUTSIDE
    index = 0
    while index < len(labels):
        if not _begins(previous, parsed[index], scheme):
            previous = parsed[index]
            index += 1
            continue
        stop = index + 1
        while _continues(parsed[stop - 1], parsed[stop]):
            stop += 1
        previous = parsed[stop - 1]
        if _ends(previous, parsed[stop], scheme):
            spans.append(LabelSpan(index, stop, previous.type))
        index = stop
    return spans


def _begins(previous: _Label, label: _Label, scheme: str) -> bool:
    """Return whether an entity may begin with a label that is not inside the previous one."""
    if scheme != "iob1":
        return label.prefix in "BS"
    if label.prefix == "B":
        return _follows(previous, label)
    is_other = previous.prefix != "I" or label.type != previous.type
    return label.prefix == "I" and is_other


def _ends(last: _Label, following: _Label, scheme: str) -> bool:
    """Return whether an entity may end with `last` before a label that is not inside it."""
    if scheme == "bioes":
        return last.prefix in "ES"
    if scheme == "iob1" and last.prefix == following.prefix == "B":
        return last.type == following.type
    return True


def lenient_spans(labels: Iterable[str]) -> list[LabelSpan]:
    """Return the spans as the script conlleval of CoNLL-2000 reads them, for any scheme.

    A label that cannot continue the span before it begins one, whatever its prefix. seqeval reads
    them so by default.
    """
    spans: list[LabelSpan] = []
    previous = _OUTSIDE
    for index, label in enumerate(map(_parse, labels)):
        if _continues(previous, label):
            spans[-1] = spans[-1]._replace(stop=index + 1)
        elif label.prefix != OUTSIDE:
            spans.append(LabelSpan(index, index + 1, label.type))
        previous = label
    return spans
