"""The catalogue as a page of Markdown: declared properties next to measured ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from catalogue import declared
from catalogue.cost import ROWS
from catalogue.entries import SIZES, WRAPPED, Entry
from catalogue.measured import LENGTH
from catalogue.results import Measured
from pe_jax.console.markdown import table
from pe_jax.encodings import ENCODINGS, WRAPPERS, parameter_count
from pe_jax.encodings.registry import call_text
from pe_jax.properties.encoding_measures import WORDS

ROOT = Path(__file__).resolve().parents[2]
_D, _HEAD, _H, _L = SIZES.values()

# The checks of `pe_jax.testing` that have a column.
CHECKS = ("packing", "padding", "decoding", "precision")

_ABOUT = f"""
# Catalogue of position encodings

For choosing an encoding: formula, properties, requirements, support in attention, cost and options
of every one. To measure others or your own as here:

```sh
python eval.py --config=configs/properties.py --encodings=rope,alibi --out=R
```

[encodings.md](encodings.md) explains names and how to join them. Sizes are BERT-base's: D = {_D},
H = {_H} heads of d = {_HEAD}, L = {_L} positions. `(…)` stands for options that an encoding
requires, see the last table. Wrappers are around `{WRAPPED}`; an encoding for causal attention is
joined with `causal`. `python tools/write_catalogue.py` writes this page and measures encodings
that are new; do not edit it by hand.
"""

_FORMULAS = """
## Formulas

x is a position, m = j − i the offset of a key from its query, S the sinusoid […, sin ωx, cos ωx,
…], R a rotation by the angle. *Acts on* is the input of the model, queries and keys (and values),
logits, values that weights sum, the reach of a query, the temperature of the softmax, or positions
before another encoding sees them. In every table, names link to the docstring.
"""

_PARAMETERS = """
## Parameters

*Longest* is the number of positions, if there is a limit.
"""

_SOURCES = """
## Sources
"""

_PROPERTIES = f"""
## Properties

The declared property ("depends": on parameters or tokens), and next to it the violation measured
on the untrained encoding, from 0 (the property holds exactly) to 1.

- *By*: P·Pᵀ of position vectors that are added to the input; for others the logits of {LENGTH}
  copies of one word, with equal random projections of queries and keys ({WORDS} words, mean over
  words and heads). Windows are left out; where queries attend to the left only, Φ is that side
  mirrored; positions of several axes are equal on all of them.
- *Invariant*, *TI*: does attention depend on differences of positions alone? A sinusoid's P·Pᵀ
  does, but not what W_Q and W_K make of it: hence "no" next to 0.
- *Symmetric*, *symm.*: Φ[i, j] = Φ[j, i].
"""

_MONOTONICITY = """
*Monotone*: do proximities strictly decrease with distance, on either side and without end?
Measured over *all* offsets and *to 10*; ties count half.
"""

_REQUIREMENTS = f"""
## Requirements

- *Points* stand for positions: vectors of positions P_x or offsets P_m, or the logits that
  positions add for one query, with random projections ({WORDS} words × {_H} heads).
- *Distinct*: the smallest distance of two points over the root mean square, among {_L} positions.
  0: two coincide, as offsets do past a clip, in one bucket, or on both sides of a symmetric bias.
