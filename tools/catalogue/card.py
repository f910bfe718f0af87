"""The gallery: pages of Markdown, one for each family, with a card for each encoding."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from catalogue import entries, published, trained
from catalogue.drawings import shown_name
from catalogue.entries import Entry
from catalogue.formatting import latex
from catalogue.measured import CHECKS, Measured
from pe_jax.common.markdown import raw_table
from pe_jax.encodings import ENCODINGS, WRAPPERS, parameter_count
from pe_jax.encodings.registry import call_text
from research.which_encoding.candidates import ratio_text
from research.which_encoding.results import Lines

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
# Milliseconds of attention on a TPU, by estimate, as benchmarks/tpu_layers.py writes them.
TPU_LAYERS = ROOT / "docs/tpu_layers.json"
ADVICE, OPTIONS = (
    tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("advice.toml", "options.toml")
)
_ABOUT = """# {title}

<!-- Written by python tools/write_catalogue.py: do not edit it by hand. -->

[All encodings](../catalogue.md), and [how to read a card](../catalogue.md#cards).
"""
_SECTIONS = ("properties", "requirements", "in-attention", "checks", "trained-models")
_LINKS = "\n".join(f"[{name}]: ../catalogue.md#{name}" for name in _SECTIONS)
_DECLARED = {True: "yes", False: "no", None: "depends"}
_CHECKED = dict(zip(CHECKS, ("packing", "padding", "cache", "bfloat16"), strict=True))


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
    scores: Lines,
    pictures: Lines,
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
            f"Acts on: {entries.acts(variants[0])}. Source: {source(variants[0])}. Code: "
            f"[`{key}`](../../{source_file(key)})",
            "",
            f"**When to use it.** {ADVICE.get(key, '')}",
            "",
            *_images(variants[0], pictures),
            f"```python\n{snippets[key]}\n```",
            "",
            *_scores(key, scores),
            "<details><summary>Measured properties, cost and checks</summary>",
            "",
            *facts(variants, results),
            "",
            *_excuses(variants, results),
            "</details>",
            "",
            *_options(variants[0]),
            *published.card_lines(key),
        ]
    return "\n".join([*lines, _LINKS]) + "\n"


def source(row: Entry) -> str:
    """Return the source, with short links in place of addresses, which would not wrap."""
    text = (
        "; ".join(metadata.source for metadata in entries.cards(row))
        or "Wang et al. 2021"
    )
    return re.sub(r"\bgithub\.com/[\w./-]*\w", r"[GitHub](https://\g<0>)", text)


def _formula(row: Entry) -> list[str]:
    formulas = [metadata.formula for metadata in entries.cards(row)]
    return [f"```math\n{latex(formula)}\n```\n" for formula in formulas]


def _images(row: Entry, pictures: Lines) -> list[str]:
    """Return the images as a comment, which the site's conf.py takes away where it draws them."""
    before = _short(shown_name(row))
    after = trained.picture_name(row.key, pictures)
    text = f"heat map of {before} by query and key, and its curve over the offset, before training"
    lines = [f"<!-- ![{text}](../{IMAGES}/{row.key}.png) -->"]
    if after:
        text = f"the same of {after} after training"
        lines.append(f"<!-- ![{text}](../{IMAGES}/{row.key}_trained.png) -->")
    return [*lines, ""]


def _scores(key: str, scores: Lines) -> list[str]:
    names = trained.names_of(key, scores) if scores else []
    known = [
        [f"`{name}`", ratio_text(name), *trained.cells(name, scores[name])]
        for name in names
        if scores.get(name)
    ]
    missing = [f"`{name}`" for name in names if not scores.get(name)]
    header = ("[trained][trained-models]", "ratio", *trained.SCORES.values())
    lines = [*filled_columns(header, known), ""] if known else []
    if missing:
        lines += [f"Trained with {', '.join(missing)}: {trained.NOT_MEASURED}.", ""]
    return lines


def filled_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table of the columns that have a value in any row."""
    kept = [
        n for n in range(len(header)) if any(row[n] not in ("", "–") for row in rows)
    ]
    return raw_table(
        [header[n] for n in kept], [[row[n] for n in kept] for row in rows]
    )


def facts(variants: Sequence[Entry], results: Mapping[str, Measured]) -> list[str]:
    """Return a table of facts, a column for each row of the catalogue with this key."""
    columns = [_facts(row, results[row.title]) for row in variants]
    lines = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return raw_table(["", *(f"`{row.title}`" for row in variants)], lines)


def _facts(row: Entry, found: Measured) -> dict[str, str]:
    properties, required, cost = found.properties, found.requirements, found.cost
    formula = " + ".join(metadata.parameters for metadata in entries.cards(row)) or "0"
    count = f"{parameter_count(row.encoding):,}"
    longest = row.encoding.max_length
    ranges, packed = (entries.term_forms(row.encoding, packed=x) for x in (False, True))
    symmetry = float("nan") if properties.symmetry is None else properties.symmetry
    facts = {
        "parameters": count if formula == count else f"{formula} = {count}",
        "longest input": "any" if longest is None else f"{longest:,}",
    }
    numbers = {
        "properties": {
            "properties of": properties.by,
            "translation invariant": _held(
                entries.invariant(row), properties.invariance
            ),
            "symmetric": _held(entries.symmetric(row), symmetry),
            "monotone": _held(entries.monotone(row), properties.monotonicity),
            "violation within 10 tokens": number(properties.near),
        },
        "requirements": {
            "points": required.points,
            "smallest distance": number(required.distinctness),
            "size": number(required.size),
            "growth": number(required.growth),
            "change in a longer input": number(required.length),
            "change at a later position": number(required.shift),
        },
        "in-attention": {
            "offset terms": forms(ranges.terms),
            "offset terms, packed": forms(packed.terms),
            "kernels": _names({"TPU": ranges.kernel, "cuDNN": ranges.cudnn}),
            "linear memory": _names(dict(zip(("consecutive", "packed"), found.linear))),
            "time / `none`": f"{cost.ratio:.2f} ({cost.low:.2f}–{cost.high:.2f})",
            "memory / `none`": ratio(found.memory),
            "exports to": ", ".join(found.exports) or "–",
        },
        "checks": {
            "passes": _names(
                {_CHECKED[name]: found.checks[name] == "ok" for name in CHECKS}
            )
        },
    }
    for section, cells in numbers.items():
        facts |= {f"[{label}][{section}]": cell for label, cell in cells.items()}
    return facts


def _held(declaration: bool | None, violation: float) -> str:
    """Return what an encoding declares of a property, and the violation that was measured."""
    return f"{_DECLARED[declaration]} ({number(violation)})"


def _names(facts: Mapping[str, bool]) -> str:
    return ", ".join(name for name, holds in facts.items() if holds) or "–"


def kernel_cell(row: Entry) -> str:
    """Say whether the TPU kernel supports an encoding, else what it costs there without."""
    if entries.term_forms(row.encoding).kernel:
        return "yes"
    times = json.loads(TPU_LAYERS.read_text("utf-8"))
    if row.name not in times:
        return "no"
    relative_time = times[row.name]["ms"] / times["none"]["ms"]
    return f"no ({relative_time:,.0f} ×)"


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


def forms(terms: tuple[str, ...] | None) -> str:
    """Return how terms of the offset are computed, see the page."""
    return "none" if terms is None else " + ".join(terms) or "pair by pair"


def _excuses(variants: Sequence[Entry], results: Mapping[str, Measured]) -> list[str]:
    """Return the reasons of checks that do not hold, those without a column as well."""
    lines = [
        f"- `{row.title}`, {check}: {reason}."
        for row in variants
        for check, reason in results[row.title].excuses.items()
    ]
    return ["Checks that do not hold:", "", *lines, ""] if lines else []


def _options(row: Entry) -> list[str]:
    meanings = _meanings(row.key)
    text = lambda option, value: call_text("", {option: value})[1:-1]
    examples = {
        name: f"{_short(text(name, value))}`, required"
        for name, value in row.required.items()
    }
    defaults = {name: f"{text(name, value)}`" for name, value in row.options.items()}
    if missing := [name for name in examples | defaults if name not in meanings]:
        raise ValueError(
            f"{row.key}: the options {missing} have no meaning. Add it to Args of its docstring or "
            "to tools/catalogue/options.toml."
        )
    lines = [
        f"- `{start}: {'if True, ' * (row.options.get(name) is False)}{meanings[name]}"
        for name, start in (examples | defaults).items()
    ]
    if not lines:
        return []
    return ["<details><summary>Options</summary>", "", *lines, "", "</details>", ""]


def _short(option: str) -> str:
    return re.sub(r"\([^()]{12,}\)", "(…)", option)


def _meanings(key: str) -> dict[str, str]:
    """Return the meanings of options: of options.toml, and the section Args of the docstring."""
    docstring = {**ENCODINGS, **WRAPPERS}[key].__doc__ or ""
    found = dict(OPTIONS["any"])
    if others := re.search(r"Other\s+arguments\s+as\s+in\s+`(\w+)`", docstring):
        found |= _meanings(others[1])
    args = re.search(r"\n( *)Args:\n((?:\1  .*\n|\n(?=\1  ))*)", docstring + "\n")
    for entry in (
        re.split(r"\n(?=\S)", inspect.cleandoc("\n" + args[2])) if args else []
    ):
        names, _, meaning = entry.partition(": ")
        for name in names.split(", "):
            found[name] = re.sub(
                "^of ", f"{name.replace('_', ' ')} of ", " ".join(meaning.split())
            )
    found |= OPTIONS.get(key, {})
    for name, meaning in found.items():
        if same := re.match(r"as in `(\w+)`", meaning):
            found[name] = _meanings(same[1])[name] + meaning[same.end() :]
        found[name] = found[name].rstrip(".")
    return found
