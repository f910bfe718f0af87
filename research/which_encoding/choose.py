"""Choose each encoding's learning rate, and the size of what it adds to the input.

    python research/which_encoding/choose.py --books=BOOKS

An encoding with parameters chooses among four ratios of their learning rate to that of all other
parameters. The two in the middle are trained first, then the neighbours of the best one until they
are worse. One that adds vectors to the input is also trained at two other sizes of these vectors,
with the best ratio. The lowest held-out loss decides, on a seed that run.py does not report.

Each model is a line of selection.jsonl. The same command resumes, and several processes may share
the work: --part=0/2 takes every second encoding. BOOKS has train-*.jsonl.xz and valid.jsonl.xz.

Hardware: any; three to five minutes for each model on a core of a CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import jax
from absl import app, flags

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pe_jax.trainer.console import huge_pages
from pe_jax.trainer.disk_cache import cache_compiled_programs
from research.flag_values import chosen, required
from research.json_files import append_json_line
from research.which_encoding import candidates, recipe
from research.which_encoding.names import FOLDER
from research.which_encoding.recipe import Treatment

SEED = 3  # run.py reports seeds 0, 1 and 2.

_BOOKS = flags.DEFINE_string("books", None, "Folder of books as JSON lines.")
_PART = flags.DEFINE_string("part", "0/1", "Which share of the encodings, as 0/2, 1/2.")
_ENCODINGS = flags.DEFINE_list("encodings", [], "Names without commas; default: all.")


def measure(name: str, position: str, ratio: float, books: Path) -> None:
    """Train one candidate, and add its line."""
    treatment = Treatment(position, ratio, SEED)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        recipe.train(treatment, books, run)
        scores = recipe.held_out(run, str(recipe.TRAINED))
    record: dict[str, object] = {"encoding": name, **treatment._asdict()}
    record["seconds"] = round(time.monotonic() - start, 1)
    append_json_line(FOLDER / "selection.jsonl", record | scores)


def main(_: list[str]) -> None:
    (books,) = map(Path, required(_BOOKS))
    cache_compiled_programs()
    part, parts = map(int, _PART.value.split("/"))
    names = chosen(_ENCODINGS, candidates.encodings_to_tune())
    for name in names[part::parts]:
        while left := candidates.missing(name):
            position, ratio = left[0]
            print(f"== {position}, ratio {ratio:g}", flush=True)
            measure(name, position, ratio, books)
            jax.clear_caches()  # A process may not hold the programs of twenty models.
        print(f"{name}: best {candidates.best(name)}", flush=True)


if __name__ == "__main__":
    huge_pages.use()
    app.run(main)
