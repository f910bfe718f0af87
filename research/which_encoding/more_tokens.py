"""Train ten of the encodings ten times as long, and follow their loss.

    python research/which_encoding/more_tokens.py --books=BOOKS --workdir=W

The model, the text and the learning rates are those of run.py, and so is the chosen ratio of the
encoding's own learning rate; an encoding whose choice is not complete is left out. Training takes
ten million tokens: rows of 16 tokens, then of 64, then of 128. Held-out loss is measured every 500
steps on rows of the stage's length, and at the end on rows of 64, 128, 256 and 512 tokens.

Each model is a line of more_tokens.jsonl. The same command resumes, also within a model. Models
stay in W, for research/tagging to fine-tune.

Hardware: any; 30 to 60 minutes for each model on a core of a CPU.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import jax
from absl import app, flags

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pe_jax.trainer.console import huge_pages
from pe_jax.trainer.disk_cache import cache_compiled_programs
from pe_jax.trainer.training.metrics import read_evaluations
from research.flag_values import chosen, required
from research.json_files import append_json_line, has_json_line
from research.which_encoding import candidates, recipe
from research.which_encoding.names import FOLDER, SECOND_SEEDS, TEN_MILLION
from research.which_encoding.recipe import Treatment

HELD_OUT = ((64, 2**16), (128, 2**16), (256, 2**15), (512, 2**15))  # Length, tokens.

_BOOKS = flags.DEFINE_string("books", None, "Folder of books as JSON lines.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the models.")
_ENCODINGS = flags.DEFINE_list("encodings", [], "Names without commas; default: all.")


def treatments(names: list[str]) -> list[Treatment]:
    """Return the models to train: all with seed 0, then the second seed of some."""
    chosen = []
    for seed, planned in enumerate((TEN_MILLION, SECOND_SEEDS)):
        for name in planned:
            choice = candidates.best(name)
            if choice and name in names:
                chosen.append(Treatment(*choice, seed))
    return chosen


def curve(folder: Path) -> list[tuple[int, float]]:
    """Return the tokens and the held-out loss at each evaluation of a run."""
    return [
        (recipe.tokens_at(step), round(scores["masked_lm_loss"], 5))
        for step, scores in read_evaluations(folder).items()
    ]


def measure(treatment: Treatment, books: Path, folder: Path) -> dict[str, object]:
    """Train a model in a folder, or resume it; return its losses."""
    start = time.monotonic()
    run = recipe.train_long(treatment, books, folder)
    record: dict[str, object] = {"seconds": round(time.monotonic() - start, 1)}
    record["tokens"] = sum(map(math.prod, recipe.LONG_STAGES))
    for length, tokens in HELD_OUT:
        record |= recipe.scores_at(length, tokens, run, treatment, books, folder)
    return record | {"curve": curve(folder)}


def main(_: list[str]) -> None:
    books, workdir = map(Path, required(_BOOKS, _WORKDIR))
    cache_compiled_programs()
    for treatment in treatments(chosen(_ENCODINGS, TEN_MILLION)):
        about = treatment._asdict()
        if has_json_line(FOLDER / "more_tokens.jsonl", about):
            continue
        print(f"== {treatment}", flush=True)
        folder = recipe.long_folder(workdir, treatment)
        record = measure(treatment, books, folder)
        device = {"device": jax.devices()[0].device_kind}
        append_json_line(FOLDER / "more_tokens.jsonl", about | device | record)
        jax.clear_caches()  # A process may not hold the programs of twenty models.


if __name__ == "__main__":
    huge_pages.use()
    app.run(main)
