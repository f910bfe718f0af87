"""The model that a config describes."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from pe_jax.console.terminal import counted
from pe_jax.models import BertConfig, preset


def model_config(config: ConfigDict, **overrides: Any) -> BertConfig:
    """`config.model` as a BertConfig; checks the names of size and encoding.

    Args:
      overrides: fields of the BertConfig.

    Raises:
      ValueError: for an unknown name; the message lists similar ones.
    """
    values = {k: v for k, v in config.model.to_dict().items() if v is not None}
    try:
        return preset(values.pop("size"), **values, **overrides)
    except ValueError as error:
        raise ValueError(f"config.model.{error}") from error


def size_in_words(model: BertConfig) -> str:
    """Such as "12 layers of 768": true also where keys of a config replace a named size's own."""
    return f"{counted(model.num_layers, 'layer')} of {model.hidden_size}"
