"""How many tokens of distillation does a published BERT need to do its tasks as before?

    python benchmarks/distillation_curve.py --init=BERT --text='text/*.txt' --data_dir=TFDS \
        --out=docs/distillation.jsonl

For every encoding, number of tokens and seed: distil the BERT's positions (`centered`: from states
without their mean at each position; `masked_lm`: train it further with masked words instead),
measure R² of its last hidden states on 64 of SQuAD's questions with their paragraphs, and its order
sensitivity on 64 held-out texts, and fine-tune it on --tasks: questions (squad_shifts, 320 steps of
16; scored on a tenth of SQuAD v1.1's validation set) or acceptable sentences (CoLA, 1,000 steps of
32). "untouched" is the BERT as published. Each model is a line of --out, and a second start goes on
from there, also with further tasks; --keep is a folder for the distilled models, which are deleted
otherwise. Without anything left to do, it prints the table of the results, and draws --figure.
Lines with a "recipe" were trained in an earlier way; they are in the table only.

Hardware: any. One core of a slow CPU takes about half an hour to distil a million tokens, and as
long for each task.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax
import numpy as np
from absl import app, flags

sys.path.insert(0, str(Path(__file__).parent.parent))

from pe_jax.common.files import write_text
from pe_jax.common.schema import changed, from_values
from pe_jax.models import hidden_states
from pe_jax.properties import SHUFFLES
from pe_jax.trainer import figures
from pe_jax.trainer.configs import distill_positions, glue, pretrain_base, squad
from pe_jax.trainer.configs.all_tasks import TRAINING
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.data import load_tokenizer
from pe_jax.trainer.data.questions import read_questions
from pe_jax.trainer.data.rows import pad_rows
from pe_jax.trainer.data.squad import evaluation_windows
from pe_jax.trainer.disk_cache import cache_compiled_programs
from pe_jax.trainer.figures import Curve
from pe_jax.trainer.reports.property_report import order
from pe_jax.trainer.reports.property_report.subjects import from_run
from pe_jax.trainer.tasks import distillation, finetuning, pretraining
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource
from pe_jax.trainer.training import sharding

_INIT = flags.DEFINE_string("init", None, "Folder of a published BERT.", required=True)
_TEXT = flags.DEFINE_string("text", None, "Source of text to distil on.", required=True)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Where tfds datasets lie.", required=True
)
_OUT = flags.DEFINE_string("out", None, "JSON lines, to go on from.", required=True)
_TOKENS = flags.DEFINE_list("tokens", ["0", "500000", "2000000"], "Of distillation.")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "Of distillation and of fine-tuning.")
_METHODS = flags.DEFINE_list(
    "methods", ["distillation"], "Of distillation, centered, masked_lm."
)
_ENCODINGS = flags.DEFINE_list(
    "encodings",
    ["none", "learned_relative", "rope", "t5", "sinusoidal_relative", "alibi"],
    "Names without commas in their options.",
)
_TASKS = flags.DEFINE_list("tasks", ["squad"], "Or cola, or both.")
_KEEP = flags.DEFINE_string("keep", None, "Folder for the models before fine-tuning.")
_FIGURE = flags.DEFINE_string("figure", None, "PNG file for R² while training, and F1.")
_STEPS = flags.DEFINE_integer(
    "steps", 0, "Of fine-tuning, instead of a task's own number."
)

UNTOUCHED = "untouched"
_ROWS, _LENGTH = 4, 256  # Of a step.
_AXIS = "thousand tokens of distillation"
_QUESTIONS = "squad/v1.1:validation[:10%]"


class Task(NamedTuple):
    """What models are fine-tuned on."""

    shipped: ModuleType
    settings: dict[str, object]  # Changes of the shipped config.
    scores: tuple[str, ...]  # Names in results; in metrics they follow "held_out/".


TASKS = {
    "squad": Task(
        squad,
        {
            "steps": 320, "optimizer.learning_rate": 2e-4, "data.batch_size": 16,
            "data.length": 256, "data.buckets": (128, 192),
            "data.train": "squad_shifts:new_wiki+reddit", "data.validation": _QUESTIONS,
        },
        ("f1", "exact"),
    ),
    # At a learning rate of 2e-4 MiniLM learns nothing in CoLA.
    "cola": Task(glue, {"steps": 1000, "optimizer.learning_rate": 5e-5}, ("matthews",)),
}  # fmt: skip


class Job(NamedTuple):
    """A model to make and score."""

    position: str
    method: str
    tokens: int
    seed: int


def jobs() -> list[Job]:
    """Return all models that the flags ask for, the untouched BERT first."""
    seeds = [int(seed) for seed in _SEEDS.value]
    made = [
        Job(position, method, int(tokens), seed)
        for seed in seeds
        for tokens in _TOKENS.value
        for position in _ENCODINGS.value
        for method in _METHODS.value
    ]
    return [*(Job(UNTOUCHED, "", 0, seed) for seed in seeds), *made]


def train(
    task: ModuleType, shipped: ModuleType, folder: Path, changes: dict[str, object]
) -> float:
    """Train with changes of a shipped config; return the seconds that it took."""
    start = time.monotonic()
    task.run(changed(from_values(shipped.get_config(), TRAINING), changes), folder)
    return time.monotonic() - start


def train_model(job: Job, folder: Path) -> float:
    """Train the model of a job to `folder`; return the seconds that it took."""
    steps = max(1, job.tokens // (_ROWS * _LENGTH))
    settings: dict[str, object] = {
        "init": _INIT.value, "seed": job.seed, "data.source": _TEXT.value,
        "model.position": job.position, "eval_every": max(1, steps // 4),
        "stage1.batch_size": _ROWS, "stage1.length": _LENGTH, "stage1.steps": steps,
        "stage2.steps": 0,
    }  # fmt: skip
    rate = (
        {} if job.tokens else {"optimizer.learning_rate": 0.0}
    )  # The positions as drawn.
    if job.method != "masked_lm":
        settings |= {"patience": 0, "centered": job.method == "centered", **rate}
        return train(distillation, distill_positions, folder, settings)
    settings |= {
        "keep_position": False, "model.dropout_rate": 0.0, "model.attention_dropout_rate": 0.0,
        "stage1.max_predictions": 39, "stage1.epochs": 0, "stage2.epochs": 0,
        "model.dtype": "float32", "data.workers": 0, "optimizer.learning_rate": 2e-4, **rate,
    }  # fmt: skip
    return train(pretraining, pretrain_base, folder, settings)


def score(task: Task, init: Path, folder: Path, seed: int) -> dict[str, float]:
    """Fine-tune the model at `init` on a task; return its scores and the seconds they took."""
    settings: dict[str, object] = {
        **task.settings, "init": str(init), "seeds": (seed,), "eval_every": 0, "select": "last",
        "model.dropout_rate": 0.0, "model.attention_dropout_rate": 0.0,
        "data.data_dir": _DATA_DIR.value,
    }  # fmt: skip
    if _STEPS.value:
        settings["steps"] = _STEPS.value
    seconds = train(finetuning, task.shipped, folder, settings)
    scalars = {name: f"held_out/{name}" for name in task.scores}
    line = lines_with(folder, scalars[task.scores[0]])[-1]
    scores = {name: line[scalar] for name, scalar in scalars.items()}
    return scores | {f"seconds/{'+'.join(task.scores)}": seconds}


def last_states(model: Path, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Return the last hidden states `[tokens, D]` of a run or a published BERT, without padding."""
    start = PretrainedSource(str(model))
    place = functools.partial(sharding.state_shardings, sharding.data_mesh(), "data")
    inputs = (batch["tokens"], batch["token_type_ids"], batch["mask"])
    states = hidden_states(start.model, start.params(place)["bert"], *inputs)[-1]
    return np.asarray(states, np.float64)[batch["mask"]]