- *Size*: root mean square of a point's numbers for {LENGTH // 2} positions; a fresh BERT's word
  embeddings have 0.02. *Growth*: of the largest point from {LENGTH // 2} to {_L} positions; 1 is
  bounded.
- *Length*, *shift*: change of proximities, as a share of their variance, in an input twice as long
  and at positions {_L // 2} further on. 0: none; about 2: unrelated.
"""

_COMPUTED = f"""
## In attention

- *Ranges*, *packed*: how terms of the offset are computed fast, at consecutive positions and at
  those of packed documents: from tables of offsets, or by rotation of queries. "any": there are no
  such terms. "–": only as the formula stands.
- *Kernel*: the TPU kernel supports it at ranges. *Linear*: where no array of a forward
  and backward pass in blocks has two axes of the length.
- *Cost*: time of a forward and backward pass of attention, {ROWS} × {_L} tokens in float32, over
  that of `none` in the same round: median (quartiles), without projections.
"""

_CHECKED = """
## Checks

Of `python -m pe_jax.testing`: documents packed into a row give what each gives alone; padding
changes nothing; decoding with a cache gives what causal attention gives ("–": keys change when the
sequence grows); bfloat16 and float16 stay near float32.
"""

_OPTIONS = r"""
## Options

With their defaults. \*: required; the value is an example, that of the tables above.
"""


def page(
    rows: Sequence[Entry], results: Mapping[str, Measured], none_ms: Mapping[str, float]
) -> str:
    """Return the whole page.

    Args:
      results: by the row's title.
      none_ms: milliseconds of `none` by machine.
    """
    lines = [
        _ABOUT,
        _FORMULAS,
        *formulas(rows),
        _PARAMETERS,
        *parameters(rows),
        _SOURCES,
        *sources(rows),
        _PROPERTIES,
        *table(PROPERTIES, [_properties(row, results[row.title]) for row in rows]),
        _MONOTONICITY,
        *table(MONOTONICITY, [_monotonicity(row, results[row.title]) for row in rows]),
        _REQUIREMENTS,
        *table(REQUIREMENTS, [_requirements(row, results[row.title]) for row in rows]),
        _COMPUTED + _machines(rows, results, none_ms),
        *table(COMPUTED, [_computed(row, results[row.title]) for row in rows]),
        _CHECKED,
        *table(CHECKED, [_checked(row, results[row.title]) for row in rows]),
        *_excuses(rows, results),
        _OPTIONS,
        *options(rows),
        "",
        *_targets(rows),
    ]
    return "\n".join(lines).strip() + "\n"


FORMULAS = ("encoding", "formula", "acts on")
PARAMETERS = ("encoding", "parameters", "number", "longest")
SOURCES = ("encoding", "source")
PROPERTIES = ("encoding", "by", "invariant", "TI", "symmetric", "symm.")
MONOTONICITY = ("encoding", "monotone", "all", "to 10")
REQUIREMENTS = ("encoding", "points", "distinct", "size", "growth", "length", "shift")
COMPUTED = ("encoding", "ranges", "packed", "kernel", "linear", "cost")
CHECKED = ("encoding", "packing", "padding", "cache", "bfloat16")
OPTIONS = ("encoding", "options")


def formulas(rows: Sequence[Entry]) -> list[str]:
    """Return the table of formulas."""
    return table(
        FORMULAS,
        [
            [
                _link(row),
                _joined(metadata.formula for metadata in declared.cards(row)),
                declared.acts(row),
            ]
            for row in rows
        ],
    )


def parameters(rows: Sequence[Entry]) -> list[str]:
    """Return the table of parameters and of the number of positions."""
    return table(
        PARAMETERS,
        [
            [
                _link(row),
                _joined(metadata.parameters for metadata in declared.cards(row)),
                f"{parameter_count(row.encoding):,}",
                "any" if row.encoding.max_length is None else f"{row.encoding.max_length:,}",
            ]
            for row in rows
        ],
    )


def sources(rows: Sequence[Entry]) -> list[str]:
    """Return the table of sources."""
    text = lambda row: _joined(metadata.source for metadata in declared.cards(row))
    return table(SOURCES, [[_link(row), _with_links(text(row))] for row in rows])


def _with_links(source: str) -> str:
    """Return the source with short links in place of addresses, which would not wrap."""
    return re.sub(r"\bgithub\.com/[\w./-]*\w", r"[GitHub](https://\g<0>)", source)


def _link(row: Entry) -> str:
    """Return the title as a link, whose target is at the end of the page."""
    return f"[`{row.title}`]"


def _targets(rows: Sequence[Entry]) -> list[str]:
    """Return the definitions of the links: for each title and key, the file of the docstring."""
    keys = {title: row.key for row in rows for title in (row.title, row.key)}
    return [f"[`{title}`]: {source_file(key)}" for title, key in keys.items()]


def source_file(key: str) -> str:
    """Return the path from the page to the source of a registered encoding or wrapper."""
    make = inspect.unwrap({**ENCODINGS, **WRAPPERS}[key])
    return "../" + Path(inspect.getfile(make)).resolve().relative_to(ROOT).as_posix()


def _joined(texts: Iterable[str]) -> str:
    return " + ".join(texts) or "–"


_DECLARED = {True: "yes", False: "no", None: "depends"}


def _properties(row: Entry, results: Measured) -> list[str]:
    violations = results.properties
    return [
        _link(row),
        violations.by,
        *(_DECLARED[declared.invariant(row)], _number(violations.invariance)),
        _DECLARED[declared.symmetric(row)],
        "–" if violations.symmetry is None else _number(violations.symmetry),
    ]


def _monotonicity(row: Entry, results: Measured) -> list[str]:
    violations = results.properties
    numbers = map(_number, (violations.monotonicity, violations.near))
    return [_link(row), _DECLARED[declared.monotone(row)], *numbers]


def _requirements(row: Entry, results: Measured) -> list[str]:
    points, *numbers = results.requirements
    return [_link(row), points, *map(_number, numbers)]


def _number(x: float) -> str:
    if x != x:
        return "–"
    if x == float("inf"):
        return "∞"
    return f"{x:.3f}" if x < 100 else f"{x:,.0f}" if x < 1e6 else f"{x:.1e}"


def _machines(
    rows: Sequence[Entry], results: Mapping[str, Measured], none_ms: Mapping[str, float]
) -> str:
    """Return sentences on the machines of the costs; only the first one's rows are not listed."""
    first, *others = none_ms
    text = f"\nCosts are of {first}, where `none` takes {none_ms[first]:.0f} ms."
    for machine in others:
        titles = [f"`{row.title}`" for row in rows if results[row.title].machine == machine]
        text += f" Those of {', '.join(titles)}: {machine}, {none_ms[machine]:.0f} ms."
    return text + "\n"


def _computed(row: Entry, results: Measured) -> list[str]:
    ranges, packed = declared.at_ranges(row), declared.at_packed(row)
    linear = {(True, True): "both", (True, False): "ranges", (False, True): "packed"}
    cost = results.cost
    return [
        _link(row),
        *(_forms(ranges.terms), _forms(packed.terms)),
        "yes" if ranges.kernel else "–",
        linear.get(results.linear, "–"),
        f"{cost.ratio:.2f} ({cost.low:.2f}–{cost.high:.2f})",
    ]


def _forms(terms: tuple[str, ...] | None) -> str:
    return "any" if terms is None else ", ".join(terms) or "–"


def _checked(row: Entry, results: Measured) -> list[str]:
    return [_link(row), *(results.checks[check] for check in CHECKS)]


def _excuses(rows: Sequence[Entry], results: Mapping[str, Measured]) -> list[str]:
    """Return the reasons of checks that do not hold, those without a column as well."""
    excuses = [
        f"- `{row.title}`, {check}: {reason}."
        for row in rows
        for check, reason in results[row.title].excuses.items()
    ]
    if not excuses:
        return []
    return [
        "",
        "All other checks of the suite pass. Those that do not hold, and why:",
        "",
        *excuses,
    ]


def options(rows: Sequence[Entry]) -> list[str]:
    """Return the table of options, one line for each registered name."""
    by_key = {row.key: row for row in reversed(rows)}
    keys = [key for key in dict.fromkeys(row.key for row in rows) if _options(by_key[key])]
    return table(OPTIONS, [[f"[`{key}`]", ", ".join(_options(by_key[key]))] for key in keys])


def _options(row: Entry) -> list[str]:
    text = lambda option, value: call_text("", {option: value})[1:-1]
    required = [f"`{_without_lists(text(*one))}`\\*" for one in row.required.items()]
    return required + [f"`{text(*one)}`" for one in row.options.items()]


def _without_lists(option: str) -> str:
    return re.sub(r"\([^()]{12,}\)", "(…)", option)
