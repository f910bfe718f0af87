"""What a fine-tuning config leaves open: the model that it starts from, and its length."""

from __future__ import annotations

from collections.abc import Callable

from ml_collections import ConfigDict
from tokenizers import Tokenizer

from pe_jax.data.glue_tasks import GLUE
from pe_jax.models import BertConfig
from pe_jax.schema import check
from pe_jax.tasks.finetuning.classification import glue_problem
from pe_jax.tasks.finetuning.finetuning_schema import FINETUNING
from pe_jax.tasks.finetuning.problem import Problem
from pe_jax.tasks.finetuning.spans import squad_problem
from pe_jax.tasks.model_config import model_config
from pe_jax.tasks.start import open_start

# By config.task.
PROBLEMS: dict[str, Callable[[ConfigDict, BertConfig, Tokenizer], Problem]] = {
    **dict.fromkeys(GLUE, glue_problem),
    "squad": squad_problem,
}
TASKS = tuple(PROBLEMS)


def resolve(config: ConfigDict) -> ConfigDict:
    """`config` with its model filled in from the pretrained one that it starts from.

    What `config.model` gives replaces that of the pretrained model. A learned table of positions
    that is shorter than the inputs is resized, if `config.resize` gives a method.

    Raises:
      ValueError: for a key or value that is not right, without a pretrained model, or where its
        table is too short.
    """
    check(config, FINETUNING)
    start = open_start(config.init).config
    given = {key: value for key, value in config.model.to_dict().items() if value is not None}
    resolved = config.copy_and_resolve_references()
    resolved.model = ConfigDict({**start.model.to_dict(), **given})
    fit_length(resolved)
    model_config(resolved)  # What is given fits the pretrained model, or an error before any data.
    return resolved


def fit_length(config: ConfigDict, key: str = "config.data.length") -> None:
    """Makes the model of `config` as long as its inputs, where it can be.

    Args:
      key: what sets the length, for the message.

    Raises:
      ValueError: for inputs longer than a learned table of positions, if `config.resize` is empty.
    """
    length, rows = config.data.length, config.model.max_length
    if length <= rows:
        return
    if model_config(config).encoding().longest is not None and not config.resize:
        raise ValueError(
            f"Inputs of {length} tokens do not fit a learned table of {rows} positions: give "
            "--config.resize=interpolate or repeat (pe_jax.encodings.resize_table), give shorter "
            f"inputs (--{key}), or start from a sinusoidal or relative encoding, which "
            "have no maximum length."
        )
    config.model.max_length = length
