"""The model that a config describes."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from pe_jax.models import BertConfig, preset


def model_config(config: ConfigDict, **overrides: Any) -> BertConfig:
    """`config.model` as a BertConfig; checks the names of size and encoding.

    Raises:
      ValueError: for a name that is not known; the message lists the near ones.
    """
    values = {k: v for k, v in config.model.to_dict().items() if v is not None}
    model = preset(values.pop("size"), **values, **overrides)
    model.encoding()
    return model
