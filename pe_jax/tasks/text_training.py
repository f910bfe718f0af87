"""Training of an encoder on text: what pretraining and distillation have in common."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import jax

from pe_jax import data
from pe_jax.configs.model import ModelChanges
from pe_jax.configs.pretraining import EncoderTrainingConfig, StageConfig, TextConfig
from pe_jax.console.terminal import log_field
from pe_jax.tasks.text_split import TextSplit, load_text
from pe_jax.tasks.train import Program, Run
from pe_jax.training import sharding
from pe_jax.training.loop import Stage
from pe_jax.training.pytrees import Batch, HostBatch, Params

C = TypeVar("C", bound=EncoderTrainingConfig)

_HELD_OUT_SEED = 20_210_503  # Held-out examples are the same for every run and seed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRun(Run[C]):
    """A run that trains an encoder on text.

    Attributes:
      held_out: global batches of held-out text for each stage.
      examples: the training examples of each stage.
    """

    text: TextSplit
    held_out: list[list[Batch]]
    examples: list[data.Examples]

    @property
    def epochs(self) -> list[float]:
        """The number of passes of each stage over its examples."""
        stages = zip(self.stages, self.config.stages.values(), self.examples, strict=True)
        return [stage.steps * keys.batch_size / len(each) for stage, keys, each in stages]


def make_run(
    config: C,
    program: Program,
    text: TextSplit,
    *,
    stages: list[Stage],
    held_out: list[list[Batch]],
    examples: list[data.Examples],
    digests: dict[str, str],
    start: Callable[[Params], Params] | None,
) -> TextRun[C]:
    """Return the run of these parts, with the intervals that `config` gives."""
    return TextRun(
        config=config,
        program=program,
        stages=stages,
        digests=digests,
        every=(config.log_every, config.eval_every, config.checkpoint_every),
        keep_checkpoints=config.keep_checkpoints,
        keep_best=config.keep_best,
        start=start,
        tokenizer=text.tokenizer,
        text=text,
        held_out=held_out,
        examples=examples,
    )


def log_batches(run: TextRun) -> None:
    """Print how much text a run has, and what it trains on."""
    log_field("Documents", run.text.summary())
    log_field("Tokens", f"{run.text.vocabulary.size:,} in the vocabulary")
    stages = zip(run.stages, run.config.stages.values(), run.epochs, strict=True)
    for stage, keys, epochs in stages:
        size = f"{stage.name}, {keys.batch_size:,} rows"
        log_field("Batch", f"{size}; {stage.steps:,} steps, {epochs:.2g} epochs")


# --- from a config to a program -------------------------------------------------------------------


def resolve(config: C, folder: Path | None = None) -> C:
    """Fill in what `config` leaves open of its model from the one that it starts from.

    Args:
      folder: of the run, which resumes even if `config.init` no longer exists.

    Raises:
      ValueError: for an invalid value, or if there is nothing to start from at
        `config.init`.
    """
    if not config.stages:
        raise ValueError(
            "Nothing to train: set steps or epochs of config.stage1, config.stage2 or "
            "config.stage3."
        )
    longest = max(stage.length for stage in config.stages.values())
    if isinstance(config.model, ModelChanges):
        from pe_jax.tasks.pretrained_source import model_of

        config = dataclasses.replace(config, model=model_of(config, longest, folder))
    rows = config.model.encoding().max_length
    if rows is not None and longest > rows:
        name = next(name for name, stage in config.stages.items() if stage.length > rows)
        raise ValueError(
            f"config.{name}.length={config.stages[name].length} does not fit the {rows} positions "
            f"of {config.model.position!r}. Raise config.model.max_length, or use a sinusoidal or "
            "relative encoding, which has no maximum length."
        )
    return config


# --- data -----------------------------------------------------------------------------------------


def load(config: EncoderTrainingConfig, tokenizer: Path | None, *, pairs: bool) -> TextSplit:
    """Read the text of a resolved `config`, once its batches are known to divide among devices.

    Args:
      tokenizer: the run's own, where it has one already; default that of `config.init`, or
        `config.data.vocab`, or the run trains its own.
      pairs: whether examples are sentence pairs.
    """
    for key, stage in config.stages.items():
        name = f"config.{key}.batch_size"
        sharding.check_rows(name, stage.batch_size, sharding.data_mesh(), stage.accumulation)
    vocab = str(tokenizer or config.data.vocab)
    if config.init and not tokenizer:
        from pe_jax.tasks.pretrained_source import tokenizer_file

        vocab = tokenizer_file(config)
    return load_text(config.data, vocab, pairs=pairs)


def stage_steps(config: EncoderTrainingConfig, examples: Sequence[data.Examples]) -> list[int]:
    """Return the steps of each stage."""
    return [
        stage.steps or math.ceil(stage.epochs * len(each) / stage.batch_size)
        for stage, each in zip(config.stages.values(), examples, strict=True)
    ]


def held_out_batches(
    config: EncoderTrainingConfig, stage: StageConfig, examples: data.Examples, program: Program
) -> list[Batch]:
    """Return global batches of about `config.eval_examples` rows, the same for every run."""
    count = max(1, round(config.eval_examples / stage.batch_size))
    rows = itertools.islice(iter(stage_batches(stage, examples, _HELD_OUT_SEED)(0)), count)
    return [sharding.to_global(batch, program.batch_sharding) for batch in rows]


def stage_batches(
    stage: StageConfig, examples: data.Examples, seed: int, workers: int = 0
) -> Callable[[int], Iterable[HostBatch]]:
    """Return a function from n to this host's batches of a stage from batch n on."""
    return functools.partial(
        data.batches,
        examples,
        batch_size=stage.batch_size,
        seed=seed,
        host=jax.process_index(),
        hosts=jax.process_count(),
        workers=workers,
    )


def log_text(config: TextConfig) -> None:
    """Print what is read and, where every host might tokenize the same text, how to do it once."""
    if config.source.startswith("shards:"):
        log_field("Text", config.source)
        return
    log_field("Text", f"{config.source}; tokenized now, unless it is in the cache")
    if jax.process_count() > 1 and config.source != "pydoc":
        log_field(
            "Hint", "every host tokenizes all of it, unless they share PE_JAX_CACHE; once, with"
        )
        source, vocab = shlex.quote(config.source), config.vocab or "tokenizer.json"
        log_field("", f"pe-jax prepare --source={source} --vocab={vocab} --out=SHARDS")
