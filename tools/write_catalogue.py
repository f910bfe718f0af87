"""Runs every encoding and writes docs/catalogue.md: properties, requirements, checks, costs.

    python tools/write_catalogue.py [--rounds=9] [--out=docs/catalogue.md]

Ten to twenty minutes on two cores: most of it is compiling. Costs are ratios to `none`, all in one
process, in turns; see the page. The checks that are known not to hold, with the reasons, are those
of the tests (tests/references).
"""

import os
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import catalogue
import jax
from absl import app, flags
from catalogue import Entry, Measured
from references import EXCUSED, REFERENCES

from pe_jax import cpu, testing
from pe_jax.encodings import from_name

ROOT = Path(__file__).resolve().parent.parent
_ROUNDS = flags.DEFINE_integer("rounds", 9, "Rounds of the costs.")
_OUT = flags.DEFINE_string("out", str(ROOT / "docs/catalogue.md"), "The page.")


def machine() -> str:
    """The processor of this machine, and its software."""
    model = cpu.model() or platform.machine()
    return f"{os.cpu_count()} × {model} ({jax.default_backend()}, jax {jax.__version__})"


def in_the_suite(row: Entry, tiny: Entry) -> str:
    """The name under which tests put an encoding through the suite: the same, or, where options are
    an example's, the first one of this key; else the row for the suite's sizes."""
    alike = [name for name in REFERENCES if name.partition("(")[0].partition("+")[0] == row.key]
    if row.name in REFERENCES:
        return row.name
    return tiny.name if row.name in catalogue.VARIANTS or not alike else alike[0]


def checked(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Measured of the checks that have a column, and all that is excused."""
    reasons = EXCUSED.get(name, {})
    encoding = from_name(name, **testing.SIZES)
    subject = testing.Subject(encoding, REFERENCES.get(name))
    told = {}
    for check in catalogue.CHECKS:
        found = testing.CHECKS[check](subject, reasons.get(check, ""))
        told[check] = "no" if check in reasons else "ok" if found == "ok" else "–"
    return told, reasons


def main(_) -> None:
    rows, tiny = catalogue.rows(), catalogue.rows(testing.SIZES)
    say = lambda line: print(line, file=sys.stderr, flush=True)
    found = {}
    for row, small in zip(rows, tiny, strict=True):
        say(row.title)
        found[row.name] = (*catalogue.measure(row), *checked(in_the_suite(row, small)))
    costs, baseline = catalogue.costs(rows, rounds=_ROUNDS.value, say=say)
    results = {name: Measured(*one, costs[name]) for name, one in found.items()}
    Path(_OUT.value).write_text(catalogue.page(rows, results, machine(), baseline))


if __name__ == "__main__":
    app.run(main)
