"""Imports a published BERT as parameters of `pe_jax.models`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings import Params
from pe_jax.interop import layout
from pe_jax.interop.checkpoint_files import Checkpoint, open_checkpoint
from pe_jax.interop.layout import Leaf
from pe_jax.models import BertConfig
from pe_jax.schema import kinds

PRETRAINING = ("pooler", "masked_lm", "next_sentence")  # The heads of BertForPretraining.


class PublishedBert(NamedTuple):
    """A BERT from a checkpoint.

    Attributes:
      config: its sizes and constants.
      params: float32; the encoder under "bert", and the heads that the checkpoint has under their
        names in `pe_jax.models`: "pooler", "masked_lm", "next_sentence", "classifier", "spans".
      absent: the heads of `BertForPretraining` that the checkpoint lacks.
      unread: the names of tensors that belong to none of these.
    """

    config: BertConfig
    params: Params
    absent: tuple[str, ...]
    unread: tuple[str, ...]


def load_bert(path: str | Path, heads: Collection[str] = tuple(layout.HEADS)) -> PublishedBert:
    """Return a published BERT, with the heads that it has.

    Tensor names may or may not begin with `bert.`; the gamma and beta of old files are read as
    LayerNorm's weight and bias.

    Args:
      path: see `open_checkpoint`; config.json is required.
      heads: the heads to read, if the checkpoint has them.

    Raises:
      ValueError: if it is not such a BERT, or if any tensor of the encoder or of a head that it has
        is missing, has another shape, is not of floats, is not finite, is unknown, or differs
        from a tensor that this model ties it to. The message lists all of them.

    Example:
      >>> from pe_jax import interop, models
      >>> bert = interop.load_bert("bert-base-uncased")  # A folder.
      >>> states = models.hidden_states(bert.config, bert.params["bert"], tokens)
    """
    checkpoint = open_checkpoint(path)
    config = _config(checkpoint)
    names = {_modern(name): name for name in checkpoint.names}
    present = {
        head: leaves
        for head, leaves in layout.HEADS.items()
        if head in heads and any(t in names for leaf in leaves for t in leaf.tensors)
    }
    leaves = [
        *layout.encoder_leaves(config.num_layers),
        *(leaf for head in present.values() for leaf in head),
    ]
    expected = {name for leaf in leaves for name in leaf.tensors}
    unread = sorted(names.keys() - expected - _REDUNDANT)
    errors = [
        *_mismatches(checkpoint, config, names, leaves),
        *_untied(checkpoint, names),
        # More layers than config.json says, or relative position embeddings: another model.
        *(f"{names[name]}: is not part of this model" for name in unread if _is_unknown(name)),
    ]
    if errors:
        heading = f"{path} does not hold the BERT that its config.json describes:"
        raise ValueError("\n  ".join([heading, *errors]))
    return PublishedBert(
        config,
        _read_params(checkpoint, config, names, leaves),
        absent=tuple(head for head in PRETRAINING if head not in present),
        unread=tuple(names[name] for name in unread),
    )


# Tensors that hold no information: position ids 0, 1, ..., and copies of tied tensors.
_REDUNDANT = {"embeddings.position_ids", *layout.TIED}
_HEADS = {name for leaves in layout.HEADS.values() for leaf in leaves for name in leaf.tensors}


def _is_unknown(name: str) -> bool:
    """Return whether an unread tensor belongs to a part of BERT that is read completely."""
    return name.startswith(("embeddings.", "encoder.", "pooler.", "cls.")) and name not in _HEADS


def _read_params(
    checkpoint: Checkpoint, config: BertConfig, names: dict[str, str], leaves: list[Leaf]
) -> Params:
    """Return the parameters of `leaves`, float32, nested by their paths."""
    flat: dict[str, np.ndarray] = {}
    broken: list[str] = []
    for leaf in leaves:
        with np.errstate(over="ignore"):  # Of float64: checked below.
            tensors = [checkpoint.read(names[name]).astype(np.float32) for name in leaf.tensors]
        broken += [
            names[name]
            for name, tensor in zip(leaf.tensors, tensors)
            if not np.isfinite(tensor).all()
        ]
        flat[leaf.ours] = leaf.to_ours(tensors, config.num_heads)
    if broken:
        raise ValueError(
            f"{checkpoint.path} has weights that are NaN, infinite or too large for float32: "
            f"{', '.join(broken[:5])}{', ...' if len(broken) > 5 else ''}. Its training diverged, "
            "or the file is damaged."
        )
    params = flax.traverse_util.unflatten_dict(flat, sep="/")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)


def read_config(path: str | Path) -> BertConfig:
    """Return the config that `load_bert` returns, without reading a tensor; raises as it does."""
    return _config(open_checkpoint(path))


def _config(checkpoint: Checkpoint) -> BertConfig:
    theirs = checkpoint.config
    if not theirs:
        raise ValueError(
            f"{checkpoint.path} has no config.json (for Google's checkpoints, bert_config.json) "
            "next to it, and the tensors do not show the number of heads. Download it from the "
            "checkpoint's source."
        )
    errors = [
        f"{key} is {theirs.get(key, default)!r}, not {only!r}"
        for key, (only, default) in layout.ONLY.items()
        if theirs.get(key, default) != only
    ]
    errors += [f"{key} is missing" for key in layout.SIZES.values() if key not in theirs]
    errors += [
        f"{key} {fault}"
        for ours, key in (layout.SIZES | layout.CONSTANTS).items()
        if key in theirs and (fault := kinds(BertConfig)[ours].fault(theirs[key]))
    ]
    if errors:
        raise ValueError(
            f"The config.json of {checkpoint.path} does not describe a supported BERT: "
            f"{'; '.join(errors)}. (An old file may lack a key: add it if you know its value.)"
        )
    constants = {ours: theirs[key] for ours, key in layout.CONSTANTS.items() if key in theirs}
    sizes = {ours: theirs[key] for ours, key in layout.SIZES.items()}
    try:
        return BertConfig(**sizes, **constants)
    except ValueError as error:
        raise ValueError(f"The config.json of {checkpoint.path}: {error}") from error


def _modern(name: str) -> str:
    """Return a tensor's name as in `layout`."""
    name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def _mismatches(
    checkpoint: Checkpoint, config: BertConfig, names: dict[str, str], leaves: list[Leaf]
) -> list[str]:
    """Return a line per tensor that is missing, or has another shape or dtype."""
    classifier = names.get("classifier.weight", "")
    classes = checkpoint.shape(classifier)[0] if classifier else 0  # Any number of classes fits.
    errors = []
    for leaf in leaves:
        shape = layout.tensor_shape(leaf, config, classes)
        for name in leaf.tensors:
            if name not in names:
                errors.append(f"{name}: missing, {shape} expected")
            elif checkpoint.shape(names[name]) != shape:
                errors.append(f"{names[name]}: {checkpoint.shape(names[name])}, {shape} expected")
            elif not checkpoint.is_float(names[name]):
                dtype = checkpoint.headers[names[name]].dtype
                errors.append(f"{names[name]}: {dtype}, floats expected")
    return errors


def _untied(checkpoint: Checkpoint, names: dict[str, str]) -> list[str]:
    """Return a line per tensor that should equal another one, and does not."""
    return [
        f"{names[again]}: not the same as {names[first]}, to which this model ties it"
        for again, first in layout.TIED.items()
        if again in names and first in names
        if not np.array_equal(checkpoint.read(names[again]), checkpoint.read(names[first]))
    ]
