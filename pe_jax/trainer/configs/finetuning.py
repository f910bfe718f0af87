"""Keys of the configs for fine-tuning on GLUE, on SQuAD, on your own texts, and on tagging."""

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
        "",
        text(),
        "Datasets of tfds are in this folder; empty means the default of tfds.",
    )
    length: int = field(
        128,
        LENGTH,
        "Inputs have at most this many tokens; longer ones are cut or, in SQuAD, "
        "split.",
    )
    buckets: tuple[int, ...] = field(
        (16, 32, 64, 96),
        several(integer(1, 10**6)),
        "Shorter inputs are padded to the next of these lengths; with () all have the "
        "full one.",
    )
    batch_size: int = field(
        32, ROWS, "Each step trains on this many inputs, for each seed."
    )
    eval_batch_size: int = field(64, ROWS, "This many inputs are scored at once.")
    held_out: float = field(
        0.0,
        HELD_OUT,
        "This fraction of the training data is kept from training, for `select`.",
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
        "A model is trained for each of these seeds, all in one program; new heads, "
        "dropout and the order of the data depend on it.",
    )
    init: str = field(
        "",
        text(),
        "Fine-tuning starts from this workdir of a pretraining run or published "
        "encoder.",
    )
    resize: str = field(
        "",
        RESIZE,
        'A table of positions that is too short is resized in this way, "interpolate" '
        'or "repeat"; empty makes it an error.',
    )
    model: ModelChanges = subconfig(ModelChanges)
    data: FinetuningDataConfig = subconfig(FinetuningDataConfig)
    epochs: float = field(3.0, EPOCHS, "Training passes over the data this many times.")
    steps: int = field(
        0, COUNT_OR_ZERO, "Training has this many steps; 0 takes `epochs`."
    )
    accumulation: int = field(1, ROWS, ACCUMULATION)
    optimizer: OptimizerConfig = subconfig(OptimizerConfig, learning_rate=2e-5)
    select: str = field(
        "last",
        one_of(("last", "best", "held_out")),
        'The scores that count are those of the "last" step, of each seed\'s "best", '
        'or of the step that is best on the training data that is "held_out".',
    )
    log_every: int = field(
        100,
        COUNT_OR_ZERO,
        "Losses are logged every this many steps; 0 logs them at the end only.",
    )
    eval_every: int = field(
        0,
        COUNT_OR_ZERO,
        "The model is scored every this many steps; 0 scores it at the end only.",
    )
    checkpoint_every: int = field(
        0,
        COUNT_OR_ZERO,
        "A checkpoint is saved every this many steps; 0 saves one after every tenth "
        "of them.",
    )
    keep_checkpoints: int = field(
        1, integer(1, 10**6), "This many of the newest checkpoints are kept."
    )

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
        "squad/v1.1:train",
        _QUESTIONS,
        "Training questions are read from this NAME:SPLIT+SPLIT of tfds or JSON file "
        "of SQuAD's format.",
    )
    validation: str = field(
        "squad/v1.1:validation",
        _QUESTIONS,
        "Questions to score on are read from here, as in `train`.",
    )
    stride: int = field(
        128,
        integer(1, 10**6),
        "Windows of a long context start this many tokens apart.",
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
        "v1.1",
        one_of(("v1.1", "v2.0")),
        'The questions are those of SQuAD "v1.1", or of "v2.0", where some have no '
        "answer.",
    )
    data: SquadDataConfig = subconfig(SquadDataConfig)
    n_best: int = field(
        20,
        integer(1, 10**4),
        "An answer is chosen among spans of this many likeliest starts and ends.",
    )
    max_answer_tokens: int = field(
        30, integer(1, 10**6), "Answers have at most this many tokens."
    )
    null_threshold: float = field(
        0.0,
        number(float("-inf"), float("inf")),
        "In v2.0 there is no answer if its score exceeds the best span's by more than "
        "this.",
    )


@dataclasses.dataclass(frozen=True)
class ClassificationDataConfig(FinetuningDataConfig):
    """Tables of texts with a class each."""

    train: str = field(
        "", text(), "The training texts are in this file of .csv, .tsv or .jsonl."
    )
    validation: str = field(
        "",
        text(),
        "The texts of this file are scored. Empty keeps a tenth of the rows of `train` to score.",
    )
    texts: tuple[str, ...] = field(
        ("text",),
        several(text("Give the name of a column."), least=1, most=2),
        "The text is in the column of this name, or both texts of a pair in two.",
    )
    label: str = field(
        "label",
        text("Give the name of a column."),
        "The class is in the column of this name.",
    )


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(FinetuningConfig):
    """Fine-tuning on classes of your own texts."""

    task: str = task_field("classification")
    data: ClassificationDataConfig = subconfig(ClassificationDataConfig)


_SENTENCES = text("Give a path or glob of files, or NAME:SPLIT of tfds.")
_COLUMN = integer(-1000, 1000)


@dataclasses.dataclass(frozen=True)
class TaggingDataConfig(FinetuningDataConfig):
    """Sentences of words with a label each: a word a line in files, or a dataset of tfds."""

    train: str = field(
        "conll2003:train",
        _SENTENCES,
        "The training sentences are in files of this path or glob, or in NAME:SPLIT+SPLIT "
        "of tfds.",
    )
    validation: str = field(
        "conll2003:dev",
        _SENTENCES,
        "These sentences are scored, and `select` depends on them.",
    )
    test: str = field(
        "",
        text(),
        "These sentences are scored too, and nothing depends on their scores.",
    )
    word_column: int = field(
        0,
        _COLUMN,
        "The word is in this column of files, counted from 0; -1 is the last.",
    )
    label_column: int = field(
        -1,
        _COLUMN,
        "The label is in this column of files, counted from 0; -1 is the last.",
    )
    features: tuple[str, ...] = field(
        ("tokens", "ner"),
        several(text("Give the name of a feature."), least=2, most=2),
        "The words and the labels of tfds are in features of these names.",
    )


@dataclasses.dataclass(frozen=True)
class TaggingConfig(FinetuningConfig):
    """Fine-tuning on labels of words."""

    task: str = task_field("tagging")
    scheme: str = field(
        "auto",
        one_of(("auto", "iob1", "iob2", "bioes", "none")),
        'Labels are read as marks of entities in this scheme, and F1 is of entities; with "none" '
        'they are plain tags, scored by accuracy. "auto" decides by the training data.',
    )
    data: TaggingDataConfig = subconfig(TaggingDataConfig)
