"""Reading the model of a training run, to use it without the trainer."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pe_jax.encodings import Params
from pe_jax.models import BertConfig
from pe_jax.trainer.configs.all_tasks import ENCODERS
from pe_jax.trainer.training.checkpointing import newest_params
from pe_jax.trainer.training.workdir import load_config


def load_run(workdir: str | Path) -> tuple[BertConfig, Params]:
    """Read the model of a run of pretraining or distillation, as `load_encoder` does others.

    Args:
      workdir: the run's folder.

    Returns:
      The config of its model, and the parameters of its newest checkpoint in float32: the encoder
      under `"bert"`, its heads under their names.

    Raises:
      ValueError: if there is no such run, or none of its checkpoints can be read.
    """
    folder = Path(workdir)
    model = load_config(folder, ENCODERS).model
    _, params = newest_params(folder)
    # The config has no vocabulary of a run's own text.
    rows = len(params["bert"]["token"]["embedding"])
    return dataclasses.replace(model, vocab_size=rows), params
