"""Published encoders, whose names of keys and tensors are in `hf_encoders.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pe_jax.configs.model import MODERNBERT
from pe_jax.interop.encoder_format import EncoderFormat

# Activations of transformers, and ours.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_DATA = json.loads(Path(__file__).with_name("hf_encoders.json").read_text(encoding="utf-8"))


def _sines_and_cosines(length: int, head_size: int) -> np.ndarray:
    """RoFormer's rotations: the sines of each position's angles, then the cosines, `[L, d]`."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, head_size, 2) / head_size)
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
    like = _fields(own.pop("like")) if "like" in own else {}
    return {**like, **own}


def _format(model_type: str) -> EncoderFormat:
    fields = {name: x for name, x in _fields(model_type).items() if name != "note"}
    for name, value in fields.items():
        if name in ("prefixes", "swapped"):
            fields[name] = tuple(value)
        elif name != "name" and not isinstance(value, bool):
            fields[name] = _union(value)
    fields["classes"] = {tuple(heads.split()): end for heads, end in fields["classes"].items()}
    for table in (fields["embeddings"], fields["layer"], *fields["heads"].values()):
        table |= {ours: tuple(x) for ours, x in table.items() if isinstance(x, list)}
    return EncoderFormat(**fields)


# What the file leaves to code.
_MORE: dict[str, dict[str, Any]] = {
    "modernbert": {
        "settings": {k: x for k, x in MODERNBERT.items() if k not in ("position", "max_length")}
    },
    "roformer": {"constants": {"encoder.embed_positions.weight": _sines_and_cosines}},
}
FORMATS: Mapping[str, EncoderFormat] = {
    name: _format(name)._replace(**_MORE.get(name, {}))
    for name in _DATA
    if name not in ("about", "shared")
}
HEADS = tuple(FORMATS["bert"].heads)
