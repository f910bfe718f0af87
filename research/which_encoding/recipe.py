"""One model of the comparison: a BERT-mini on books, and its losses on held-out rows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pe_jax.common.schema import changed, from_values
from pe_jax.encodings import parameter_count
from pe_jax.trainer.configs import pretrain_books
from pe_jax.trainer.configs.all_tasks import TRAINING
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.tasks import pretraining, text_training
from pe_jax.trainer.tasks.pretraining import Run
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.training.checkpointing import newest_params
from pe_jax.trainer.training.metrics import read_metrics

TRAINED, LONG, LONGER = 64, 256, 512  # Lengths of rows.
# Of ten million tokens (more_tokens.py): length, rows, steps.
LONG_STAGES = ((16, 64, 1_000), (64, 32, 2_000), (128, 16, 2_500))
EVERY = 500  # Steps between their evaluations, and between checkpoints.


class Treatment(NamedTuple):
    """What differs between the models of the comparison.

    Attributes:
      position: the encoding, with its options.
      ratio: learning rate of the encoding's parameters over that of all others.
      seed: of the model and of the order of the text.
    """

    position: str
    ratio: float
    seed: int


def settings(treatment: Treatment, books: Path) -> dict[str, object]:
    """Return the changes of the shipped config that all runs of a model share."""
    changes: dict[str, object] = {
        "data.source": str(books / "train-00000-of-00004.jsonl.xz"),
        "data.validation": str(books / "valid.jsonl.xz"),
        "seed": treatment.seed,
        "model.position": treatment.position,
        "model.max_length": LONGER,
        "model.dtype": "bfloat16",
        "eval_every": 0,
        "checkpoint_every": 10**6,
    }
    if treatment.ratio != 1:
        changes["optimizer.rates"] = (f"bert/position/*={treatment.ratio:g}",)
    return changes


def config(changes: dict[str, object]) -> PretrainingConfig:
    """Return the shipped config with changes."""
    return changed(from_values(pretrain_books.get_config(), TRAINING), changes)


def rows(stage: str, length: int, batch_size: int, steps: int) -> dict[str, object]:
    """Return the changes that give a stage its rows, with as many masked words as there may be."""
    sizes = {"length": length, "batch_size": batch_size, "steps": steps}
    sizes["max_predictions"] = max(1, length * 5 // 32)
    return {f"{stage}.{key}": value for key, value in sizes.items()}


def tokens_at(step: int) -> int:
    """Return how many tokens a model has read after a number of steps of `LONG_STAGES`."""
    tokens = 0
    for length, rows, steps in LONG_STAGES:
        taken = min(step, steps)
        tokens += taken * length * rows
        step -= taken
    return tokens


def train(treatment: Treatment, books: Path, folder: Path) -> Run:
    """Pretrain a model for a million tokens, into a folder."""
    stages = rows("stage1", 16, 64, 500) | rows("stage2", TRAINED, 16, 500)
    return pretraining.run(config(settings(treatment, books) | stages), folder)


def scores_of(
    scores: Mapping[str, float], name: str, prefix: str = ""
) -> dict[str, float]:
    """Return masked-LM loss and accuracy under the names of the results."""
    return {
        f"{score}/{name}": round(scores[f"{prefix}masked_lm_{score}"], 5)
        for score in ("loss", "accuracy")
    }


def long_folder(parent: Path, treatment: Treatment) -> Path:
    """Return the folder of a model of ten million tokens."""
    return parent / f"{treatment.position}-{treatment.seed}"


def train_long(treatment: Treatment, books: Path, folder: Path) -> Run:
    """Pretrain a model for ten million tokens in a folder, or resume it."""
    changes = settings(treatment, books)
    changes |= {"eval_every": EVERY, "checkpoint_every": EVERY}
    for number, stage in enumerate(LONG_STAGES, start=1):
        changes |= rows(f"stage{number}", *stage)
    return pretraining.run(config(changes), folder)


def held_out(folder: Path, name: str) -> dict[str, float]:
    """Return the scores that a run has measured at its end."""
    return scores_of(read_metrics(folder)[-1], name, "held_out/")


def scores_at(
    length: int,
    tokens: int,
    run: Run,
    treatment: Treatment,
    books: Path,
    folder: Path,
) -> dict[str, float]:
    """Return the scores of a trained model on held-out rows of a length, `tokens` in all.

    Args:
      folder: of the trained model.
    """
    _, params = newest_params(folder, run.program.shardings_of)
    changes = settings(treatment, books) | rows("stage1", length, 4, 1)
    changes |= {"stage2.steps": 0, "eval_examples": tokens // length}
    resolved = text_training.resolve(config(changes))
    untrained = pretraining.build(resolved, saved_tokenizer(folder))
    scores = untrained.stages[0].evaluate(0, params)
    return scores_of(scores, str(length))


def scores_after_longer_rows(
    treatment: Treatment, books: Path, folder: Path
) -> dict[str, float]:
    """Return the scores of a trained model on longer rows after 60 more steps of 4 such rows.

    Args:
      folder: of the trained model; the further steps are written beside it.
    """
    changes = settings(treatment, books) | rows("stage1", LONG, 4, 60)
    changes |= {
        "stage2.steps": 0,
        "eval_examples": 2**15 // LONG,
        "optimizer.learning_rate": 3e-4,
        "init": str(folder),
    }
    trained_on = folder.with_name(f"{folder.name}-longer")
    pretraining.run(config(changes), trained_on)
    return held_out(trained_on, f"{LONG} after 60 steps")


def measure(treatment: Treatment, books: Path, folder: Path) -> dict[str, float]:
    """Train a model into a folder, and return its time in seconds, number of position parameters
    and scores."""
    start = time.monotonic()
    run = train(treatment, books, folder)
    seconds = time.monotonic() - start
    model = run.program.model
    about = {
        "seconds": round(seconds, 1),
        "parameters": parameter_count(model.encoding(), model.num_layers),
    }
    record = about | held_out(folder, str(TRAINED))
    for length in (LONG, LONGER):
        record |= scores_at(length, 2**15, run, treatment, books, folder)
    return record | scores_after_longer_rows(treatment, books, folder)
