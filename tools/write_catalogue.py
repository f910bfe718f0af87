"""Measure encodings, and write docs/catalogue.md, the cards in docs/gallery and their pictures.

    python tools/write_catalogue.py [--all] [--rounds=9]

Measurements are in docs/catalogue.json. Encodings that have none there are measured, or all with
--all, which takes twenty to thirty minutes on two cores, most of it compiling; then the pages and
docs/pictures.jsonl, from which the site draws its images, are written. Costs are ratios to `none`,
all in one process, in turns. Scores and pictures of trained models are those in
research/which_encoding. The checks that are known not to hold, with the reasons, are those of the
tests (tests/references).
"""

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import catalogue
import jax
from absl import app, flags
from catalogue import Entry, Measured, Results, drawings
from catalogue.cost import LONG
from references import EXCUSED, REFERENCES

from pe_jax import testing
from pe_jax.common import cpu
from pe_jax.common.files import write_text
from pe_jax.encodings import from_name
from pe_jax.testing.subject import SIZES

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
_ROUNDS = flags.DEFINE_integer("rounds", 9, "Rounds of the costs.")
_ALL = flags.DEFINE_bool("all", False, "Measure all encodings again.")


def machine() -> str:
    """Return the processor of this machine, and its software."""
    model = cpu.model() or platform.machine()
    return (
        f"{os.cpu_count()} × {model} ({jax.default_backend()}, jax {jax.__version__})"
    )


def in_the_suite(row: Entry, tiny: Entry) -> str:
    """Return the name under which tests put an encoding through the suite: the same, or, where
    options are an example's, the first one of this key; else the row for the suite's sizes."""
    alike = [
        name
        for name in REFERENCES
        if name.partition("(")[0].partition("+")[0] == row.key
    ]
    if row.name in REFERENCES:
        return row.name
    return tiny.name if row.name in catalogue.VARIANTS or not alike else alike[0]


def checked(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return results of the checks that have a column, and reasons of all that do not hold."""
    reasons = EXCUSED.get(name, {})
    encoding = from_name(name, **SIZES)
    subject = testing.Subject(encoding, REFERENCES.get(name))
    results = {}
    for check in catalogue.CHECKS:
        result = testing.CHECKS[check](subject, reasons.get(check, ""))
        results[check] = "no" if check in reasons else "ok" if result == "ok" else "–"
    return results, reasons


def measure(
    triples: Sequence[tuple[Entry, Entry, Entry]], rounds: int
) -> tuple[dict[str, Measured], float]:
    """Return measurements of rows, each given with its row for the suite's sizes and for long
    inputs, by title; and milliseconds of `none`."""
    say = lambda line: print(line, file=sys.stderr, flush=True)
    before, after = {}, {}
    for row, small, long in triples:
        say(row.title)
        before[row.title] = (
            *catalogue.measure(row),
            *checked(in_the_suite(row, small)),
        )
        linear, memory = catalogue.linear(row), catalogue.memory(long)
        after[row.title] = (linear, machine(), memory, catalogue.exports(small))
    costs, baseline = catalogue.costs(
        [row for row, *_ in triples], rounds=rounds, say=say
    )
    measured = {
        row.title: Measured(*before[row.title], costs[row.name], *after[row.title])
        for row, *_ in triples
    }
    return measured, baseline


def compute_pictures(rows: Sequence[Entry]) -> None:
    """Compute the pictures of untrained encodings that are missing; all with --all."""
    known = {} if _ALL.value or not drawings.PICTURES.exists() else drawings.read()
    pictures: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.key in pictures:
            continue  # A variant, by its options.
        if row.key not in known:
            print(f"picture of {row.key}", file=sys.stderr, flush=True)
        pictures[row.key] = known.get(row.key) or drawings.untrained(row)
    drawings.write(pictures)


def main(_) -> None:
    file, rows = DOCS / "catalogue.json", catalogue.rows()
    known = Results({}, {}) if _ALL.value else catalogue.read(file)
    triples = zip(rows, catalogue.rows(SIZES), catalogue.rows(LONG), strict=True)
    if new := [triple for triple in triples if triple[0].title not in known.rows]:
        measured, baseline = measure(new, _ROUNDS.value)
        known = Results(
            {**known.none_ms, machine(): baseline}, {**known.rows, **measured}
        )
    kept = {row.title: known.rows[row.title] for row in rows}
    machines = {row.machine for row in kept.values()}
    none_ms = {name: ms for name, ms in known.none_ms.items() if name in machines}
    catalogue.write(file, Results(none_ms, kept))
    compute_pictures(rows)
    for name, text in catalogue.pages(
        rows, catalogue.read(file)
    ).items():  # Rounded numbers.
        write_text(DOCS / name, text)


if __name__ == "__main__":
    app.run(main)
