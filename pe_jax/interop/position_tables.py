"""Learned position tables of published checkpoints: one vector per position."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pe_jax.interop.checkpoint_files import Checkpoint, open_checkpoint
from pe_jax.shapes import Array, Float
from pe_jax.values import integer


class Family(NamedTuple):
    """Models that store their table under the same name.

    Attributes:
      key: name of the table, by itself or after one of `prefixes`.
      model_types: `model_type` in the config.json of these models.
      padding: row of the padding token, if the first position is the row after it; None if the
        first position is row 0.
    """

    key: str
    prefixes: tuple[str, ...]
    model_types: tuple[str, ...]
    padding: int | None = None


_KEY = "embeddings.position_embeddings.weight"
FAMILIES = {
    "bert": Family(_KEY, ("bert.", "distilbert.", "electra."), ("bert", "distilbert", "electra")),
    # fairseq's layout: token id 1 is padding, rows 0 and 1 belong to no position.
    "roberta": Family(_KEY, ("roberta.",), ("roberta", "xlm-roberta", "camembert"), padding=1),
    "gpt2": Family("wpe.weight", ("transformer.",), ("gpt2",)),
}
_FAMILY_OF = {kind: family for family, f in FAMILIES.items() for kind in f.model_types}
MODEL_TYPES = tuple(_FAMILY_OF)

_PADDING = integer(0, 10**6)


class PositionTable(NamedTuple):
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
      path: see `open_checkpoint`.
      family: a key of `FAMILIES` or one of its model types. Only needed if neither the tensor's
        name nor config.json decides: BERT and RoBERTa share a name, but not the first row.

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
    name, padding = names_by_family[family], FAMILIES[family].padding
    first_row = 0 if padding is None else _pad_token(checkpoint, padding) + 1
    shape = checkpoint.shape(name)
    if len(shape) != 2 or shape[0] <= first_row or not checkpoint.is_float(name):
        raise ValueError(
            f"{name} of {path} is {checkpoint.headers[name].dtype} {shape}, not a table [N, D] of "
            f"floats with more than {first_row} rows."
        )
    vectors = checkpoint.read(name)[first_row:].astype(np.float32, copy=False)
    if not np.isfinite(vectors).all():
        raise ValueError(f"{name} of {path} has NaN or infinite values: the file is damaged.")
    return PositionTable(name, family, vectors, first_row)


def _pad_token(checkpoint: Checkpoint, usual: int) -> int:
    """Return the row of the padding token, by config.json if it says."""
    row = checkpoint.config.get("pad_token_id", usual)
    if fault := _PADDING.error(row):
        raise ValueError(f"The config.json of {checkpoint.path}: pad_token_id {fault}")
    return row


def _tables(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the names of the tensors that may be the table, by family; at least one."""
    keys = {
        family: [prefix + f.key for prefix in ("", *f.prefixes)] for family, f in FAMILIES.items()
    }
    names = checkpoint.headers
    names_by_family = {
        family: key for family, candidates in keys.items() for key in candidates if key in names
    }
    if not names_by_family:
        near = [name for name in names if "pos" in name.lower()][:5]
        looked = dict.fromkeys(key for candidates in keys.values() for key in candidates)
        raise ValueError(
            f"{checkpoint.path} has no known learned position table. Tensors with 'pos' in their "
            f"name: {', '.join(near) or 'none'}. Looked for: {', '.join(looked)}."
        )
    return names_by_family


def _family(checkpoint: Checkpoint, names_by_family: dict[str, str], family: str) -> str:
    """Return the one family that agrees with the tensor's name, config.json and the argument."""
    if family and family not in _FAMILY_OF:
        raise ValueError(f"Unknown family {family!r}: use one of {', '.join(MODEL_TYPES)}.")
    said = checkpoint.config.get("model_type")
    both = {"config.json's model_type": said, "the argument": family}
    claims = {source: str(kind) for source, kind in both.items() if kind in MODEL_TYPES}
    possible = set(names_by_family).intersection(*({_FAMILY_OF[kind]} for kind in claims.values()))
    if len(possible) == 1:
        return possible.pop()
    names = " and ".join(dict.fromkeys(names_by_family.values()))
    fits = f"{checkpoint.path}: {names} can be of {' or '.join(names_by_family)}"
    if claims:
        listed = " and ".join(f"{source} is {kind!r}" for source, kind in claims.items())
        raise ValueError(f"{fits}, but {listed}. Correct the one that is wrong.")
    raise ValueError(
        f"{fits}, which start positions at different rows, and config.json has no known "
        f"model_type. Set family={' or family='.join(map(repr, names_by_family))}."
    )
