"""How a family of published encoders is stored, as a record of names; `hf_encoders` has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pe_jax.encodings import PUBLISHED

# A module of ours: the modules of theirs that hold it, concatenated along their outputs.
Modules = Mapping[str, str | tuple[str, ...]]
POSITION_MODULE = f"bert/position/{PUBLISHED[0]}"  # The module of a learned table.


class EncoderFormat(NamedTuple):
    """How a family stores an encoder: the keys of its config.json, and the names of its tensors.

    `keys`, `optional_keys`, `only`, `derived` and the keys that `from_hf` reads are all that change
    what the model computes: fields of its class in transformers, and keys of code outside
    transformers that published files have. Every other key is ignored, as transformers does.

    "Ours" is pe_jax. Names of tensors are without the prefix of the encoder, which some classes
    have; those of layers contain a `*`.
    """

    name: str  # Of their classes in transformers, before `Model`.
    # Of the encoder's tensors in classes with heads; the first is written.
    prefixes: tuple[str, ...]
    # What follows the name in the class that has some heads.
    classes: Mapping[tuple[str, ...], str]
    embeddings: Modules  # Tables of the encoder's modules.
    layer: Modules
    # Tables of the heads that are read, by name. That of a classifier may include what comes
    # before it.
    heads: Mapping[str, Modules]
    keys: Mapping[str, str]  # Field of BertConfig: required key in config.json.
    optional_keys: Mapping[str, str]  # The same for keys that may be missing.
    # For each key, the only supported value, which is that of a missing key as well. None
    # stands for no value.
    only: Mapping[str, Any] = {}
    # Fields of BertConfig, where they differ from the defaults and config.json does not say
    # otherwise.
    settings: Mapping[str, Any] = {}
    # Keys whose value follows from others: property of BertConfig that it must equal.
    derived: Mapping[str, str] = {}
    types_are_optional: bool = False  # It may have no token types, where `keys` has their number.
    # `auto_map` may name models; their code computes what transformers' does.
    has_remote_code: bool = False
    # Packed tensors whose two halves are in the other order than ours.
    swapped: tuple[str, ...] = ()
    # Tensors that are not parameters -> their value, from sizes `(length, head_size)`, to be
    # written; None for one that need not be.
    constants: Mapping[str, Callable[[int, int], np.ndarray] | None] = {
        "embeddings.position_ids": None
    }
    aliases: Mapping[str, str] = {}  # Other names of keys, as older configs have them.

    @property
    def position_modules(self) -> tuple[str, ...]:
        """The modules of ours that have parameters of positions."""
        return tuple(name for name in self.embeddings if name.startswith("bert/position/"))

    @property
    def has_table(self) -> bool:
        """Whether positions are a learned table, and nothing else."""
        return self.position_modules == (POSITION_MODULE,)

    def head_parts(self, heads: Iterable[str]) -> set[str]:
        """Return the modules of ours that the tables of these heads have parameters of."""
        return {path.split("/")[0] for head in heads for path in self.heads[head]}
