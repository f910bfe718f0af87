"""Learned position tables of published checkpoints: one vector per position."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float
from pe_jax.interop.checkpoint_files import Checkpoint, open_checkpoint
from pe_jax.interop.hf_keys import first_row
from pe_jax.interop.hf_registry import FAMILIES

MODEL_TYPES = tuple(name for name, family in FAMILIES.items() if family.table)
# The first family with the same table names all of them.
_FIRST_WITH: dict[tuple[str, ...], str] = {}
for _name in MODEL_TYPES:
    _FIRST_WITH.setdefault(FAMILIES[_name].table, _name)
_FAMILY_OF = {name: _FIRST_WITH[FAMILIES[name].table] for name in MODEL_TYPES}


class PositionTable(Record):
    """A learned table: `vectors[i]` is the vector of the i-th position, float32.

    `name` is that of the tensor in the checkpoint, `first_row` its row that is `vectors[0]`.
    """

    name: str
    family: str
    vectors: Float[Array, "N D"]
    first_row: int


def load_position_table(path: str | Path, family: str = "") -> PositionTable:
    """Return the learned position table of a checkpoint of the BERT, RoBERTa or GPT-2 family.

    Args:
      path: a folder with `model.safetensors`, or shards and their index; or one .safetensors file.
        config.json is read if it is next to the tensors.
      family: one of `MODEL_TYPES`. Only needed if neither the tensor's name nor config.json
        decides: BERT and RoBERTa share a name, but not the first row.

    Raises:
      ValueError: if there is no such table, or its family is unclear or contradicted.
    """
    checkpoint = open_checkpoint(path)
    kind = checkpoint.config.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ValueError(
            f"{path} has position_embedding_type {kind!r} in its config.json. Such a model "
            "contains a table of absolute positions but never uses it."
        )
    names_by_family = _tables(checkpoint)
    family = _family(checkpoint, names_by_family, family)
    name = names_by_family[family]
    try:
        first = first_row(family, checkpoint.config)
    except ValueError as error:
        raise ValueError(f"The config.json of {checkpoint.path}: {error}") from error
    shape = checkpoint.shape(name)
    if len(shape) != 2 or shape[0] <= first or not checkpoint.is_float(name):
        raise ValueError(
            f"{name} of {path} is {checkpoint.headers[name].dtype} {shape}, not a table [N, D] of "
            f"floats with more than {first} rows."
        )
    vectors = checkpoint.read(name)[first:].astype(np.float32, copy=False)
    if not np.isfinite(vectors).all():
        raise ValueError(
            f"{name} of {path} has NaN or infinite values: the file is damaged."
        )
    return PositionTable(name=name, family=family, vectors=vectors, first_row=first)


def _tables(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the names of the tensors that may be the table, by family; at least one."""
    names = checkpoint.headers
    names_by_family = {}
    looked: dict[str, None] = {}  # Without repetitions.
    for table, family in _FIRST_WITH.items():
        looked |= dict.fromkeys(table)
        for name in table:
            if name in names:
                names_by_family[family] = name
    if not names_by_family:
        near = [name for name in names if "pos" in name.lower()][:5]
        raise ValueError(
            f"{checkpoint.path} has no known learned position table. Tensors with 'pos' in their "
            f"name: {', '.join(near) or 'none'}. Looked for: {', '.join(looked)}."
        )
    return names_by_family


def _family(
    checkpoint: Checkpoint, names_by_family: dict[str, str], family: str
) -> str:
    """Return the one family that agrees with the tensor's name, config.json and the argument."""
    if family and family not in _FAMILY_OF:
        raise ValueError(
            f"Unknown family {family!r}: use one of {', '.join(MODEL_TYPES)}."
        )
    claims: dict[str, str] = {}
    model_type = checkpoint.config.get("model_type")
    if model_type in MODEL_TYPES:
        claims["config.json's model_type"] = model_type
    if family:
        claims["the argument"] = family
    possible = set(names_by_family)
    for kind in claims.values():
        possible &= {_FAMILY_OF[kind]}
    if len(possible) == 1:
        return possible.pop()
    names = " and ".join(dict.fromkeys(names_by_family.values()))
    fits = f"{checkpoint.path}: {names} can be of {' or '.join(names_by_family)}"
    if claims:
        listed = [f"{source} is {kind!r}" for source, kind in claims.items()]
        raise ValueError(
            f"{fits}, but {' and '.join(listed)}. Correct the one that is wrong."
        )
    raise ValueError(
        f"{fits}, which start positions at different rows, and config.json has no known "
        f"model_type. Set family={' or family='.join(map(repr, names_by_family))}."
    )
