"""Pretrain a small encoder with every encoding, and measure its loss on short and long inputs.

    python research/which_encoding/run.py --books=BOOKS --out=research/which_encoding/results.jsonl

For each seed and encoding, a BERT-mini is pretrained in bfloat16 as in configs/pretrain_books.py,
on rows of 16 and then of 64 tokens, with half as many rows: a million tokens. Its masked-LM loss
and accuracy are measured on held-out rows of 64 tokens; on rows of 256 and 512, which it has not
seen; and of 256 after 60 more steps of 4 such rows. Each model is a line of --out, and a line of
pictures.jsonl beside it with its picture (see `pe_jax.properties.picture`) after training. The same
command resumes, and several processes may share the work: --part=0/2 takes every second model.
BOOKS has train-*.jsonl.xz and valid.jsonl.xz.

Hardware: any; three to five minutes for each model on a core of a CPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import jax
from absl import app, flags

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pe_jax.common.files import write_text
from pe_jax.common.schema import changed, from_values
from pe_jax.encodings import parameter_count
from pe_jax.properties.pictures import Picture
from pe_jax.trainer.configs import pretrain_books
from pe_jax.trainer.configs.all_tasks import TRAINING
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.disk_cache import cache_compiled_programs
from pe_jax.trainer.tasks import pretraining, text_training
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.training.checkpointing import newest_params
from pe_jax.trainer.training.metrics import read_metrics
from research.which_encoding.names import encodings_to_compare
from research.which_encoding.trained_model import trained_picture

_BOOKS = flags.DEFINE_string(
    "books", None, "Folder of books as JSON lines.", required=True
)
_OUT = flags.DEFINE_string("out", None, "JSON lines, to go on from.", required=True)
_SEEDS = flags.DEFINE_list(
    "seeds", ["0", "1", "2"], "Of models and of the order of the text."
)
_ENCODINGS = flags.DEFINE_list("encodings", [], "Names without commas; default: all.")
_PART = flags.DEFINE_string("part", "0/1", "Which share of the models, as 0/2 and 1/2.")
_RATE = flags.DEFINE_float("learning_rate", 1e-3, "Of all models.")

TRAINED, LONG, LONGER = 64, 256, 512  # Lengths of rows.


def settings(position: str, seed: int) -> dict[str, object]:
    """Return the changes of the shipped config that all runs of a model share."""
    books = Path(_BOOKS.value)
    return {
        "data.source": str(books / "train-00000-of-00004.jsonl.xz"),
        "data.validation": str(books / "valid.jsonl.xz"),
        "seed": seed, "model.position": position, "model.max_length": LONGER,
        "model.dtype": "bfloat16", "eval_every": 0, "checkpoint_every": 10**6,
    }  # fmt: skip


def config(changes: dict[str, object]) -> PretrainingConfig:
    """Return the shipped config with changes."""
    return changed(from_values(pretrain_books.get_config(), TRAINING), changes)


def rows(stage: str, length: int, batch_size: int, steps: int) -> dict[str, object]:
    """Return the changes that give a stage its rows, with as many masked words as there may be."""
    sizes = {"length": length, "batch_size": batch_size, "steps": steps}
    sizes["max_predictions"] = max(1, length * 5 // 32)
    return {f"{stage}.{key}": value for key, value in sizes.items()}


def measure(
    position: str, seed: int, folder: Path
) -> tuple[dict[str, object], Picture]:
    """Return the scores of one encoding and seed, and its picture after training."""
    common, start = settings(position, seed), time.monotonic()
    short = rows("stage1", 16, 64, 500) | rows("stage2", TRAINED, 16, 500)
    rate = {"optimizer.learning_rate": _RATE.value}
    run = pretraining.run(config(common | short | rate), folder / "run")
    model = run.program.model
    record: dict[str, object] = {
        "seconds": round(time.monotonic() - start, 1),
        "parameters": parameter_count(model.encoding(), model.num_layers),
    }

    def keep(name: str, scores: Mapping[str, float], prefix: str = "") -> None:
        for score in ("loss", "accuracy"):
            record[f"{score}/{name}"] = round(scores[f"{prefix}masked_lm_{score}"], 5)

    keep(str(TRAINED), read_metrics(folder / "run")[-1], "held_out/")
    _, params = newest_params(folder / "run", run.program.shardings_of)
    long = rows("stage1", LONG, 4, 60) | {
        "stage2.steps": 0,
        "optimizer.learning_rate": 3e-4,
    }
    long |= {"init": str(folder / "run"), "eval_examples": 2**15 // LONG}
    longer = long | rows("stage1", LONGER, 4, 1) | {"eval_examples": 2**15 // LONGER}
    for length, changes in ((LONG, long), (LONGER, longer)):
        resolved = text_training.resolve(config(common | changes))
        untrained = pretraining.build(resolved, saved_tokenizer(folder / "run"))
        keep(str(length), untrained.stages[0].evaluate(0, params))
    pretraining.run(config(common | long), folder / "long")
    keep(f"{LONG} after 60 steps", read_metrics(folder / "long")[-1], "held_out/")
    return record, trained_picture(folder / "run")


def append(path: Path, record: dict[str, object]) -> None:
    """Add a line to a file, which is read again: another process may have added lines."""
    write_text(
        path, "".join(f"{line}\n" for line in (*lines_of(path), json.dumps(record)))
    )


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main(_: list[str]) -> None:
    cache_compiled_programs()
    out, (part, parts) = Path(_OUT.value), map(int, _PART.value.split("/"))
    names = _ENCODINGS.value or encodings_to_compare()
    models = [(name, int(seed)) for seed in _SEEDS.value for name in names][part::parts]
    for position, seed in models:
        known = {
            (line["position"], line["seed"]) for line in map(json.loads, lines_of(out))
        }
        if (position, seed) in known:
            continue
        print(f"== {position}, seed {seed}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            scores, after = measure(position, seed, Path(folder))
        about = {"position": position, "seed": seed}
        append(out.with_name("pictures.jsonl"), about | {"picture": after})
        append(out, about | {"device": jax.devices()[0].device_kind} | scores)


if __name__ == "__main__":
    app.run(main)
