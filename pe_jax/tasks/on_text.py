"""Training of an encoder on text: what pretraining and distillation have in common."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import jax

from pe_jax import data
from pe_jax.configs.pretraining import EncoderTrainingConfig, StageConfig, TextConfig
from pe_jax.console.terminal import tell
from pe_jax.models.config import from_config
from pe_jax.tasks.text_split import TextSplit, load_text
from pe_jax.tasks.train import Program, introduce, train
from pe_jax.training import sharding
from pe_jax.training.loop import Stage
from pe_jax.training.pytrees import Batch, HostBatch, Params

C = TypeVar("C", bound=EncoderTrainingConfig)

_HELD_OUT_SEED = 20_210_503  # Held-out examples are the same for every run and seed.


@dataclasses.dataclass(frozen=True)
class Experiment(Generic[C]):
    """The program and data of a config, ready to run.

    Attributes:
      held_out: global batches of held-out text for each stage.
      examples: the training examples of each stage.
      digests: checksums of the training data, by name.
      start: `start(fresh parameters)`, those that a run from `config.init` begins with; None for a
        run from scratch.
    """

    config: C
    program: Program
    text: TextSplit
    stages: list[Stage]
    held_out: list[list[Batch]]
    examples: list[data.Examples]
    digests: dict[str, str]
    start: Callable[[Params], Params] | None = None

    @property
    def epochs(self) -> list[float]:
        """The number of passes of each stage over its examples."""
        stages = zip(self.stages, self.config.stages.values(), self.examples, strict=True)
        return [stage.steps * keys.batch_size / len(each) for stage, keys, each in stages]


def run(
    config: C,
    folder: Path,
    build: Callable[[C, Path | None], Experiment[C]],
    profile: range,
) -> Experiment[C]:
    """Train what a resolved `config` describes, or resume the run in `folder`.

    Args:
      build: `build(config, the run's tokenizer)`, the experiment that is returned.
      profile: steps to trace, see `Profiler`.
    """
    tokenizer = introduce(folder, config)
    _introduce_text(config.data)
    experiment = build(config, tokenizer)
    tell("Documents", experiment.text.summary())
    tell("Tokens", f"{experiment.text.vocabulary.size:,} in the vocabulary")
    for stage, keys, epochs in zip(
        experiment.stages, config.stages.values(), experiment.epochs, strict=True
    ):
        size = f"{stage.name}, {keys.batch_size:,} rows"
        tell("Batch", f"{size}; {stage.steps:,} steps, {epochs:.2g} epochs")
    train(
        experiment.program,
        experiment.stages,
        folder,
        every=(config.log_every, config.eval_every, config.checkpoint_every),
        keep_checkpoints=config.keep_checkpoints,
        keep_best=config.keep_best,
        start=experiment.start,
        tokenizer=experiment.text.tokenizer,
        data=experiment.digests,
        profile=profile,
    )
    return experiment


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
    from_config(config.model)  # A value that is not right is an error before anything is read.
    longest = max(stage.length for stage in config.stages.values())
    if config.init:
        from pe_jax.tasks.start import fill_in

        config = fill_in(config, longest, folder)
    rows = from_config(config.model).encoding().longest
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
        from pe_jax.tasks.start import tokenizer_file

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


def _introduce_text(config: TextConfig) -> None:
    """Print what is read and, where every host might tokenize the same text, how to do it once."""
    if config.source.startswith("shards:"):
        tell("Text", config.source)
        return
    tell("Text", f"{config.source}; tokenized now, unless it is in the cache")
    if jax.process_count() > 1 and config.source != "pydoc":
        tell("Hint", "every host tokenizes all of it, unless they share PE_JAX_CACHE; once, with")
        source, vocab = shlex.quote(config.source), config.vocab or "tokenizer.json"
        tell("", f"pe-jax prepare --source={source} --vocab={vocab} --out=SHARDS")
