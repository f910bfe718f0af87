"""Measure encodings and write docs/catalogue.md: properties, requirements, checks, costs.

    python tools/write_catalogue.py [--all] [--rounds=9]

Measurements are in docs/catalogue.json. Encodings that have none there are measured, or all with
--all, which takes ten to twenty minutes on two cores, most of it compiling; then the page is
written. Costs are ratios to `none`, all in one process, in turns. The checks that are known not to
hold, with the reasons, are those of the tests (tests/references).
"""

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import catalogue
import jax
from absl import app, flags
from catalogue import Entry, Measured, Results
from references import EXCUSED, REFERENCES

from pe_jax import cpu, testing
from pe_jax.encodings import from_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/catalogue.md"
_ROUNDS = flags.DEFINE_integer("rounds", 9, "Rounds of the costs.")
_ALL = flags.DEFINE_bool("all", False, "Measure all encodings again.")


def machine() -> str:
    """Return the processor of this machine, and its software."""
    model = cpu.model() or platform.machine()
    return f"{os.cpu_count()} × {model} ({jax.default_backend()}, jax {jax.__version__})"


def in_the_suite(row: Entry, tiny: Entry) -> str:
    """Return the name under which tests put an encoding through the suite: the same, or, where
    options are an example's, the first one of this key; else the row for the suite's sizes."""
    alike = [name for name in REFERENCES if name.partition("(")[0].partition("+")[0] == row.key]
    if row.name in REFERENCES:
        return row.name
    return tiny.name if row.name in catalogue.VARIANTS or not alike else alike[0]


def checked(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return results of the checks that have a column, and reasons of all that do not hold."""
    reasons = EXCUSED.get(name, {})
    encoding = from_name(name, **testing.SIZES)
    subject = testing.Subject(encoding, REFERENCES.get(name))
    results = {}
    for check in catalogue.CHECKS:
        result = testing.CHECKS[check](subject, reasons.get(check, ""))
        results[check] = "no" if check in reasons else "ok" if result == "ok" else "–"
    return results, reasons


def measure(pairs: Sequence[tuple[Entry, Entry]], rounds: int) -> tuple[dict[str, Measured], float]:
    """Return measurements of rows, each given with its row for the suite's sizes, by title; and
    milliseconds of `none`."""
    say = lambda line: print(line, file=sys.stderr, flush=True)
    numbers = {}
    for row, small in pairs:
        say(row.title)
        numbers[row.title] = (*catalogue.measure(row), *checked(in_the_suite(row, small)))
    costs, baseline = catalogue.costs([row for row, _ in pairs], rounds=rounds, say=say)
    measured = {
        row.title: Measured(*numbers[row.title], costs[row.name], catalogue.linear(row), machine())
        for row, _ in pairs
    }
    return measured, baseline


def main(_) -> None:
    file, rows = PAGE.with_suffix(".json"), catalogue.rows()
    known = Results({}, {}) if _ALL.value else catalogue.read(file)
    pairs = zip(rows, catalogue.rows(testing.SIZES), strict=True)
    if new := [pair for pair in pairs if pair[0].title not in known.rows]:
        measured, baseline = measure(new, _ROUNDS.value)
        known = Results({**known.none_ms, machine(): baseline}, {**known.rows, **measured})
    kept = {row.title: known.rows[row.title] for row in rows}
    machines = {row.machine for row in kept.values()}
    none_ms = {name: ms for name, ms in known.none_ms.items() if name in machines}
    catalogue.write(file, Results(none_ms, kept))
    rounded = catalogue.read(file)  # The page has the numbers of the file.
    PAGE.write_text(catalogue.page(rows, rounded.rows, rounded.none_ms), encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
