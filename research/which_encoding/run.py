"""Pretrain a small encoder with every encoding, and measure its loss on short and long inputs.

    python research/which_encoding/run.py --books=BOOKS

A BERT-mini is pretrained in bfloat16 as in configs/pretrain_books.py, on rows of 16 and then of 64
tokens, with half as many rows: a million tokens. The learning rate of the encoding's parameters is
the one that choose.py has chosen; encodings whose choice is not complete are left out. Masked-LM
loss and accuracy are measured on held-out rows of 64 tokens; on rows of 256 and 512, which the
model has not seen; and of 256 after 60 more steps of 4 such rows.

Those of IN_DEPTH (names.py) have three seeds, all others one. Each model is a line of
results.jsonl; the first of an encoding also a line of pictures.jsonl, with its picture (see
`pe_jax.properties.picture`) after training. The same command resumes, and several processes may
share the work: --part=0/2 takes every second model.

Hardware: any; three to five minutes for each model on a core of a CPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import jax
from absl import app, flags

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pe_jax.trainer.console import huge_pages
from pe_jax.trainer.disk_cache import cache_compiled_programs
from research.flag_values import chosen, required
from research.json_files import append_json_line, has_json_line
from research.which_encoding import candidates, recipe
from research.which_encoding.names import FOLDER, IN_DEPTH, encodings_to_compare
from research.which_encoding.recipe import Treatment
from research.which_encoding.trained_model import trained_picture

_BOOKS = flags.DEFINE_string("books", None, "Folder of books as JSON lines.")
_PART = flags.DEFINE_string("part", "0/1", "Which share of the models, as 0/2 and 1/2.")
_ENCODINGS = flags.DEFINE_list("encodings", [], "Names without commas; default: all.")

_SEEDS = 3


def treatments(names: list[str]) -> list[Treatment]:
    """Return the models to train: all with seed 0, then the further seeds of some."""
    treatments = []
    for seed in range(_SEEDS):
        for name in names:
            choice = candidates.best(name)
            has_seed = seed == 0 or name in IN_DEPTH
            if choice and has_seed:
                treatments.append(Treatment(*choice, seed))
    return treatments


def main(_: list[str]) -> None:
    (books,) = map(Path, required(_BOOKS))
    cache_compiled_programs()
    part, parts = map(int, _PART.value.split("/"))
    names = chosen(_ENCODINGS, encodings_to_compare())
    for treatment in treatments(names)[part::parts]:
        about = treatment._asdict()
        if has_json_line(FOLDER / "results.jsonl", about):
            continue
        print(f"== {treatment}", flush=True)
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "run"
            scores = recipe.measure(treatment, books, folder)
            if treatment.seed == 0:
                picture = trained_picture(folder)
                append_json_line(
                    FOLDER / "pictures.jsonl", about | {"picture": picture}
                )
        device = {"device": jax.devices()[0].device_kind}
        append_json_line(FOLDER / "results.jsonl", about | device | scores)
        jax.clear_caches()  # A process may not hold the programs of twenty models.


if __name__ == "__main__":
    huge_pages.use()
    app.run(main)
