"""Training of an encoder on text: what pretraining and distillation have in common."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from pe_jax.trainer import data
from pe_jax.trainer.configs.pretraining import EncoderTrainingConfig, StageConfig
from pe_jax.trainer.console.terminal import counted, log_field
from pe_jax.trainer.tasks.run import Program, Run
from pe_jax.trainer.tasks.text_split import TextSplit, load_text
from pe_jax.trainer.tasks.train import log_run_header
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.loop import Stage
from pe_jax.trainer.training.pytrees import Batch, HostBatch, Params, Scalars
from pe_jax.trainer.training.workdir import ResolvedConfig

C = TypeVar("C", bound=EncoderTrainingConfig)

_HELD_OUT_SEED = 20_210_503  # Held-out examples are the same for every run and seed.

# From n to this host's batches from batch n on.
Batches = Callable[[int], Iterable[HostBatch]]
# `make_examples(vocabulary, stage, corpus, numbers of its documents)`.
MakeExamples = Callable[
    [data.Vocabulary, StageConfig, data.TokenizedCorpus, np.ndarray], data.Examples
]


class TextData(NamedTuple):
    """The text of a run, and batches to train on and to be scored on."""

    text: TextSplit
    steps: list[int]  # Of each stage, as are epochs and batches.
    epochs: list[float]  # Passes over its examples.
    batches: list[Batches]
    # Global batches for each stage, then for further lengths.
    held_out: list[list[Batch]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRun(Run[C]):
    """A run that trains an encoder on text."""

    data: TextData


def make_run(
    resolved: ResolvedConfig[C],
    program: Program,
    text_data: TextData,
    stages: list[Stage],
    checksums: dict[str, str],
    start: Callable[[Params], Params] | None,
    initial_scores: Callable[[Params], Scalars] | None = None,
) -> TextRun[C]:
    """Return the run of these parts, with the intervals that `config` gives."""
    config = resolved.config
    text, size = text_data.text, text_data.text.vocabulary.size
    summary = [("Documents", text.summary()), ("Tokens", f"{size:,} in the vocabulary")]
    stage_configs = config.stages.values()
    parts = zip(stages, stage_configs, text_data.epochs, strict=True)
    for stage, stage_config, epochs in parts:
        rows = f"{stage.name}, {counted(stage_config.batch_size, 'row')}"
        summary.append(("Batch", f"{rows}; {stage.steps:,} steps, {epochs:.2g} epochs"))
    return TextRun(
        resolved=resolved,
        program=program,
        stages=stages,
        summary=summary,
        checksums={**text.checksums(), **checksums},
        every=(config.log_every, config.eval_every, config.checkpoint_every),
        keep_checkpoints=config.keep_checkpoints,
        keep_best=config.keep_best,
        start=start,
        initial_scores=initial_scores,
        tokenizer=text.tokenizer,
        data=text_data,
    )


def log_start(
    folder: Path, resolved: ResolvedConfig[EncoderTrainingConfig]
) -> Path | None:
    """Print where a run is and what it reads, see `log_run_header`."""
    tokenizer = log_run_header(folder, resolved)
    source = resolved.config.data.source
    if source.startswith(data.TOKENIZED):
        log_field("Text", source)
    else:
        log_field("Text", f"{source}; tokenized now, unless it is in the cache")
    return tokenizer


def resolve(config: C, folder: Path | None = None) -> ResolvedConfig[C]:
    """Fill in what `config` leaves open of its model.

    Args:
      folder: of the run, which can resume without the model at `config.init`; see `start_model`.

    Raises:
      ValueError: if there is nothing to train, no model at `config.init`, or if the model has fewer
        positions than inputs of a stage.
    """
    if not config.stages:
        raise ValueError(
            "Nothing to train: set steps or epochs of config.stage1, config.stage2 or "
            "config.stage3."
        )
    longest = max(stage.length for stage in config.stages.values())
    if config.init:
        from pe_jax.trainer.tasks.pretrained_source import model_of

        model = model_of(config, longest, folder)
    else:
        model = config.model.resolve()
    rows = model.encoding().max_length
    if rows is not None and longest > rows:
        name = next(
            name for name, stage in config.stages.items() if stage.length > rows
        )
        raise ValueError(
            f"config.{name}.length={config.stages[name].length} does not fit the {rows} positions "
            f"of {model.position!r}. Raise config.model.max_length, or use a sinusoidal or "
            "relative encoding, which has no maximum length."
        )
    return ResolvedConfig(config, model)


def read_data(
    config: EncoderTrainingConfig,
    tokenizer: Path | None,
    mesh: jax.sharding.Mesh,
    make_examples: MakeExamples,
    *,
    pairs: bool,
    test_stages: Sequence[StageConfig] = (),
) -> TextData:
    """Read the text of `config`, once its batches are known to divide among devices.

    Args:
      tokenizer: the run's own, where it has one already; default that of `config.init`, or
        `config.data.vocab`, or the run trains its own.
      pairs: whether examples are sentence pairs.
      test_stages: also evaluated, but not trained.

    Raises:
      ValueError: for a text or a tokenizer that cannot be used, or batches that do not divide among
        devices.
    """
    stages = [*config.stages.values()]
    for key, stage in config.stages.items():
        name = f"config.{key}.batch_size"
        sharding.check_rows(name, stage.batch_size, mesh, stage.accumulation)
    vocab = str(tokenizer or config.data.vocab)
    if config.init and not tokenizer:
        from pe_jax.trainer.tasks.pretrained_source import tokenizer_file

        vocab = tokenizer_file(config)
    text = load_text(config.data, vocab, pairs=pairs)
    make = functools.partial(make_examples, text.vocabulary)
    steps = []
    epochs = []
    batches = []
    for number, stage in enumerate(stages):
        examples = make(stage, text.train, text.train_documents)
        all_rows = stage.epochs * len(examples)
        count = stage.steps or math.ceil(all_rows / stage.batch_size)
        steps.append(count)
        epochs.append(count * stage.batch_size / len(examples))
        seed = config.seed + number
        batches.append(_batches(examples, stage, seed, config.data.workers))
    held_out = []
    by_rows = sharding.by_rows(mesh)
    for stage in (*stages, *test_stages):
        # About `eval_examples` rows, the same for every run.
        count = max(1, round(config.eval_examples / stage.batch_size))
        examples = make(stage, text.held_out, text.held_out_documents)
        rows = itertools.islice(_batches(examples, stage, _HELD_OUT_SEED)(0), count)
        held_out.append([sharding.to_global(batch, by_rows) for batch in rows])
    return TextData(
        text=text, steps=steps, epochs=epochs, batches=batches, held_out=held_out
    )


def _batches(
    examples: data.Examples, stage: StageConfig, seed: int, workers: int = 0
) -> Batches:
    return functools.partial(
        data.batches,
        examples,
        batch_size=stage.batch_size,
        seed=seed,
        host=jax.process_index(),
        hosts=jax.process_count(),
        workers=workers,
    )
