"""Pretrain a small encoder with every encoding, and measure its loss on short and long inputs.

    python research/which_encoding/run.py --books=BOOKS --out=research/which_encoding/results.jsonl

For each seed and encoding, a BERT-mini is pretrained as in configs/pretrain_books.py, with rows of
16 and then of 128 tokens (two million in all). Its masked-LM loss and accuracy are measured on
held-out rows of 128 tokens; on rows of 512 and 1,024, which it has not seen; and of 512 after 200
more steps of 8 such rows. The time of a training step is that over the same with `none`, in turns.
Each model is a line of --out, and a line of pictures.jsonl beside it with its picture (see
`pe_jax.properties.picture`) after training. The same command resumes, and several processes may
share the work: --part=0/2 takes every second model. BOOKS has train-*.jsonl.xz and valid.jsonl.xz.

Hardware: any; about a quarter of an hour for each model on a core of a CPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import jax
from absl import app, flags

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pe_jax.configs import pretrain_books
from pe_jax.configs.all_tasks import TRAINING
from pe_jax.configs.pretraining import PretrainingConfig
from pe_jax.console.compile_cache import cache_compiled_programs
from pe_jax.encodings import parameter_count
from pe_jax.files import write_text
from pe_jax.properties.pictures import Picture
from pe_jax.schema import changed, from_values
from pe_jax.tasks import pretraining
from pe_jax.training.metrics import read_metrics
from research.which_encoding.names import encodings_to_compare
from research.which_encoding.trained_model import step_ratio, trained_picture

_BOOKS = flags.DEFINE_string("books", None, "Folder of books as JSON lines.", required=True)
_OUT = flags.DEFINE_string("out", None, "JSON lines, to go on from.", required=True)
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "Of models and of the order of the text.")
_ENCODINGS = flags.DEFINE_list("encodings", [], "Names without commas; default: all.")
_PART = flags.DEFINE_string("part", "0/1", "Which share of the models, as 0/2 and 1/2.")
_RATE = flags.DEFINE_float("learning_rate", 1e-3, "Of all models.")
_STEPS = flags.DEFINE_integer("steps", 500, "Of each of the two stages.")


def train(folder: Path, changes: dict[str, object]) -> tuple[pretraining.Run, dict[str, float]]:
    """Train with changes of the shipped config; return the last metrics on held-out text too."""
    config: PretrainingConfig = changed(from_values(pretrain_books.get_config(), TRAINING), changes)
    run = pretraining.run(config, folder)
    return run, [line for line in read_metrics(folder) if "held_out/masked_lm_loss" in line][-1]


def measure(position: str, seed: int, folder: Path) -> tuple[dict[str, object], Picture]:
    """Return the scores of one encoding and seed, and its picture after training."""
    text = {
        "data.source": f"{_BOOKS.value}/train-00000-of-00004.jsonl.xz",
        "data.validation": f"{_BOOKS.value}/valid.jsonl.xz", "data.vocab_size": 2048,
        "seed": seed, "model.position": position, "model.max_length": 1024,
        "eval_every": 0, "checkpoint_every": 10**6,
    }  # fmt: skip
    stage2 = {"stage2.length": 128, "stage2.batch_size": 16, "stage2.max_predictions": 20}
    steps: dict[str, object] = {"stage1.steps": _STEPS.value, "stage2.steps": _STEPS.value}
    start = time.monotonic()
    steps |= {"optimizer.learning_rate": _RATE.value}
    run, line = train(folder / "run", text | stage2 | steps)
    seconds = time.monotonic() - start
    model = run.program.model
    record: dict[str, object] = {
        "seconds": round(seconds, 1),
        "step/none": round(step_ratio(run), 3),
        "parameters": parameter_count(model.encoding(), model.num_layers),
    }

    def keep(line: dict[str, float], name: str) -> None:
        record[f"loss/{name}"] = line["held_out/masked_lm_loss"]
        record[f"accuracy/{name}"] = line["held_out/masked_lm_accuracy"]

    keep(line, "128")
    longer = text | {"init": str(folder / "run"), "stage2.steps": 0, "stage1.batch_size": 8}
    for length, steps_there, rate in ((512, 1, 0.0), (1024, 1, 0.0), (512, 200, 3e-4)):
        name = f"{length} after {steps_there} steps" if rate else str(length)
        changes = {
            "stage1.length": length, "stage1.steps": steps_there, "optimizer.learning_rate": rate,
            "stage1.max_predictions": length * 5 // 32, "eval_examples": 64 * 1024 // length,
        }  # fmt: skip
        keep(train(folder / name.replace(" ", "_"), longer | changes)[1], name)
    return record, trained_picture(folder / "run")


def append(path: Path, record: dict[str, object]) -> None:
    """Add a line to a file, which is read again: another process may have added lines."""
    write_text(path, "".join(f"{line}\n" for line in (*lines_of(path), json.dumps(record))))


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main(_: list[str]) -> None:
    cache_compiled_programs()
    out, (part, parts) = Path(_OUT.value), map(int, _PART.value.split("/"))
    names = _ENCODINGS.value or encodings_to_compare()
    models = [(name, int(seed)) for seed in _SEEDS.value for name in names][part::parts]
    for position, seed in models:
        known = {(line["position"], line["seed"]) for line in map(json.loads, lines_of(out))}
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
