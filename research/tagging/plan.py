"""The models of the study and what they are fine-tuned on, in the order in which they are run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from research.which_encoding.names import SECOND_SEEDS, TEN_MILLION

SCRATCH, DISTILLED, PUBLISHED = "scratch", "distilled", "published"

# MiniLM with other positions; "learned_absolute" is a new table.
REPLACED = (
    "none", "learned_absolute", "rope", "t5", "learned_relative", "alibi",
    "rope(fraction=0.5)",
)  # fmt: skip

# Learning rate of new positions in distillation over that of all other parameters, where it is not
# the 5 of configs/distill_positions.py. From scratch a table of biases needs 30 or more.
RATIOS = {"t5": 30.0}


class Model(NamedTuple):
    """An encoder of the study.

    Attributes:
      origin: `SCRATCH`, a BERT-mini of ten million tokens (research/which_encoding);
        `DISTILLED` from MiniLM; or `PUBLISHED`, MiniLM itself.
      position: the name of its encoding, as the tables have it.
      seed: of its pretraining or distillation.
    """

    origin: str
    position: str
    seed: int

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.origin}-{self.position}-{self.seed}".replace("/", "_")


class Task(NamedTuple):
    """What a model is fine-tuned on.

    Attributes:
      files: patterns of the training, validation and test files; empty for a task of GLUE.
      label_column: of the label.
      metric: the score that is compared.
      epochs: passes over the training data.
    """

    files: tuple[str, ...]
    label_column: int
    metric: str
    epochs: float


TASKS = {
    "ncbi": Task(
        ("ncbi_disease/train.tsv", "ncbi_disease/devel.tsv", "ncbi_disease/test.tsv"),
        label_column=-1,
        metric="f1_test",
        epochs=3.0,
    ),
    "wnut17": Task(
        ("wnut17/train.conll", "wnut17/dev.conll", "wnut17/test.conll"),
        label_column=-1,
        metric="f1_test",
        epochs=5.0,
    ),
    "ewt": Task(
        ("ud_ewt/train.tsv", "ud_ewt/dev.tsv", "ud_ewt/test.tsv"),
        label_column=2,
        metric="accuracy_test",
        epochs=2.0,
    ),
    # Sentence tasks, to tell worse at tagging from worse.
    "cola": Task((), label_column=0, metric="matthews", epochs=3.0),
    "sst2": Task((), label_column=0, metric="accuracy", epochs=0.5),
}


def models() -> Iterator[Model]:
    """Yield all models: the published one and its control first, second seeds last."""
    yield Model(PUBLISHED, "learned_absolute", 0)
    for seed, from_scratch in enumerate((TEN_MILLION, SECOND_SEEDS)):
        for position in from_scratch:
            yield Model(SCRATCH, position, seed)
        for position in REPLACED:
            yield Model(DISTILLED, position, seed)
