"""The model's sizes: a frozen dataclass with no training field in it, and the named presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from pe_jax import encodings
from pe_jax.attention.product import is_product_of_layers
from pe_jax.configs.model import (
    HEADS,
    INTERMEDIATE,
    LAYERS,
    PRESETS,
    WIDTH,
    ModelConfig,
    ModelSettings,
)
from pe_jax.errors import did_you_mean
from pe_jax.schema import key
from pe_jax.values import integer, one_of

# What a layer keeps for its backward pass: a policy of jax.checkpoint, or all.
REMAT: dict[str, Callable[..., bool] | None] = {
    "none": None,
    "dots": is_product_of_layers,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclasses.dataclass(frozen=True)
class BertConfig(ModelSettings):
    """Sizes and constants of a BERT (Devlin et al. 2018), next to its `ModelSettings`.

    Attributes:
      vocab_size: V, rows of the token embedding, but for `unused_rows` after them.
      hidden_size: D; num_heads divides it, the head size is d = D / H.
      num_layers, num_heads, intermediate_size: of the Transformer blocks.
      position: the position encoding, built for these sizes; default BERT's own, a learned table of
        `max_length` rows. `with_position` takes one by name.
      platform: what the program is compiled for, where that is not where it is compiled: "cpu",
        "gpu" or "tpu". Empty means the devices of this process.
    """

    vocab_size: int = key(30_522, integer(1, 10**8))
    hidden_size: int = key(768, WIDTH)
    num_layers: int = key(12, LAYERS)
    num_heads: int = key(12, HEADS)
    intermediate_size: int = key(3072, INTERMEDIATE)
    position: encodings.PositionEncoding | None = None
    platform: str = key("", one_of("pe_jax.attention.forms:PLATFORMS", ""))

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.hidden_size % self.num_heads:
            yield f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}."
        if self.num_heads % self.key_heads:
            yield f"num_key_heads {self.key_heads} does not divide num_heads {self.num_heads}."
        encodings.checked_encoding(self.encoding())

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_heads or self.num_heads

    def encoding(self) -> encodings.PositionEncoding:
        """The position encoding: `position`, or BERT's own."""
        if self.position is not None:
            return self.position
        return encodings.learned_absolute(max_length=self.max_length, hidden_size=self.hidden_size)


def with_position(config: BertConfig, name: str) -> BertConfig:
    """`config` with the encoding of this name, see `pe_jax.encodings.from_name`, for its sizes.

    Raises:
      ValueError: for a name that cannot be read.
    """
    try:
        encoding = encodings.from_name(
            name,
            hidden_size=config.hidden_size,
            head_size=config.head_size,
            num_heads=config.num_heads,
            max_length=config.max_length,
        )
    except ValueError as error:
        raise ValueError(f"position {name!r}: {error}") from error
    return dataclasses.replace(config, position=encoding)


def with_tokens(config: BertConfig, tokens: int) -> BertConfig:
    """`config` for a tokenizer of `tokens` tokens: the rows after theirs become unused.

    Raises:
      ValueError: if the token embedding has fewer rows.
    """
    rows = config.vocab_size + config.unused_rows
    if tokens > rows:
        raise ValueError(
            f"The tokenizer has {tokens:,} tokens, but the model {rows:,} rows of embeddings: they "
            "belong to different models."
        )
    return dataclasses.replace(config, vocab_size=tokens, unused_rows=rows - tokens)


def preset(name: str, **overrides: Any) -> BertConfig:
    """A BertConfig of a named size, such as tiny, base or modernbert_base; see `PRESETS`.

    Raises:
      ValueError: for a name that is not a preset.
    """
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS)
        raise ValueError(f"Unknown model size {name!r}.{hint} Use one of {', '.join(PRESETS)}.")
    values = {**PRESETS[name], **overrides}
    position = values.pop("position", None)
    if isinstance(position, str):
        return with_position(BertConfig(**values), position)
    return BertConfig(position=position, **values)


def from_config(model: ModelConfig, **fields: Any) -> BertConfig:
    """The BERT that `config.model` of a run describes.

    Args:
      fields: of the BertConfig, such as the size of the vocabulary.

    Raises:
      ValueError: for values that do not fit, or an unknown encoding, with close matches.
    """
    values = {name: value for name, value in vars(model).items() if value is not None}
    try:
        size, position = values.pop("size"), values.pop("position")
        return with_position(preset(size, **values, **fields), position)
    except ValueError as error:
        raise ValueError(f"config.model.{error}") from error
