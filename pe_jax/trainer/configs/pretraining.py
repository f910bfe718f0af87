"""Keys of the configs that train an encoder on text: pretraining, and what it shares."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from pe_jax.common.schema import Config, field, subconfig, task_field
from pe_jax.common.values import FLAG, SEED, integer, number, one_of, text
from pe_jax.models.config import ModelChanges
from pe_jax.trainer.configs.training import (
    ACCUMULATION,
    COUNT_OR_ZERO,
    EPOCHS,
    HELD_OUT,
    ROWS,
    OptimizerConfig,
)


@dataclasses.dataclass(frozen=True)
class StageConfig(Config):
    """A stage of training on text: inputs of one length."""

    # The least leaves room for two sentences.
    length: int = field(512, integer(8, 10**6), "Inputs have at most this many tokens.")
    batch_size: int = field(
        64, ROWS, "Each step trains on this many inputs, on all devices together."
    )
    steps: int = field(
        0,
        COUNT_OR_ZERO,
        "The stage has this many steps; with 0 and no epochs it is left out.",
    )
    epochs: float = field(
        0.0,
        EPOCHS,
        "The stage passes over the text this many times; give epochs or steps, not "
        "both.",
    )
    accumulation: int = field(1, ROWS, ACCUMULATION)

    def errors(self) -> Iterator[str]:
        if self.steps and self.epochs:
            yield (
                f"steps={self.steps} and epochs={self.epochs}: a stage takes steps or epochs, not "
                "both; set one of them to 0."
            )
        if self.batch_size % self.accumulation:
            yield (
                f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}: "
                "change one of them."
            )


@dataclasses.dataclass(frozen=True)
class PretrainingStageConfig(StageConfig):
    """A stage of pretraining: its inputs have masked words to predict."""

    max_predictions: int = field(
        0,
        integer(0, 10**6),
        "At most this many tokens of an input are predicted; 0 means data.mask_rate "
        "of its length.",
    )

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        if self.max_predictions > self.length:
            yield (
                f"max_predictions={self.max_predictions} is more than the length of the inputs, "
                f"{self.length}: lower it."
            )


@dataclasses.dataclass(frozen=True)
class TextConfig(Config):
    """The text that an encoder is trained on."""

    source: str = field(
        "pydoc",
        text("Give files, pydoc, tfds:NAME:SPLIT or tokenized:FOLDER."),
        'The training text is here: "pydoc" (texts that come with Python), a path or '
        "glob of .txt or .jsonl files (also .gz, .xz), tfds:NAME:SPLIT, or "
        "tokenized:FOLDER.",
    )
    validation: str = field(
        "",
        text(),
        "The held-out text is here, as in `source`; if this is empty, documents of "
        "`source` are held out.",
    )
    held_out: float = field(
        0.05,
        HELD_OUT,
        "This fraction of `source` is held out if `validation` is empty.",
    )
    feature: str = field(
        "text",
        text("Give the key of the text."),
        "The text of a record is under this key.",
    )
    data_dir: str = field(
        "",
        text(),
        "Datasets of tfds are in this folder; empty means the default of tfds.",
    )
    vocab: str = field(
        "",
        text(),
        "The tokenizer is this vocab.txt or tokenizer.json; if this is empty, it is "
        "that of init, or one is trained.",
    )
    vocab_size: int = field(  # Five special tokens, and one.
        30_522, integer(6, 10**7), "A vocabulary that is trained has this many tokens."
    )
    strip_accents: bool = field(
        False, FLAG, "A vocabulary that is trained drops accents and marks."
    )
    workers: int = field(
        0,
        integer(0, 128),
        "Batches are made by this many processes; 0 makes them in a thread.",
    )
    cache_dir: str = field(
        "",
        text(),
        "Tokenized text is kept in this folder; empty means ~/.cache/pe_jax.",
    )

    def errors(self) -> Iterator[str]:
        if not self.held_out and not self.validation:
            yield (
                f"held_out={self.held_out} must be above 0 if config.data.validation is empty: "
                "give one of them."
            )


@dataclasses.dataclass(frozen=True)
class PretrainingDataConfig(TextConfig):
    """The text of pretraining, and how examples are made of it."""

    packed: bool = field(
        False,
        FLAG,
        "Documents are packed into full rows, tokens attend within their document, "
        "and the masked language model is the only loss. Else inputs are sentence "
        "pairs, and the next sentence is a loss too.",
    )
    mask_rate: float = field(
        0.15, number(0, 1, "(]"), "This fraction of tokens is predicted."
    )
    short_probability: float = field(
        0.1,
        number(0, 1),
        "A pair of sentences is cut to a random length with this probability.",
    )


@dataclasses.dataclass(frozen=True)
class EncoderTrainingConfig(Config):
    """Training of an encoder on text: the keys of pretraining and distillation.

    One, two or three stages share one optimizer state and one learning rate schedule. A stage
    without steps and epochs is left out.
    """

    task: str = task_field("")  # Subclasses name theirs.
    seed: int = field(
        0,
        SEED,
        "Initial parameters, dropout and the order of the data depend on this number.",
    )
    init: str = field(
        "",
        text(),
        "Training starts from this run's workdir or published encoder "
        "(docs/checkpoints.md); empty starts from random parameters.",
    )
    parallel: str = field(
        "jit",
        one_of("pe_jax.trainer.training.sharding:PARALLEL"),
        'Steps use several devices in this way: "jit" (partitioned by the compiler), '
        '"fsdp" (sharded state), "pmap" (mapped per device), "pmap_bfloat16" or '
        '"fsdp_bfloat16" (the same two with gradients exchanged in bfloat16), or "auto" '
        "(the last two on TPUs).",
    )
    model: ModelChanges = subconfig(ModelChanges)
    data: TextConfig = subconfig(TextConfig)
    stage1: StageConfig = subconfig(StageConfig, length=128)
    stage2: StageConfig = subconfig(StageConfig)
    stage3: StageConfig = subconfig(StageConfig)
    optimizer: OptimizerConfig = subconfig(OptimizerConfig)
    log_every: int = field(
        100,
        COUNT_OR_ZERO,
        "Losses are logged every this many steps; 0, here and in other keys *_every, "
        "means at the end of a stage.",
    )
    eval_every: int = field(
        1_000, COUNT_OR_ZERO, "Held-out text is evaluated every this many steps."
    )
    eval_examples: int = field(
        1_024, integer(1, 1_000_000), "An evaluation reads this many held-out examples."
    )
    checkpoint_every: int = field(
        1_000, COUNT_OR_ZERO, "A checkpoint is saved every this many steps."
    )
    keep_checkpoints: int = field(
        3, integer(1, 10**6), "This many of the newest checkpoints are kept."
    )
    keep_best: int = field(
        0,
        integer(0, 10**6),
        "This many checkpoints of the lowest held-out loss are kept as well.",
    )

    @property
    def stages(self) -> Mapping[str, StageConfig]:
        """The stages that have steps or epochs, by key."""
        stages = {"stage1": self.stage1, "stage2": self.stage2, "stage3": self.stage3}
        return {
            name: stage for name, stage in stages.items() if stage.steps or stage.epochs
        }


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(EncoderTrainingConfig):
    """Pretraining: masked language model and next sentence, or the first alone.

    Two stages, as in BERT, or three: short sequences, then longer ones.
    """

    task: str = task_field("pretraining")
    keep_position: bool = field(
        True,
        FLAG,
        "A run that starts from init keeps its position parameters where they fit.",
    )
    data: PretrainingDataConfig = subconfig(PretrainingDataConfig)
    stage1: PretrainingStageConfig = subconfig(PretrainingStageConfig, length=128)
    stage2: PretrainingStageConfig = subconfig(PretrainingStageConfig)
    stage3: PretrainingStageConfig = subconfig(PretrainingStageConfig)

    @property
    def stages(self) -> Mapping[str, PretrainingStageConfig]:
        """The stages that have steps or epochs, by key, with their `max_predictions`."""
        stages = {}
        for name, stage in super().stages.items():
            assert isinstance(stage, PretrainingStageConfig)
            masked = math.ceil(round(self.data.mask_rate * stage.length, 6))
            most = stage.max_predictions or masked
            stages[name] = dataclasses.replace(stage, max_predictions=most)
        return stages

    def errors(self) -> Iterator[str]:
        rate = self.data.mask_rate
        for name, stage in self.stages.items():
            # The largest number that is masked; see `PretrainingExamples` and `PackedExamples`.
            tokens = stage.length - (2 if self.data.packed else 3)
            masked = round(rate * tokens)
            if masked > stage.max_predictions:
                yield (
                    f"{name}.max_predictions={stage.max_predictions} is too low: "
                    f"config.data.mask_rate={rate} masks {masked} of the {tokens} tokens of an "
                    f"input. Raise it to {masked}, or lower the rate."
                )
