"""The gallery: pages of Markdown, one for each family, with a card for each encoding."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from catalogue import declared, trained
from catalogue.drawings import shown_name
from catalogue.entries import Entry
from catalogue.results import CHECKS, Measured
from catalogue.typeset import latex
from pe_jax.console.markdown import table
from pe_jax.encodings import ENCODINGS, WRAPPERS, parameter_count
from pe_jax.encodings.registry import call_text

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = {
    "absolute": "Absolute positions",
    "relative": "Relative vectors",
    "bias": "Biases",
    "rotary": "Rotary encodings",
    "content": "Positions by content",
    "modifiers": "Modifiers and wrappers",
}
IMAGES = "figures/gallery"
ADVICE: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("advice.toml").read_text(encoding="utf-8")
)
_ABOUT = """# {title}

[All encodings](../catalogue.md), and [how to read a card](../catalogue.md#cards). Written by
`python tools/write_catalogue.py`; do not edit it by hand.
"""
_DECLARED = {True: "yes", False: "no", None: "depends"}


def source_file(key: str) -> str:
    """Return the path from the root to the source of a registered encoding or wrapper."""
    make = inspect.unwrap({**ENCODINGS, **WRAPPERS}[key])
    return Path(inspect.getfile(make)).resolve().relative_to(ROOT).as_posix()


def family(key: str) -> str:
    """Return the family of an encoding: the folder of its source."""
    folder = Path(source_file(key)).parent.name
    return folder if folder in FAMILIES else "absolute"  # `none`.


def family_page(
    name: str,
    rows: Sequence[Entry],
    results: Mapping[str, Measured],
    snippets: Mapping[str, str],
    scores: trained.Lines,
    pictures: trained.Lines,
) -> str:
    """Return the page of a family.

    Args:
      rows: of all families.
      results: by title.
      snippets: code by key.
      scores, pictures: of trained models.
    """
    lines = [_ABOUT.format(title=FAMILIES[name])]
    for key in dict.fromkeys(row.key for row in rows if family(row.key) == name):
        variants = [row for row in rows if row.key == key]
        lines += [
            f"## `{key}`",
            "",
            *_formula(variants[0]),
            f"Acts on: {declared.acts(variants[0])}. Source: {source(variants[0])}. Code: "
            f"[`{key}`](../../{source_file(key)})",
            "",
            ADVICE.get(key, ""),
            "",
            *_images(variants[0], pictures),
            f"```python\n{snippets[key]}\n```",
            "",
            *_scores(key, scores),
            *facts(variants, results),
            "",
            *_excuses(variants, results),
            *_options(variants[0]),
        ]
    return "\n".join(lines).rstrip() + "\n"


def source(row: Entry) -> str:
    """Return the source, with short links in place of addresses, which would not wrap."""
    text = "; ".join(metadata.source for metadata in declared.cards(row)) or "Wang et al. 2021"
    return re.sub(r"\bgithub\.com/[\w./-]*\w", r"[GitHub](https://\g<0>)", text)


def _formula(row: Entry) -> list[str]:
    formulas = [metadata.formula for metadata in declared.cards(row)]
    return [f"```math\n{latex(formula)}\n```\n" for formula in formulas]


def _images(row: Entry, pictures: trained.Lines) -> list[str]:
    key, after = row.key, picture_name(row.key, pictures)
    name = _short(shown_name(row))
    text = f"![heat map of {name} by query and key, and its curve over the offset, before training]"
    line = f"{text}(../{IMAGES}/{key}.png)"
    if after:
        line += f"\n![the same of {after} after training](../{IMAGES}/{key}_trained.png)"
    return [line, ""]


def picture_name(key: str, pictures: trained.Lines) -> str:
    """Return the encoding whose trained picture the card of `key` shows, or nothing."""
    names = trained.names_of(key, pictures)
    return next((name for name in names if pictures.get(name)), "")


def _scores(key: str, scores: trained.Lines) -> list[str]:
    names = trained.names_of(key, scores)
    if not names:
        return []
    known = [[f"`{name}`", *trained.cells(scores[name])] for name in names if scores.get(name)]
    missing = [f"`{name}`" for name in names if not scores.get(name)]
    lines = [*table(("trained", *trained.SCORES.values()), known), ""] if known else []
    if missing:
        lines += [f"Trained with {', '.join(missing)}: {trained.NOT_MEASURED}.", ""]
    return lines


def facts(variants: Sequence[Entry], results: Mapping[str, Measured]) -> list[str]:
    """Return a table of facts, a column for each row of the catalogue with this key."""
    columns = [_facts(row, results[row.title]) for row in variants]
    lines = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return table(["", *(f"`{row.title}`" for row in variants)], lines)


def _facts(row: Entry, found: Measured) -> dict[str, str]:
    properties, required, cost = found.properties, found.requirements, found.cost
    formula = " + ".join(metadata.parameters for metadata in declared.cards(row)) or "0"
    count = f"{parameter_count(row.encoding):,}"
    longest = row.encoding.max_length
    ranges, packed = (declared.term_forms(row.encoding, packed=x) for x in (False, True))
    symmetric = "–" if properties.symmetry is None else number(properties.symmetry)
    near = number(properties.near)
    linear = {(True, True): "both", (True, False): "ranges", (False, True): "packed"}
    return {
        "parameters": count if formula == count else f"{formula} = {count}",
        "positions": "any" if longest is None else f"up to {longest:,}",
        f"invariant: TI of {properties.by}": (
            f"{_DECLARED[declared.invariant(row)]}: {number(properties.invariance)}"
        ),
        "symmetric": f"{_DECLARED[declared.symmetric(row)]}: {symmetric}",
        "monotone: all, to 10": (
            f"{_DECLARED[declared.monotone(row)]}: {number(properties.monotonicity)}, {near}"
        ),
        f"{required.points}: distinct, size, growth": ", ".join(
            number(x) for x in (required.distinctness, required.size, required.growth)
        ),
        "change by length, shift": f"{number(required.length)}, {number(required.shift)}",
        "fast at ranges, packed": f"{forms(ranges.terms)}; {forms(packed.terms)}",
        "TPU kernel, cuDNN": f"{yes(ranges.kernel)}, {yes(ranges.cudnn)}",
        "linear memory": linear.get(found.linear, "–"),
        "time × `none`": f"{cost.ratio:.2f} ({cost.low:.2f}–{cost.high:.2f})",
        "memory × `none`": ratio(found.memory),
        "packing, padding, cache, bfloat16": ", ".join(found.checks[check] for check in CHECKS),
        "export": ", ".join(found.exports) or "–",
    }


def number(x: float) -> str:
    """Return a measured number; a dash for NaN."""
    if x != x:
        return "–"
    if x == float("inf"):
        return "∞"
    return f"{x:.3f}" if x < 100 else f"{x:,.0f}" if x < 1e6 else f"{x:.1e}"


def ratio(x: float) -> str:
    """Return a number of two digits; a dash for NaN."""
    return "–" if x != x else f"{x:.1f}" if x < 10 else f"{x:.0f}"


def yes(fact: bool) -> str:
    return "yes" if fact else "–"


def forms(terms: tuple[str, ...] | None) -> str:
    """Return how terms of the offset are computed, see the page."""
    return "any" if terms is None else " + ".join(terms) or "–"


def _excuses(variants: Sequence[Entry], results: Mapping[str, Measured]) -> list[str]:
    """Return the reasons of checks that do not hold, those without a column as well."""
    lines = [
        f"- `{row.title}`, {check}: {reason}."
        for row in variants
        for check, reason in results[row.title].excuses.items()
    ]
    return ["Checks that do not hold:", "", *lines, ""] if lines else []


def _options(row: Entry) -> list[str]:
    meanings = _meanings({**ENCODINGS, **WRAPPERS}[row.key].__doc__ or "")
    text = lambda option, value: call_text("", {option: value})[1:-1]
    examples = {
        name: f"{_short(text(name, value))}`, required" for name, value in row.required.items()
    }
    defaults = {name: f"{text(name, value)}`" for name, value in row.options.items()}
    lines = [
        f"- `{start}{': ' + meanings[name] if name in meanings else ''}"
        for name, start in (examples | defaults).items()
    ]
    if not lines:
        return []
    return ["<details><summary>Options</summary>", "", *lines, "", "</details>", ""]


def _short(option: str) -> str:
    return re.sub(r"\([^()]{12,}\)", "(…)", option)


def _meanings(docstring: str) -> dict[str, str]:
    """Return the section Args of a docstring, by option."""
    args = re.search(r"\n( *)Args:\n((?:\1  .*\n|\n(?=\1  ))*)", docstring + "\n")
    entries = re.split(r"\n(?=\S)", inspect.cleandoc("\n" + args[2])) if args else []
    found: dict[str, str] = {}
    for entry in entries:
        names, _, meaning = entry.partition(": ")
        meaning = " ".join(meaning.split()).rstrip(".")
        found |= dict.fromkeys(names.split(", "), meaning)
    return found
