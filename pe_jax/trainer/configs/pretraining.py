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
    length: int = field(512, integer(8, 10**6), "Tokens of an input.")
    batch_size: int = field(64, ROWS, "Inputs of a step, on all devices together.")
    steps: int = field(0, COUNT_OR_ZERO, "0, with no epochs: the stage is left out.")
    epochs: float = field(0.0, EPOCHS, "Instead of steps.")
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
        "The most words of an input to predict; 0: data.mask_rate of its length.",
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
        "Or a path or glob of .txt / .jsonl (.gz, .xz); tfds:NAME:SPLIT; tokenized:FOLDER.",
    )
    validation: str = field(
        "", text(), "Another source; empty holds out documents of `source`."
    )
    held_out: float = field(
        0.05, HELD_OUT, "The fraction held out, where `validation` is empty."
    )
    feature: str = field(
        "text", text("Give the key of the text."), "Key of the text in each record."
    )
    data_dir: str = field(
        "", text(), "Folder of tfds datasets; empty means tfds's default."
    )
    vocab: str = field(
        "", text(), "vocab.txt or tokenizer.json; empty: init's, or one is trained."
    )
    vocab_size: int = field(  # Five special tokens, and one.
        30_522, integer(6, 10**7), "The size of a vocabulary that is trained."
    )
    strip_accents: bool = field(
        False, FLAG, "A vocabulary that is trained drops accents and marks."
    )
    workers: int = field(
        0, integer(0, 128), "Processes that make batches; 0 makes them in a thread."
    )
    cache_dir: str = field("", text(), "Tokenized text; empty means ~/.cache/pe_jax.")

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
        "Documents packed into full rows, attention within each, masked language model alone; "
        "instead of sentence pairs and both losses.",
    )
    mask_rate: float = field(
        0.15, number(0, 1, "(]"), "The fraction of tokens to predict."
    )
    short_probability: float = field(
        0.1, number(0, 1), "How often a pair is cut to a random length."
    )


@dataclasses.dataclass(frozen=True)
class EncoderTrainingConfig(Config):
    """Training of an encoder on text: the keys of pretraining and distillation.

    One, two or three stages share one optimizer state and one learning rate schedule. A stage
    without steps and epochs is left out.
    """

    task: str = task_field("")  # Subclasses name theirs.
    seed: int = field(0, SEED, "Initial parameters, dropout and data order.")
    init: str = field(
        "", text(), "A run's workdir or a published BERT (docs/checkpoints.md)."
    )
    parallel: str = field(
        "jit",
        one_of("pe_jax.trainer.training.sharding:PARALLEL"),
        'Or "fsdp" (sharded state), "pmap" (mapped per device), "pmap_bfloat16" and '
        '"fsdp_bfloat16" (which exchange gradients in bfloat16), "auto" (the last two on TPUs).',
    )
    model: ModelChanges = subconfig(ModelChanges)
    data: TextConfig = subconfig(TextConfig)
    stage1: StageConfig = subconfig(StageConfig, length=128)
    stage2: StageConfig = subconfig(StageConfig)
    stage3: StageConfig = subconfig(StageConfig)
    optimizer: OptimizerConfig = subconfig(OptimizerConfig)
    log_every: int = field(
        100, COUNT_OR_ZERO, "Steps; 0, as of *_every: at the end of a stage."
    )
    eval_every: int = field(
        1_000, COUNT_OR_ZERO, "Steps between evaluations on held-out text."
    )
    eval_examples: int = field(1_024, integer(1, 1_000_000), "Held-out examples.")
    checkpoint_every: int = field(1_000, COUNT_OR_ZERO, "Steps between checkpoints.")
    keep_checkpoints: int = field(
        3, integer(1, 10**6), "How many of the newest to keep."
    )
    keep_best: int = field(
        0, integer(0, 10**6), "So many of the lowest held-out loss are kept too."
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
        True, FLAG, "With init: keep position parameters that fit."
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
