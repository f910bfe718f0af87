"""The encoder of a run of this project, for code of one's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pe_jax.configs.all_tasks import ENCODERS
from pe_jax.configs.model import BertConfig
from pe_jax.configs.pretraining import EncoderTrainingConfig
from pe_jax.tasks.run import run_config
from pe_jax.training.checkpointing import newest_params
from pe_jax.training.pytrees import Params


def load_run(workdir: str | Path) -> tuple[BertConfig, Params]:
    """Return the model of a run of pretraining or distillation, and its newest parameters: float32,
    the encoder under "bert" and its heads under their names, as `load_bert` has them.

    Raises:
      ValueError: if there is no such run, or none of its checkpoints can be read.
    """
    folder = Path(workdir)
    run: EncoderTrainingConfig = run_config(folder, ENCODERS)
    _, params = newest_params(folder)
    tokens = len(params["bert"]["token"]["embedding"])  # The config has none of a run's own text.
    return dataclasses.replace(run.model, vocab_size=tokens), params
