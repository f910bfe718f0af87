"""The runs of the study: encoders with each encoding, and their fine-tuning."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import NamedTuple

from pe_jax.common.schema import changed, from_values
from pe_jax.trainer.configs import distill_positions, glue, tagging
from pe_jax.trainer.configs.all_tasks import TRAINING
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.reports.finetuning_report import results
from pe_jax.trainer.reports.tagging_report import tagging_details
from pe_jax.trainer.tasks import distillation, finetuning
from pe_jax.trainer.training.metrics import read_evaluations
from research.tagging.plan import DISTILLED, PUBLISHED, RATIOS, SCRATCH, TASKS, Model
from research.which_encoding import candidates, recipe

# Of fine-tuning, in one program. Claims rest on pretraining and distillation, which are repeated.
SEEDS = (0, 1)
# The operating point, see README.md.
LEARNING_RATES = {SCRATCH: 5e-4, DISTILLED: 1.5e-4, PUBLISHED: 1.5e-4}
LENGTH = 96  # Of rows; all models were trained on longer ones.
BATCH_SIZE = 16
# Of pretraining; of distillation, with how well a student follows its teacher when the words or
# sentences of a text are shuffled (docs/measures/order_sensitivity.md).
SCORES_OF_MODELS = (
    "masked_lm_loss",
    "masked_lm_accuracy",
    "r2",
    "order/words/token_r2",
    "order/sentences/token_r2",
)


class Folders(NamedTuple):
    """Where the study reads and writes.

    Attributes:
      work: of distilled models and unfinished runs.
      scratch: of models from scratch, shared with research/which_encoding/more_tokens.py.
      books: as of research/which_encoding.
      tagging: of the files that `TASKS` name.
      minilm: of the published model.
      tfds: of the datasets of GLUE; empty leaves these tasks out.
    """

    work: Path
    scratch: Path
    books: Path
    tagging: Path
    minilm: Path
    tfds: str


def tasks(folders: Folders) -> list[str]:
    """Return the names of the tasks that there is data for."""
    return [name for name, task in TASKS.items() if task.files or folders.tfds]


def distillation_config(model: Model, folders: Folders) -> DistillationConfig:
    """Return the shipped config that gives MiniLM another encoding."""
    config: DistillationConfig = from_values(distill_positions.get_config(), TRAINING)
    changes: dict[str, object] = {
        "init": str(folders.minilm),
        "model.position": model.position,
        "model.dtype": "bfloat16",
        "data.source": str(folders.books / "train-00000-of-00004.jsonl.xz"),
        "data.validation": str(folders.books / "valid.jsonl.xz"),
        "seed": model.seed,
        "stage1.steps": 1_000,  # A million tokens, as in docs/distillation.md.
        "eval_every": 500,  # An evaluation takes as long as 30 steps.
        "patience": 0,  # All have as many steps.
    }
    if model.position in RATIOS:
        own_rate = f"bert/position/{model.position}/*={RATIOS[model.position]:g}"
        changes["optimizer.rates"] = (*config.optimizer.rates, own_rate)
    return changed(config, changes)


def make_model(model: Model, folders: Folders) -> Path:
    """Return the folder of a model, which is trained if it is not there, or resumed.

    Raises:
      FileNotFoundError: if the learning rate of a model from scratch is not chosen yet.
    """
    if model.origin == PUBLISHED:
        return folders.minilm
    if model.origin == DISTILLED:
        folder = folders.work / "models" / model.folder
        distillation.run(distillation_config(model, folders), folder)
        return folder
    choice = candidates.best(model.position)
    if choice is None:
        raise FileNotFoundError(
            f"{model.position} has no learning rate yet: run research/which_encoding/choose.py."
        )
    treatment = recipe.Treatment(*choice, model.seed)
    folder = recipe.long_folder(folders.scratch, treatment)
    recipe.train_long(treatment, folders.books, folder)
    return folder


def scores_of_model(model: Model, folder: Path) -> dict[str, float]:
    """Return how well a model was trained: its last held-out scores, `SCORES_OF_MODELS`."""
    if model.origin == PUBLISHED:
        return {}
    evaluations = read_evaluations(folder)
    last = evaluations[max(evaluations)]
    return {name: round(last[name], 5) for name in SCORES_OF_MODELS if name in last}


def finetuning_config(
    model: Model, name: str, init: Path, folders: Folders
) -> FinetuningConfig:
    """Return the config that fine-tunes a model on a task, with `SEEDS`."""
    task = TASKS[name]
    changes: dict[str, object] = {
        "init": str(init),
        "seeds": SEEDS,
        "model.dtype": "bfloat16",
        "epochs": task.epochs,
        "data.length": LENGTH,
        "data.buckets": (32, 48),
        "data.batch_size": BATCH_SIZE,
        "optimizer.learning_rate": LEARNING_RATES[model.origin],
        "checkpoint_every": 200,
    }
    if not task.files:
        changes |= {"task": name, "data.data_dir": folders.tfds}
        return changed(from_values(glue.get_config(), TRAINING), changes)
    keys = ("data.train", "data.validation", "data.test")
    for key, pattern in zip(keys, task.files, strict=True):
        changes[key] = str(folders.tagging / pattern)
    changes["data.label_column"] = task.label_column
    return changed(from_values(tagging.get_config(), TRAINING), changes)


def measure(model: Model, name: str, folders: Folders) -> dict[str, object]:
    """Fine-tune a model on a task; return the scores of all seeds, and by type. The folder of the
    run is deleted: checkpoints of MiniLM are large."""
    init = make_model(model, folders)
    config = finetuning_config(model, name, init, folders)
    folder = folders.work / "runs" / f"{model.folder}-{name}"
    start = time.monotonic()
    run = finetuning.run(config, folder)
    numbers = results(run, folder)
    record: dict[str, object] = {
        "learning_rate": config.optimizer.learning_rate,
        "epochs": config.epochs,
        "steps": numbers["steps"][0],
        "batch_size": config.data.batch_size,
        "length": config.data.length,
        "metric": TASKS[name].metric,
        "scores": numbers["scores"],
        "baseline": numbers["baseline"],
        "seconds": round(time.monotonic() - start, 1),
        "of_model": scores_of_model(model, init),
    }
    if run.task.scheme:
        details = tagging_details(run.task, folder, numbers["seeds"], numbers["steps"])
        record["types"] = details["test"]["types"]
    shutil.rmtree(folder)
    return record