def r2_on_questions(model: Path) -> float:
    """Return R² of a model's last hidden states on 64 questions with the start of a paragraph."""
    questions = read_questions(_QUESTIONS, _DATA_DIR.value)[:64]
    tokenizer = load_tokenizer(PretrainedSource(_INIT.value).tokenizer())
    windows = evaluation_windows(questions, tokenizer, _LENGTH)
    first = np.unique(windows.question, return_index=True)[1]
    batch = pad_rows(windows.rows, first, _LENGTH)
    theirs, ours = (last_states(path, batch) for path in (Path(_INIT.value), model))
    return float(
        1 - ((ours - theirs) ** 2).sum() / ((theirs - theirs.mean(0)) ** 2).sum()
    )


def order_sensitivity(run: Path) -> dict[str, float]:
    """Return the order sensitivity of a distilled model against its teacher's, by kind of shuffle,
    on 64 held-out texts of 128 tokens."""
    numbers = order.order_sensitivity.measure(
        from_run(run), PropertiesConfig()
    ).numbers[run.name]
    return {
        f"order/{kind}/{field}": float(value)  # NumPy's have no JSON.
        for kind in SHUFFLES
        for field, value in numbers[kind].items()
    }


def lines_with(folder: Path, name: str) -> list[dict[str, float]]:
    """Return the lines of a run's metrics that have a scalar."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if name in line]


def make_model(job: Job, init: Path) -> dict[str, object]:
    """Make the model of a job at `init`; return what its line of the results says of it."""
    seconds = train_model(job, init)
    scalar = "held_out/masked_lm_loss" if job.method == "masked_lm" else "held_out/r2"
    numbers = lines_with(init, scalar)
    names = (scalar, f"{scalar}_mean")
    return {
        "device": jax.devices()[0].device_kind,
        "seconds": seconds,
        **{name: numbers[-1][name] for name in names if name in numbers[-1]},
        # Tokens, and the scalar after them.
        "curve": [
            (int(line["step"]) * _ROWS * _LENGTH, line[scalar]) for line in numbers
        ],
        "questions/r2": r2_on_questions(init),
        **order_sensitivity(init),
    }


def measure(
    job: Job, record: dict[str, object], tasks: list[Task]
) -> dict[str, object]:
    """Return a model's line of the results with its scores in further tasks. It is made first,
    unless it was kept."""
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        init = Path(_INIT.value).absolute()
        if job.position != UNTOUCHED:
            init = (Path(_KEEP.value).absolute() if _KEEP.value else runs) / "-".join(
                map(str, job)
            )
            if "seconds" not in record or not init.exists():
                record = record | make_model(job, init)
        for task in tasks:
            record = record | score(task, init, runs / task.scores[0], job.seed)
        return record


def table(records: list[dict]) -> list[str]:
    """Return the results as lines of Markdown, means over seeds."""
    by_model = defaultdict(list)
    for record in records:
        recipe = record.get("recipe", record["method"]) or "–"
        by_model[record["position"], record["tokens"], recipe].append(record)
    columns = (
        ("R², held out", "held_out/r2", ".3f"), ("R², questions", "questions/r2", ".3f"),
        ("R², order of words", "order/words/token_r2", ".3f"),
        ("F1", "f1", ".1f"), ("exact", "exact", ".1f"), ("Matthews", "matthews", ".1f"),
    )  # fmt: skip
    names = [
        "position",
        "tokens",
        "training",
        *(title for title, *_ in columns),
        "seeds",
    ]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for (position, tokens, recipe), group in sorted(by_model.items()):
        cells = [position, f"{tokens:,}", recipe]
        for _, name, form in columns:
            values = [record[name] for record in group if name in record]
            cells.append(format(statistics.mean(values), form) if values else "–")
        lines.append(f"| {' | '.join(cells)} | {len(group)} |")
    return lines


def draw(records: list[dict], path: Path) -> None:
    """Draw R² while training and F1 after fine-tuning, means over seeds, by thousands of tokens."""
    now = [record for record in records if record["method"] == "distillation"]
    now = [record for record in now if "recipe" not in record and "curve" in record]
    untouched = [record for record in records if record["position"] == UNTOUCHED]
    full = statistics.mean(record["f1"] for record in untouched if "f1" in record)
    curves = []
    longest = max(
        record["tokens"] for record in now
    )  # Shorter runs have another schedule.
    positions = [record["position"] for record in now if record["tokens"] == longest]
    for position in dict.fromkeys(positions):
        runs = [record for record in now if record["position"] == position]
        points = [record["curve"] for record in runs if record["tokens"] == longest]
        tokens, r2 = np.mean(points, 0).T
        kept = tokens > 0  # Untrained positions may have any R², below 0 too.
        title = "R² of the last layer, held-out text"
        curves.append(
            Curve(title, _AXIS, position, position, tokens[kept] / 1e3, r2[kept])
        )
        scores = defaultdict(list)
        for record in runs:
            if "f1" in record:
                scores[record["tokens"]].append(record["f1"] / full)
        if scores:
            x, y = (
                sorted(scores),
                [statistics.mean(scores[count]) for count in sorted(scores)],
            )
            title = "F1 on questions, over the teacher's"
            curves.append(
                Curve(title, _AXIS, position, position, np.array(x) / 1e3, np.array(y))
            )
    figure = figures.model_curves(
        curves,
        title="Students by tokens of distillation: hidden states, and fine-tuned",
    )
    figures.save(figure, path)


def main(_: list[str]) -> None:
    cache_compiled_programs()
    out = Path(_OUT.value)
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    records = [json.loads(line) for line in lines]
    old = [record for record in records if "recipe" in record]
    models = {
        Job(*(record[name] for name in Job._fields)): record
        for record in records
        if "recipe" not in record
    }
    for job in jobs():
        record = models.get(job, job._asdict())
        tasks = [TASKS[name] for name in _TASKS.value]
        tasks = [task for task in tasks if task.scores[0] not in record]
        if tasks:
            print(f"== {job}", flush=True)
            models[job] = measure(job, record, tasks)
            records = [*models.values(), *old]
            write_text(out, "".join(json.dumps(record) + "\n" for record in records))
    print("\n".join(table(records)))
    if _FIGURE.value:
        draw(records, Path(_FIGURE.value))


if __name__ == "__main__":
    app.run(main)
