"""Keys of the configs for fine-tuning on GLUE, on SQuAD, and on your own texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pe_jax.common.schema import Config, field, subconfig, task_field
from pe_jax.common.values import SEED, integer, number, one_of, several, text
from pe_jax.models.config import ModelChanges
from pe_jax.trainer.configs.all_tasks import GLUE_TASKS
from pe_jax.trainer.configs.training import (
    ACCUMULATION,
    COUNT_OR_ZERO,
    EPOCHS,
    HELD_OUT,
    LENGTH,
    RESIZE,
    ROWS,
    OptimizerConfig,
)


@dataclasses.dataclass(frozen=True)
class FinetuningDataConfig(Config):
    """Inputs of fine-tuning."""

    data_dir: str = field(
        "", text(), "Folder of tfds datasets; empty means tfds's default."
    )
    length: int = field(128, LENGTH, "Tokens of the longest inputs.")
    buckets: tuple[int, ...] = field(
        (16, 32, 64, 96),
        several(integer(1, 10**6)),
        "Shorter inputs are padded to these lengths; () for none.",
    )
    batch_size: int = field(32, ROWS, "Inputs of a step, for each seed.")
    eval_batch_size: int = field(64, ROWS, "Inputs scored at once.")
    held_out: float = field(
        0.0, HELD_OUT, "Fraction of the training data kept for `select`."
    )

    def errors(self) -> Iterator[str]:
        if list(self.buckets) != sorted(self.buckets):
            yield f"buckets must ascend, got {self.buckets}: sort them."


@dataclasses.dataclass(frozen=True)
class FinetuningConfig(Config):
    """Fine-tuning on a task of GLUE; what other configs of fine-tuning share with it."""

    task: str = task_field(*GLUE_TASKS)
    seeds: tuple[int, ...] = field(
        (0, 1, 2, 3, 4),
        several(SEED, least=1),
        "Of heads, dropout and data order; one program.",
    )
    init: str = field(
        "", text(), "The workdir of a pretraining run, or a published BERT."
    )
    resize: str = field(
        "", RESIZE, 'Of a table that is too short: "interpolate" or "repeat".'
    )
    model: ModelChanges = subconfig(ModelChanges)
    data: FinetuningDataConfig = subconfig(FinetuningDataConfig)
    epochs: float = field(3.0, EPOCHS, "Passes over the training data.")
    steps: int = field(0, COUNT_OR_ZERO, "If given, instead of epochs.")
    accumulation: int = field(1, ROWS, ACCUMULATION)
    optimizer: OptimizerConfig = subconfig(OptimizerConfig, learning_rate=2e-5)
    select: str = field(
        "last",
        one_of(("last", "best", "held_out")),
        'Which scores count: of the "last" step, of each seed\'s "best", or of the step that is '
        'best on the training data that is "held_out".',
    )
    log_every: int = field(100, COUNT_OR_ZERO, "Steps; 0 reports at the end only.")
    eval_every: int = field(0, COUNT_OR_ZERO, "Steps; 0 scores at the end only.")
    checkpoint_every: int = field(
        0, COUNT_OR_ZERO, "Steps; 0 saves after every tenth of them."
    )
    keep_checkpoints: int = field(1, integer(1, 10**6), "The newest.")

    def errors(self) -> Iterator[str]:
        if not self.steps and not self.epochs:
            yield f"epochs={self.epochs}: nothing to train. Give config.steps or config.epochs."
        if self.data.batch_size % self.accumulation:
            yield (
                f"accumulation={self.accumulation} does not divide config.data.batch_size="
                f"{self.data.batch_size}: change one of them."
            )
        if self.select == "held_out" and not self.data.held_out:
            yield (
                "select='held_out' chooses by training data that is kept from training: give "
                "config.data.held_out, such as 0.1."
            )


_QUESTIONS = text("Give NAME:SPLIT of tfds, or a file in SQuAD's format.")


@dataclasses.dataclass(frozen=True)
class SquadDataConfig(FinetuningDataConfig):
    """Questions, and windows of their contexts."""

    train: str = field(
        "squad/v1.1:train", _QUESTIONS, "NAME:SPLIT+SPLIT of tfds, or a JSON file."
    )
    validation: str = field("squad/v1.1:validation", _QUESTIONS, "As for `train`.")
    stride: int = field(
        128, integer(1, 10**6), "Tokens between the starts of windows of a context."
    )
    max_query: int = field(
        64, integer(1, 10**6), "Questions are truncated to this many tokens."
    )

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if self.length < self.max_query + 4:
            yield (
                f"max_query={self.max_query} leaves no room for three special tokens and a context "
                f"in config.data.length={self.length}: that is at least max_query + 4."
            )


@dataclasses.dataclass(frozen=True)
class SquadConfig(FinetuningConfig):
    """Fine-tuning on SQuAD."""

    task: str = task_field("squad")
    version: str = field(
        "v1.1", one_of(("v1.1", "v2.0")), "In v2.0 there may be no answer."
    )
    data: SquadDataConfig = subconfig(SquadDataConfig)
    n_best: int = field(
        20, integer(1, 10**4), "Likeliest starts and ends that are combined."
    )
    max_answer_tokens: int = field(
        30, integer(1, 10**6), "Longer spans are no answers."
    )
    null_threshold: float = field(
        0.0,
        number(float("-inf"), float("inf")),
        "v2.0: predict no answer if the null score exceeds the best span's by this.",
    )


@dataclasses.dataclass(frozen=True)
class ClassificationDataConfig(FinetuningDataConfig):
    """Tables of texts with a class each."""

    train: str = field("", text(), "A file of .csv, .tsv or .jsonl.")
    validation: str = field(
        "", text(), "As for `train`; empty keeps a tenth of its rows to score."
    )
    texts: tuple[str, ...] = field(
        ("text",),
        several(text("Give the name of a column."), least=1, most=2),
        "Names of the columns of the text, or of both texts of a pair.",
    )
    label: str = field(
        "label", text("Give the name of a column."), "Name of the column of the class."
    )


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(FinetuningConfig):
    """Fine-tuning on classes of your own texts."""

    task: str = task_field("classification")
    data: ClassificationDataConfig = subconfig(ClassificationDataConfig)
