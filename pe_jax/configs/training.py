"""Keys of the configs for train.py: pretraining and fine-tuning.

Upper ends of ranges leave room for any run that a machine of today could make; they are there for
slips of the keyboard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar, TypeAlias

from pe_jax.configs.model import ModelChanges, ModelConfig
from pe_jax.schema import Config, key, part
from pe_jax.values import FLAG, SEED, integer, number, one_of, optional, several, text

COUNT = integer(1, 2**31 - 1)
COUNT_OR_ZERO = integer(0, 2**31 - 1)
LENGTH = integer(3, 10**6)  # Tokens of an input: one between the special ones.
ROWS = integer(1, 10**7)
RESIZE = one_of(("", "interpolate", "repeat"))  # Methods of `resize_table` for longer tables.
_EPOCHS = number(0, 10**6)
_RATE = number(0, 1e9)
_HELD_OUT = number(0, 0.5)
_ADAM = number(0, 1 - 1e-7)  # Above the limit it is 1 in float32.


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Config):
    """Learning rate, and what decays or clips."""

    name: str = key(
        "adamw",
        one_of("pe_jax.training.optimizer:OPTIMIZERS"),
        'Or "lamb", for batches of thousands of sequences.',
    )
    learning_rate: float = key(1e-4, _RATE, "The highest: it rises, then falls to 0.")
    frequency_learning_rate: float | None = key(
        None, optional(_RATE), "Of sinusoids; default: the same."
    )
    warmup: float = key(0.1, number(0, 1), "The fraction of all steps.")
    weight_decay: float = key(0.01, _RATE)
    b1: float = key(0.9, _ADAM)
    b2: float = key(
        0.999, _ADAM, "BERT's; 0.98 forgets the large first gradients within a short run."
    )
    epsilon: float = key(1e-6, number(1e-38, 1))
    clip_norm: float = key(1.0, _RATE, "0 means no clipping.")

    def faults(self) -> Iterator[str]:
        if self.frequency_learning_rate is not None and not self.learning_rate:
            yield (
                f"frequency_learning_rate={self.frequency_learning_rate} is scaled from "
                "config.optimizer.learning_rate, which then has to be above 0: leave it None to "
                "stop both."
            )


@dataclasses.dataclass(frozen=True)
class StageConfig(Config):
    """A stage of pretraining: inputs of one length."""

    length: int = key(512, integer(8, 10**6))  # Room for two sentences.
    batch_size: int = key(64, ROWS)
    max_predictions: int = key(77, integer(1, 10**6))
    steps: int = key(0, COUNT_OR_ZERO)
    epochs: float = key(0.0, _EPOCHS, "Instead of steps.")
    accumulation: int = key(1, ROWS, "Micro-batches a step: the memory of one, the result of all.")

    def faults(self) -> Iterator[str]:
        if self.steps and self.epochs:
            yield (
                f"steps={self.steps} and epochs={self.epochs}: a stage takes steps or epochs, not "
                "both; set one of them to 0."
            )
        if self.max_predictions > self.length:
            yield (
                f"max_predictions={self.max_predictions} is more than the length of the inputs, "
                f"{self.length}: lower it."
            )
        if self.batch_size % self.accumulation:
            yield (
                f"accumulation={self.accumulation} does not divide batch_size={self.batch_size}: "
                "change one of them."
            )


@dataclasses.dataclass(frozen=True)
class PretrainingDataConfig(Config):
    """The text of pretraining, and how examples are made of it."""

    source: str = key(
        "pydoc",
        text("Give files, pydoc, tfds:NAME:SPLIT or shards:FOLDER."),
        "Or a path or glob of .txt / .jsonl (.gz, .xz); tfds:NAME:SPLIT; shards:FOLDER, tokenized "
        "text.",
    )
    validation: str = key("", text(), "Another source; empty holds out documents of `source`.")
    held_out: float = key(0.05, _HELD_OUT, "The fraction held out, where `validation` is empty.")
    feature: str = key(
        "text",
        text("Give the key of the text in each record."),
        "The key of the text in JSON lines and tfds examples.",
    )
    data_dir: str = key("", text(), "Folder of tfds datasets; empty means tfds's default.")
    vocab: str = key("", text(), "vocab.txt or tokenizer.json; empty: init's, or one is trained.")
    vocab_size: int = key(  # Five special tokens, and one.
        30_522, integer(6, 10**7), "The size of a vocabulary that is trained."
    )
    mask_rate: float = key(0.15, number(0, 1, "(]"), "The fraction of tokens to predict.")
    short_probability: float = key(
        0.1, number(0, 1), "How often an example is truncated to a random length."
    )
    workers: int = key(0, integer(0, 128), "Processes that make batches; 0 makes them in a thread.")
    cache_dir: str = key("", text(), "Tokenized text; empty means ~/.cache/pe_jax.")

    def faults(self) -> Iterator[str]:
        if not self.held_out and not self.validation:
            yield (
                f"held_out={self.held_out} must be above 0 if config.data.validation is empty: "
                "give one of them."
            )


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(Config):
    """Pretraining: masked language model and next sentence.

    Two stages, as in BERT, or three: short sequences, then longer ones, with one optimizer state
    and one learning rate schedule. A stage without steps and epochs is left out.
    """

    TASKS: ClassVar[tuple[str, ...]] = ("pretraining",)

    task: str = key("pretraining", one_of(TASKS))
    seed: int = key(0, SEED, "Initial parameters, dropout and data order.")
    init: str = key(
        "", text(), "A run to start from, its workdir, or a published BERT: docs/checkpoints.md."
    )
    keep_position: bool = key(
        True, FLAG, "With init: its positions as well, where they fit; or new ones."
    )
    parallel: str = key(
        "jit",
        one_of("pe_jax.training.sharding:PARALLEL"),
        'Or "fsdp", the state sharded; "pmap", mapped per device; "pmap_bfloat16", which exchanges '
        "gradients in that dtype.",
    )
    model: ModelConfig = part(ModelConfig)
    data: PretrainingDataConfig = part(PretrainingDataConfig)
    stage1: StageConfig = part(StageConfig, length=128, max_predictions=20)
    stage2: StageConfig = part(StageConfig)
    stage3: StageConfig = part(StageConfig)
    optimizer: OptimizerConfig = part(OptimizerConfig)
    log_every: int = key(
        100, COUNT_OR_ZERO, "Steps, as the next ones; 0 at the end of a stage only."
    )
    eval_every: int = key(1_000, COUNT_OR_ZERO, "On held-out text.")
    eval_examples: int = key(1_024, COUNT, "Held-out examples.")
    checkpoint_every: int = key(1_000, COUNT_OR_ZERO)
    keep_checkpoints: int = key(3, integer(1, 10**6), "The newest.")

    @property
    def stages(self) -> dict[str, StageConfig]:
        """The stages that have steps or epochs, by key."""
        stages = {name: getattr(self, name) for name in ("stage1", "stage2", "stage3")}
        return {name: stage for name, stage in stages.items() if stage.steps or stage.epochs}


@dataclasses.dataclass(frozen=True)
class FinetuningDataConfig(Config):
    """Inputs of fine-tuning."""

    data_dir: str = key("", text(), "Folder of tfds datasets; empty means tfds's default.")
    length: int = key(128, LENGTH, "Tokens of the longest inputs.")
    buckets: tuple[int, ...] = key(
        (16, 32, 64, 96),
        several(integer(1, 10**6)),
        "Shorter inputs are padded to these; () for none.",
    )
    batch_size: int = key(32, ROWS)
    eval_batch_size: int = key(64, ROWS)
    held_out: float = key(
        0.0, _HELD_OUT, "The fraction of the training data kept to select by, see `select`."
    )

    def faults(self) -> Iterator[str]:
        if list(self.buckets) != sorted(self.buckets):
            yield f"buckets must ascend, got {self.buckets}: sort them."


@dataclasses.dataclass(frozen=True)
class FinetuningConfig(Config):
    """Fine-tuning on a task of GLUE; what SQuAD's config shares with it.

    `model` holds changes of the pretrained model until `finetuning.resolve` fills in the rest.
    """

    TASKS: ClassVar[tuple[str, ...]] = (
        "cola",
        "sst2",
        "mrpc",
        "stsb",
        "qqp",
        "mnli",
        "qnli",
        "rte",
        "wnli",
    )

    task: str = key("cola", one_of(TASKS))
    seeds: tuple[int, ...] = key(
        (0, 1, 2, 3, 4),
        several(SEED, least=1),
        "Seeds of heads, dropout and data order; one program.",
    )
    init: str = key("", text(), "The workdir of a pretraining run, or a published BERT.")
    resize: str = key(
        "", RESIZE, 'For inputs longer than a learned table: "interpolate" or "repeat".'
    )
    model: ModelConfig = part(ModelChanges)
    data: FinetuningDataConfig = part(FinetuningDataConfig)
    epochs: float = key(3.0, _EPOCHS)
    steps: int = key(0, COUNT_OR_ZERO, "If given, instead of epochs.")
    accumulation: int = key(1, ROWS, "Micro-batches a step: the memory of one, the result of all.")
    optimizer: OptimizerConfig = part(OptimizerConfig, learning_rate=2e-5)
    select: str = key(
        "last",
        one_of(("last", "best", "held_out")),
        'Which scores count: of the "last" step, of each seed\'s "best", or of the step that is '
        'best on the training data that is "held_out".',
    )
    log_every: int = key(100, COUNT_OR_ZERO)
    eval_every: int = key(0, COUNT_OR_ZERO, "Steps; 0 scores at the end only.")
    checkpoint_every: int = key(0, COUNT_OR_ZERO, "Steps; 0 saves after every tenth of them.")
    keep_checkpoints: int = key(1, integer(1, 10**6), "The newest.")

    def faults(self) -> Iterator[str]:
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

    train: str = key(
        "squad/v1.1:train", _QUESTIONS, "NAME:SPLIT+SPLIT of tfds, or an official JSON file."
    )
    validation: str = key("squad/v1.1:validation", _QUESTIONS)
    stride: int = key(
        128, integer(1, 10**6), "Tokens between the starts of windows of a long context."
    )
    max_query: int = key(64, integer(1, 10**6), "Questions are truncated to this many tokens.")

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.length < self.max_query + 4:
            yield (
                f"max_query={self.max_query} leaves no room for three special tokens and a context "
                f"in config.data.length={self.length}: that is at least max_query + 4."
            )


@dataclasses.dataclass(frozen=True)
class SquadConfig(FinetuningConfig):
    """Fine-tuning on SQuAD."""

    TASKS: ClassVar[tuple[str, ...]] = ("squad",)

    task: str = key("squad", one_of(TASKS))
    version: str = key(
        "v1.1",
        one_of(("v1.1", "v2.0")),
        'Or "v2.0", where a question may have no answer.',
    )
    data: SquadDataConfig = part(SquadDataConfig)
    n_best: int = key(20, integer(1, 10**4))
    max_answer_tokens: int = key(30, integer(1, 10**6))
    null_threshold: float = key(
        0.0,
        number(float("-inf"), float("inf")),
        "v2.0: no answer where its score exceeds the best span's by this.",
    )


Training: TypeAlias = PretrainingConfig | FinetuningConfig
TRAINING: tuple[type[Training], ...] = (PretrainingConfig, FinetuningConfig, SquadConfig)
