"""The trainer: commands, configs, data, tasks, training and reports, on top of the library.

The library imports nothing from here. For users of the library `load_run` reads the model of a run.
"""

from __future__ import annotations

import dataclasses
import typing

from pe_jax.common.errors import extra

if typing.TYPE_CHECKING:
    from pathlib import Path

    from pe_jax.encodings import Params
    from pe_jax.models import BertConfig

__all__ = ["load_run"]


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
    with extra("train"):  # Only here: commands start faster without it.
        from pe_jax.common.files import to_path
        from pe_jax.trainer.configs.all_tasks import ENCODERS
        from pe_jax.trainer.training.checkpointing import newest_params
        from pe_jax.trainer.training.workdir import load_config

    folder = to_path(workdir)
    model = load_config(folder, ENCODERS).model
    _, params = newest_params(folder)
    # The config has no vocabulary of a run's own text.
    rows = len(params["bert"]["token"]["embedding"])
    return dataclasses.replace(model, vocab_size=rows), params
