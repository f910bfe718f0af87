"""The catalogue as a page of Markdown: what was measured next to what encodings say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from catalogue import declared
from catalogue.cost import ROWS, Cost
from catalogue.entries import SIZES, WRAPPED, Entry
from catalogue.measured import LENGTH, WORDS, Properties, Requirements
from pe_jax.console.markdown import table
from pe_jax.encodings import parameter_count
from pe_jax.encodings.naming import call_text

# The checks of `pe_jax.testing` that have a column.
_D, _HEAD, _H, _L = SIZES.values()

CHECKS = ("packing", "padding", "decoding", "precision")


class Measured(NamedTuple):
    """What only running an encoding tells.

    Attributes:
      checks: of `CHECKS`, each "ok", "no" or "–".
      excuses: `{check: reason}` of all checks that are known not to hold.
    """

    properties: Properties
    requirements: Requirements
    checks: Mapping[str, str]
    excuses: Mapping[str, str]
    cost: Cost


_ABOUT = f"""
# Catalogue of position encodings

Written by `python tools/write_catalogue.py`, which runs every registered encoding; not edited by
hand. What the names mean and how to join them is in [encodings.md](encodings.md). All sizes are
BERT-base's: D = {_D}, H = {_H} heads of d = {_HEAD}, L =
{_L} positions. `(…)` stands for options that an encoding requires, see the last
table; wrappers are around `{WRAPPED}`; an encoding for causal attention is joined with `causal`.
"""

_WHAT = """
## What they are

x is a position, m = j − i the offset of a key from its query, S the sinusoid […, sin ωx, cos ωx,
…], R a rotation by the angle. *Acts on*: the input of the model, queries and keys (and values),
the logits, the values that weights sum, the reach of a query, the temperature of the softmax, or
positions before another encoding sees them. *Parameters* as a formula, and their number.
*Longest*: the number of positions, where there is a limit.
"""

_PROPERTIES = f"""
## Properties

What the encoding says of itself ("yes" and "no" whatever its parameters and the tokens are,
"depends" on them), and next to it the violation measured on the untrained encoding: 0 if the
property holds exactly, at most 1.

- *By*: of which proximities Φ[i, j]. P·Pᵀ of position vectors that are added to the input; for all
  others the logits of {LENGTH} copies of one word, with equal random projections of queries and
  keys, so that only positions distinguish directions ({WORDS} words, mean over words and heads).
  Windows are left out; where queries attend to the left only, Φ is that side mirrored; positions
  of several axes are equal on all of them.
- *Invariant*: attention depends on differences of positions alone. *TI*: share of Φ's variance off
  the diagonal that is not a function of j − i. A sinusoid's P·Pᵀ is invariant, but not what W_Q
  and W_K make of it: hence "no" next to 0.
- *Monotone*: proximities strictly decrease with distance, on either side and without end. Ties
  count half, as between offsets past a clip or in one bucket: equal proximities give 0.5. Two
  columns: all offsets, and offsets up to 10.
- *Symmetric*: Φ[i, j] = Φ[j, i].
"""

_REQUIREMENTS = f"""
## Requirements

What is asked of position encodings: that positions are distinguishable, that numbers stay small,
that they do not depend on the length of the input, and that shifted inputs agree.

- *Points*: what stands for a position: P_x, vectors of positions; P_m, vectors of offsets; or
  logits, what positions add to the logits of all keys for one query, with random projections
  ({WORDS} words × {_H} heads).
- *Distinct*: smallest distance of two points over the root mean square, among {_L}
  positions. 0: two coincide, as offsets do past a clip, in one bucket, or to the left and right of
  a symmetric bias.
