"""Check of a run's inputs before it starts, on a machine that need not be the one that trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax

from pe_jax.common.schema import Config
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.console.terminal import log_field
from pe_jax.trainer.tasks import text_training
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource
from pe_jax.trainer.tasks.train import log_run_header
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.pytrees import PyTree


def check_inputs(config: Config, folder: Path) -> None:
    """Read what a run of `config` in `folder` reads before its first step, as the run does.

    This covers the config, another run in the folder, the model at `config.init` with its weights
    and tokenizer, and the text or the examples. No model runs, and nothing is written to `folder`.
    Batches are compared with the devices of this machine, not with those of the run.

    Raises:
      ValueError: for what the run would refuse.
    """
    if isinstance(config, FinetuningConfig):
        summary, has_started = _read_finetuning(config, folder)
    elif isinstance(config, DistillationConfig):
        summary, has_started = _read_distillation(config, folder)
    else:
        assert isinstance(config, PretrainingConfig)
        summary, has_started = _read_pretraining(config, folder)
    for name, value in summary:
        log_field(name, value)
    if config.init and not has_started:
        PretrainedSource(config.init).params(_replicated)


# What is printed of a run, and whether it has a checkpoint to resume from.
_Read = tuple[Sequence[tuple[str, str]], bool]


def _read_finetuning(config: FinetuningConfig, folder: Path) -> _Read:
    from pe_jax.trainer.tasks import finetuning

    resolved = finetuning.resolve(config, folder)
    tokenizer = log_run_header(folder, resolved)
    return finetuning.build(resolved, folder, tokenizer).summary, tokenizer is not None


def _read_distillation(config: DistillationConfig, folder: Path) -> _Read:
    from pe_jax.trainer.tasks import distillation

    resolved = distillation.resolve(config)
    tokenizer = text_training.log_start(folder, resolved)
    # Not `build`, which runs the teacher on held-out text.
    mesh = sharding.data_mesh()
    text_data = distillation.read_text(resolved.config, tokenizer, mesh)
    return [("Documents", text_data.text.summary())], tokenizer is not None


def _read_pretraining(config: PretrainingConfig, folder: Path) -> _Read:
    from pe_jax.trainer.tasks import pretraining

    resolved = text_training.resolve(config, folder)
    tokenizer = text_training.log_start(folder, resolved)
    return pretraining.build(resolved, tokenizer).summary, tokenizer is not None


def _replicated(tree: PyTree) -> PyTree:
    everywhere = sharding.replicated(sharding.data_mesh())
    return jax.tree.map(lambda _: everywhere, tree)
