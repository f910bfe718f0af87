"""Published encoders: how their families store them, by names that are in `hf_encoders.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pe_jax.encodings.absolute.position_vectors import LEARNED_TABLE_PATH
from pe_jax.models.config import MODERNBERT

# Activations of transformers, and ours; the first of several names is written. Those of one of ours
# differ in the order of their operations, or in digits that float32 does not have (`gelu_fast`).
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# Those of poolers and convolutions may also be tanh.
ACTIVATIONS_WITH_TANH = {**ACTIVATIONS, "tanh": "tanh"}
# A module of ours: the modules of theirs that hold it, concatenated along their outputs.
Modules = Mapping[str, tuple[str, ...]]
# The module of a learned table.
POSITION_MODULE = f"bert/position/{LEARNED_TABLE_PATH[0]}"


class EncoderFormat(NamedTuple):
    """How a family stores an encoder: the keys of its config.json, and the names of its tensors.

    `keys`, `optional_keys`, `only`, `derived` and the keys that `from_hf` reads are all that change
    what the model computes: fields of its class in transformers, and keys of code outside
    transformers that published files have. Every other key is ignored, as transformers does.

    "Ours" is pe_jax. Names of tensors are without the prefix of the encoder, which some classes
    have; those of layers contain a `*`.

    Several formats may have one `model_type`: those with `when` are for configs with such values,
    are read alone, and have the name of their own code.
    """

    name: str  # Of their classes in transformers, before `Model`.
    # Of the encoder's tensors in classes with heads; the first is written.
    prefixes: tuple[str, ...]
    # What follows the name in the class that has some heads.
    classes: Mapping[tuple[str, ...], str]
    embeddings: Modules  # Tables of the encoder's modules.
    layer: Modules  # Of modules with a `*` in both names there is one for each layer.
    # Tables of the heads that are read; that of a classifier may include what comes before it.
    heads: Mapping[str, Modules]
    keys: Mapping[str, str]  # Field of BertConfig: required key in config.json.
    optional_keys: Mapping[str, str]  # The same for keys that may be missing.
    # The only supported value of each key, and that of a missing key; None stands for no value.
    only: Mapping[str, Any] = {}
    # Fields of BertConfig that differ from its defaults, unless config.json says otherwise.
    settings: Mapping[str, Any] = {}
    # Keys whose value follows from others: property of BertConfig that it must equal.
    derived: Mapping[str, str] = {}
    # Keys of which each value that is supported stands for some fields of BertConfig.
    choices: Mapping[str, Mapping[str, Mapping[str, Any]]] = {}
    # Fields of BertConfig that are None unless a key is true: field -> key.
    conditions: Mapping[str, str] = {}
    # How an export writes positions: as a `table`, or as keys of config.json (bert_export.py);
    # empty for families of which all have the same.
    positions: str = ""
    gated: Modules = {}  # Modules of a layer with a gated MLP, where they have other names.
    # A layer norm of the position table, which is applied once when it is read.
    table_norm: str = ""
    # Beginnings of tensors' names that have another one in `embeddings`, `layer` or `heads`.
    renames: Mapping[str, str] = {}
    # A key and what it must have, for one of several formats.
    when: Mapping[str, Any] = {}
    # Keys of `only` and `derived` that may not be missing.
    needs: frozenset[str] = frozenset()
    in_transformers: bool = True  # Version 5 has the family's class.
    # It may have no token types, where `keys` has their number.
    types_are_optional: bool = False
    # `auto_map` may name models; their code computes what transformers' does.
    has_remote_code: bool = False
    # Norms multiply by 1 + weight, where ours multiply by the scale.
    norms_add_one: bool = False
    # Token embeddings are multiplied by sqrt(D), where ours are stored so.
    scales_embeddings: bool = False
    # The key of a window's size, which is twice its reach.
    window_key: str = "local_attention"
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
        return tuple(
            name for name in self.embeddings if name.startswith("bert/position/")
        )

    def head_parts(self, heads: Iterable[str]) -> set[str]:
        """Return the modules of ours that the tables of these heads have parameters of."""
        parts = set()
        for head in heads:
            parts |= {path.split("/")[0] for path in self.heads[head]}
        return parts


_DATA = json.loads(
    Path(__file__).with_name("hf_encoders.json").read_text(encoding="utf-8")
)


def _sines_and_cosines(length: int, head_size: int) -> np.ndarray:
    """RoFormer's rotations: the sines of each position's angles, then the cosines, `[L, d]`."""
    angles = np.arange(length)[:, None] / 10_000 ** (
        np.arange(0, head_size, 2) / head_size
    )
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _union(tables: Any) -> dict[str, Any]:
    """Return the union of tables and of names of shared ones."""
    union: dict[str, Any] = {}
    for table in tables if isinstance(tables, list) else [tables]:
        union |= _DATA["shared"][table] if isinstance(table, str) else table
    return union


def _fields(model_type: str) -> dict[str, Any]:
    """Return the fields of a format as they are written, completed by those that it is like."""
    own = dict(_DATA[model_type])
    if "like" not in own:
        return own
    return {**_fields(own.pop("like")), **own}


_TEXTS = ("name", "positions", "table_norm", "window_key")  # Fields that are no tables.


def _format(model_type: str) -> EncoderFormat:
    fields = _fields(model_type)
    fields.pop("note", None)
    for name, value in fields.items():
        if name in ("prefixes", "swapped"):
            fields[name] = tuple(value)
        elif name == "needs":
            fields[name] = frozenset(value)
        elif name not in _TEXTS and not isinstance(value, bool):
            fields[name] = _union(value)
    fields["classes"] = {
        tuple(heads.split()): end for heads, end in fields["classes"].items()
    }
    heads = {head: _modules(table) for head, table in fields["heads"].items()}
    for name in ("embeddings", "layer", "gated"):
        fields[name] = _modules(fields.get(name, {}))
    return EncoderFormat(**{**fields, "heads": heads})


def _modules(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return a table as `Modules`, where the file has a string for a single module."""
    modules = {}
    for ours, theirs in table.items():
        modules[ours] = tuple(theirs) if isinstance(theirs, list) else (theirs,)
    return modules


# What the file leaves to code.
_MODERNBERT = dict(MODERNBERT)
for _of_a_model in ("position", "max_length"):
    del _MODERNBERT[_of_a_model]
_MORE: dict[str, dict[str, Any]] = {
    "modernbert": {"settings": _MODERNBERT},
    "roformer": {"constants": {"encoder.embed_positions.weight": _sines_and_cosines}},
}
FORMATS: dict[str, EncoderFormat] = {}
# Further formats of a model type, named `TYPE/VARIANT`.
VARIANTS: dict[str, EncoderFormat] = {}
for _name in _DATA:
    if _name in ("about", "shared"):
        continue
    _known = _format(_name)._replace(**_MORE.get(_name, {}))
    if _known.when:
        VARIANTS[_name] = _known
    else:
        FORMATS[_name] = _known
HEADS = tuple(FORMATS["bert"].heads)


def format_of(theirs: Mapping[str, Any]) -> EncoderFormat:
    """Return the format of a config.json with a `model_type` of `FORMATS`."""
    model_type = theirs["model_type"]
    for name, variant in VARIANTS.items():
        if name.startswith(f"{model_type}/"):
            ((key, accepted),) = variant.when.items()
            value = theirs.get(key)
            if value is not None and (accepted is True or value in accepted):
                return variant
    return FORMATS[model_type]