- *Size*: root mean square of a point's numbers for {LENGTH // 2} positions; a fresh BERT's word
  embeddings have 0.02. *Growth*: of the largest point from {LENGTH // 2} to {_L}
  positions; 1 is bounded.
- *Length*, *shift*: how much proximities off the diagonal change, as a share of their variance, in
  an input twice as long, and at positions {_L // 2} further on. 0: not at all; about
  2: nothing in common.
"""

_ATTENTION = f"""
## In attention

- *Ranges*, *packed*: how attention computes terms of the offset fast, at consecutive positions and
  at those of documents packed into a row: from tables of all offsets that occur, or by rotation of
  the queries. "any": there are no such terms. "–": only as the formula stands.
  *Kernel*: the TPU kernel supports it at ranges.
- *Linear*: where memory can be linear in the length; encodings with logits of their own fill an
  array of all pairs.
- *Packing*, *padding*, *cache*, *bfloat16*: checks of the suite, `python -m pe_jax.testing`:
  documents in a row give what each gives alone; padding changes nothing; decoding token by token
  with a cache gives what causal attention gives ("–": keys do not stay right when the sequence
  grows); float16 and bfloat16 stay near float32.
- *Cost*: time of a forward and backward pass of attention, {ROWS} × {_L} tokens in
  float32, over that of `none` in the same round: median (quartiles). What acts on the input is in
  it, projections are not.
"""


_OPTIONS = r"""
## Options

With their defaults. \*: required; the value is an example, that of the tables above.
"""


def page(
    rows: Sequence[Entry], results: Mapping[str, Measured], machine: str, baseline: float
) -> str:
    """The whole page.

    Args:
      results: by the row's name.
      machine: what costs were measured on.
      baseline: milliseconds of `none`.
    """
    lines = [
        _ABOUT,
        _WHAT,
        *what(rows),
        _PROPERTIES,
        *_table(PROPERTIES, [_properties(row, results[row.name].properties) for row in rows]),
        _REQUIREMENTS,
        *_table(REQUIREMENTS, [_requirements(row, results[row.name]) for row in rows]),
        _ATTENTION.rstrip() + f" `none` takes {baseline:.0f} ms on {machine}.\n",
        *_table(ATTENTION, [_attention(row, results[row.name]) for row in rows]),
        *_excuses(rows, results),
        _OPTIONS,
        *options(rows),
    ]
    return "\n".join(lines).strip() + "\n"


WHAT = ("encoding", "formula", "acts on", "parameters", "number", "longest", "source")
PROPERTIES = (
    *("encoding", "by", "invariant", "TI", "monotone", "all", "to 10", "symmetric", "symm."),
)
REQUIREMENTS = ("encoding", "points", "distinct", "size", "growth", "length", "shift")
ATTENTION = (
    *("encoding", "ranges", "packed", "kernel", "linear"),
    *("packing", "padding", "cache", "bfloat16", "cost"),
)
OPTIONS = ("encoding", "options")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return table(header, rows)


def what(rows: Sequence[Entry]) -> list[str]:
    """The table of what encodings are; nothing is run for it."""
    return _table(WHAT, [_what(row) for row in rows])


def _what(row: Entry) -> list[str]:
    cards = declared.cards(row)
    join = lambda texts: " + ".join(texts) or "–"
    return [
        f"`{row.title}`",
        join(card.formula for card in cards),
        declared.acts(row),
        join(card.parameters for card in cards),
        f"{parameter_count(row.encoding):,}",
        "any" if row.encoding.longest is None else f"{row.encoding.longest:,}",
        join(card.source for card in cards),
    ]


_SAID = {True: "yes", False: "no", None: "depends"}


def said(row: Entry) -> list[str]:
    """What an encoding says of its properties: the columns "invariant", "monotone", "symmetric"."""
    return [
        _SAID[found]
        for found in (declared.invariant(row), declared.monotone(row), declared.symmetric(row))
    ]


def _properties(row: Entry, found: Properties) -> list[str]:
    invariant, monotone, symmetric = said(row)
    return [
        f"`{row.title}`",
        found.by,
        *(invariant, _number(found.invariance)),
        *(monotone, _number(found.monotonicity), _number(found.near)),
        *(symmetric, "–" if found.symmetry is None else _number(found.symmetry)),
    ]


def _requirements(row: Entry, results: Measured) -> list[str]:
    points, *numbers = results.requirements
    return [f"`{row.title}`", points, *map(_number, numbers)]


def _number(x: float) -> str:
    if x != x:
        return "–"
    return f"{x:.3f}" if x < 100 else f"{x:,.0f}".replace("inf", "∞")


def computed(row: Entry) -> list[str]:
    """How attention can compute an encoding: "ranges", "packed", "kernel", "linear"."""
    ranges, packed = declared.at_ranges(row), declared.at_packed(row)
    linear = {(True, True): "both", (True, False): "ranges", (False, True): "packed"}
    return [
        *(_forms(ranges.terms), _forms(packed.terms)),
        "yes" if ranges.kernel else "–",
        linear.get((ranges.linear, packed.linear), "–"),
    ]


def _forms(terms: tuple[str, ...] | None) -> str:
    return "any" if terms is None else ", ".join(terms) or "–"


def _attention(row: Entry, results: Measured) -> list[str]:
    cost = results.cost
    return [
        f"`{row.title}`",
        *computed(row),
        *(results.checks[check] for check in CHECKS),
        f"{cost.ratio:.2f} ({cost.low:.2f}–{cost.high:.2f})",
    ]


def _excuses(rows: Sequence[Entry], results: Mapping[str, Measured]) -> list[str]:
    """Why checks do not hold, those without a column as well."""
    found = [
        f"- `{row.title}`, {check}: {reason}."
        for row in rows
        for check, reason in results[row.name].excuses.items()
    ]
    if not found:
        return []
    told = "All other checks of the suite pass. Those that do not hold, and why:"
    return ["", told, "", *found]


def options(rows: Sequence[Entry]) -> list[str]:
    """The table of options, one line for each registered name."""
    by_key = {row.key: row for row in reversed(rows)}
    keys = [key for key in dict.fromkeys(row.key for row in rows) if _options(by_key[key])]
    return _table(OPTIONS, [[f"`{key}`", ", ".join(_options(by_key[key]))] for key in keys])


def _options(row: Entry) -> list[str]:
    text = lambda option, value: call_text("", {option: value})[1:-1]
    required = [f"`{_without_lists(text(*one))}`\\*" for one in row.required.items()]
    return required + [f"`{text(*one)}`" for one in row.options.items()]


def _without_lists(option: str) -> str:
    return re.sub(r"\([^()]{12,}\)", "(…)", option)
