"""Imports published encoders, BERT and its successors, as parameters of `pe_jax.models`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.schema import kinds
from pe_jax.common.values import shown
from pe_jax.encodings import Params
from pe_jax.interop import layout
from pe_jax.interop.checkpoint_files import Checkpoint, open_checkpoint
from pe_jax.interop.hf_encoders import (
    ACTIVATIONS,
    HEADS,
    POSITION_MODULE,
    EncoderFormat,
)
from pe_jax.interop.hf_encoding import from_hf
from pe_jax.interop.hf_keys import first_row
from pe_jax.interop.hf_registry import ENCODERS, FIRST_NAMES
from pe_jax.interop.hub import local_folder
from pe_jax.interop.layout import Leaf
from pe_jax.interop.published_encoder import PublishedEncoder
from pe_jax.interop.refusals import check_plain_weights
from pe_jax.interop.sentence_files import EncoderFolder, transformer_folder
from pe_jax.models import BertConfig

# Keys of transformers' base class that change any model, with the only value that is supported.
_ONLY = {"per_layer_config": None, "quantization_config": None}
PRETRAINING_HEADS = (
    "pooler",
    "masked_lm",
    "next_sentence",
)  # The heads of BertForPretraining.
_TYPES = (*ENCODERS, *FIRST_NAMES)  # Values of model_type that can be loaded.
_MOST_LINES = 200  # Of an error: there are as many tensors in BERT-base.
_OUTPUT = "classifier"  # The output layer in classes for sentences, tokens, choices and spans.


def load_encoder(path: str | Path, heads: Collection[str] = HEADS) -> PublishedEncoder:
    """Return a published encoder, of a family in docs/modern.md, with the heads that it has.

    Tensor names may or may not begin with the name of the encoder, such as `bert.`; the gamma and
    beta of old files are read as LayerNorm's weight and bias.

    The class in `architectures` of config.json decides what "classifier" and "spans" are, as files
    for tokens or choices have tensors of the same names. Without such a class these heads are read
    where their names alone decide. Tensors of other heads are left in `unread`.

    Args:
      path: a folder with config.json and `model.safetensors`, or shards and their index; or one
        .safetensors file with config.json next to it; or the name of a model of the Hugging Face
        Hub, see `pe_jax.interop.hub`.
      heads: the heads to read, if the checkpoint has them.

    Raises:
      ValueError: if config.json has a value that is not supported or a size that the tensors do not
        have, or if any tensor of the encoder or of a head that it has is missing, unknown, not
        finite, of another shape or not of floats, has two names and two values, or differs from a
        tensor that this model ties it to. The message lists the first 200 of them.
    """
    folder = local_folder(path)
    checkpoint = open_checkpoint(transformer_folder(folder))
    check_plain_weights(checkpoint.path, checkpoint.config, checkpoint.names, _TYPES)
    theirs = current_config(checkpoint.config, str(checkpoint.path))
    encoder = ENCODERS[theirs["model_type"]]
    names = _current_names(encoder, checkpoint)
    _check_sizes(encoder, theirs, checkpoint, names)
    config = config_of(theirs, str(checkpoint.path))
    errors = _conflicts(encoder, checkpoint, names)
    ties = layout.tied(encoder, config)
    if not config.tied_decoder:  # Then transformers adds the decoder's own bias alone.
        names |= {first: names.pop(own) for own, first in ties.items() if own in names}
    head_tensors = {
        head: {
            f"{module}.{kind}"
            for module in modules.values()
            for kind in ("weight", "bias")
        }
        for head, modules in encoder.heads.items()
    }
    saved_heads = _heads(encoder, theirs, head_tensors, names.keys())
    present = tuple(
        head for head in head_tensors if head in heads and head in saved_heads
    )
    classes = 0
    if "classifier" in present:
        classifier = names.get(
            f"{encoder.heads['classifier']['classifier']}.weight", ""
        )
        classes = _rows(checkpoint, classifier)
        errors += _other_labels(theirs, classifier, classes)
    skipped = first_row(theirs["model_type"], theirs)
    leaves = layout.leaves(encoder, config, present, classes, skipped)
    expected = {name for leaf in leaves for name in leaf.tensors}
    unread = sorted(names.keys() - expected - {*encoder.constants, *ties})
    readable = set().union(*head_tensors.values())
    complete = _complete(encoder)
    unknown = [
        name for name in unread if name.startswith(complete) and name not in readable
    ]
    errors += [
        *_mismatches(checkpoint, names, leaves),
        *_untied(checkpoint, names, ties),
        *_other_constants(encoder, config, checkpoint, names),
        # More layers than config.json says, or relative position embeddings: another model.
        *(f"{names[name]}: is not part of this model" for name in unknown),
    ]
    if errors:
        heading = f"{path} does not hold the {_title(encoder)} that its config.json describes:"
        more = len(errors) - _MOST_LINES
        errors[_MOST_LINES:] = [f"... and {more:,} more"] if more > 0 else []
        raise ValueError("\n  ".join([heading, *errors]))
    params = _read_params(checkpoint, names, leaves)
    absent = tuple(head for head in PRETRAINING_HEADS if head not in params)
    return PublishedEncoder(
        config=config,
        params=params,
        absent=absent,
        unread=tuple(names[name] for name in unread),
        folder=EncoderFolder(folder if folder.is_dir() else checkpoint.folder),
    )


def _heads(
    encoder: EncoderFormat,
    theirs: Mapping[str, Any],
    tensors: dict[str, set[str]],
    names: Set[str],
) -> set[str]:
    """Return the heads of this model of which `names` has some of the `tensors`."""
    task = _task(theirs)
    heads_of_class: set[str] = set()
    for heads, end in encoder.classes.items():
        complete = all(
            tensors[head] & names for head in heads
        )  # A classifier with its pooler.
        if end == task and complete:
            heads_of_class = set(heads)
    has_output = f"{_OUTPUT}.weight" in names or f"{_OUTPUT}.bias" in names
    # Of heads that differ by their use of the same tensors: those of ModernBERT's.
    shared: set[str] = set()
    for head in tensors:
        if encoder.heads[head].get(head) == _OUTPUT:
            shared |= tensors[head]
    found: set[str] = set()
    for head, own in tensors.items():
        output = encoder.heads[head].get(head)
        if output == _OUTPUT:
            is_saved = has_output and head in heads_of_class
        elif has_output and own & shared:
            is_saved = head in heads_of_class
        elif head in ("classifier", "spans"):
            named = bool({f"{output}.weight", f"{output}.bias"} & names)
            is_saved = named and (head in heads_of_class or not task)
        else:
            is_saved = bool(own & names)
        if is_saved:
            found.add(head)
    return found


def _task(theirs: Mapping[str, Any]) -> str:
    """Return the end of the class in `architectures`, such as `ForTokenClassification`; empty for
    an encoder alone, and where no or several classes are named."""
    ends = set()
    for name in theirs.get("architectures") or ():
        match = re.search(r"For[A-Z]\w*$", str(name))
        if match:
            ends.add(match[0])
    return ends.pop() if len(ends) == 1 else ""


def _other_labels(
    theirs: Mapping[str, Any], classifier: str, classes: int
) -> list[str]:
    """Return a line if config.json has another number of labels than the classifier has rows."""
    key, labels = "id2label", theirs.get("id2label")
    count: Any = None
    if labels is None:
        key, count = "num_labels", theirs.get("num_labels")
    elif not isinstance(labels, Mapping):
        return [
            f"{classifier}: {key} of config.json must be an object, got {shown(labels)}"
        ]
    else:
        count = len(labels)
        if set(map(str, labels)) != set(map(str, range(count))):
            numbers = shown([*labels])
            return [
                f"{classifier}: {key} of config.json must count from 0, got {numbers}"
            ]
    if count in (None, classes):
        return []
    return [
        f"{classifier}: {classes} classes, but {key} of config.json has {shown(count)}"
    ]


def _rows(checkpoint: Checkpoint, name: str) -> int:
    """Return the first size of a tensor; 0 if there is none."""
    shape = checkpoint.shape(name) if name else ()
    return shape[0] if shape else 0


def _check_sizes(
    encoder: EncoderFormat,
    theirs: Mapping[str, Any],
    checkpoint: Checkpoint,
    names: Mapping[str, str],
) -> None:
    """Raise a ValueError for sizes in config.json that the tensors do not have.

    Those of a damaged config.json can be huge, and nothing is built before this check.
    """
    keys = {**encoder.keys, **encoder.optional_keys}
    lines = []
    for field, size, source in _sizes(encoder, checkpoint, names):
        value = theirs.get(keys.get(field, ""))
        if type(value) is not int or value == size:
            continue
        # Files may have tensors of more layers: each is listed as no part of the model.
        if field != "num_layers" or value > size:
            lines.append(f"{keys[field]} is {shown(value)}, but {source}")
    if lines:
        raise ValueError(
            f"The config.json of {checkpoint.path} does not fit its tensors: {'; '.join(lines)}."
        )


def _sizes(
    encoder: EncoderFormat, checkpoint: Checkpoint, names: Mapping[str, str]
) -> Iterator[tuple[str, int, str]]:
    """Yield the fields of `BertConfig` that tensors show, their sizes, and how an error says it."""
    beginning = next(iter(encoder.layer.values()))
    beginning = (beginning if isinstance(beginning, str) else beginning[0]).partition(
        "*"
    )[0]
    layers = [
        name.removeprefix(beginning).partition(".")[0]
        for name in names
        if name.startswith(beginning)
    ]
    numbers = [int(layer) for layer in layers if re.fullmatch("[0-9]{1,9}", layer)]
    if numbers:
        count = max(numbers) + 1
        yield "num_layers", count, f"the file has tensors of {count} layers"
    shown_by = [
        ("vocab_size", encoder.embeddings["bert/token"], 0),
        ("hidden_size", encoder.embeddings["bert/token"], 1),
        ("num_token_types", encoder.embeddings.get("bert/token_type"), 0),
        ("max_length", encoder.embeddings.get(POSITION_MODULE), 0),
        ("num_heads", encoder.embeddings.get("bert/position/t5"), 1),
        ("intermediate_size", encoder.layer["down"], 1),
    ]
    tables = [
        (field, f"{module}.weight".replace("*", "0"), axis)
        for field, module, axis in shown_by
    ]
    tables += [
        ("max_length", name, 0) for name, value in encoder.constants.items() if value
    ]
    for field, tensor, axis in tables:
        name = names.get(tensor)
        if name is None or len(checkpoint.shape(name)) != 2:
            continue
        shape = checkpoint.shape(name)
        yield field, shape[axis], f"{name} is {shape}"


def _title(encoder: EncoderFormat) -> str:
    return "BERT" if encoder.name == "Bert" else encoder.name


def _complete(encoder: EncoderFormat) -> tuple[str, ...]:
    """Return the beginnings of names of which every tensor is read: `encoder.`, `cls.`."""
    tables = (encoder.embeddings, encoder.layer, *encoder.heads.values())
    names = [
        x if isinstance(x, str) else x[0] for table in tables for x in table.values()
    ]
    return tuple(
        {f"{name.split('.')[0]}." for name in names} - {"classifier.", "qa_outputs."}
    )


def _read_params(
    checkpoint: Checkpoint, names: dict[str, str], leaves: list[Leaf]
) -> Params:
    flat: dict[str, np.ndarray] = {}
    broken: list[str] = []
    for leaf in leaves:
        with np.errstate(over="ignore"):  # Of float64: checked below.
            tensors = [
                checkpoint.read(names[name]).astype(np.float32) for name in leaf.tensors
            ]
        finite = [np.isfinite(tensor).all() for tensor in tensors]
        broken += [
            names[name] for name, right in zip(leaf.tensors, finite) if not right
        ]
        flat[leaf.ours] = leaf.to_ours(tensors)
    if broken:
        raise ValueError(
            f"{checkpoint.path} has weights that are NaN, infinite or too large for float32: "
            f"{', '.join(broken[:5])}{', ...' if len(broken) > 5 else ''}. Its training diverged, "
            "or the file is damaged."
        )
    params = flax.traverse_util.unflatten_dict(flat, sep="/")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)


def read_config(path: str | Path) -> BertConfig:
    """Return the config of `load_encoder` without reading a tensor; raises as it does."""
    checkpoint = open_checkpoint(path)
    check_plain_weights(checkpoint.path, checkpoint.config, checkpoint.names, _TYPES)
    path = str(checkpoint.path)
    theirs = current_config(checkpoint.config, path)
    encoder = ENCODERS[theirs["model_type"]]
    _check_sizes(encoder, theirs, checkpoint, _current_names(encoder, checkpoint))
    return config_of(theirs, path)


def current_config(theirs: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return a config.json with the current names of its keys and of its `model_type`.

    Raises:
      ValueError: if it is empty, or its model_type is not in `ENCODERS`.
    """
    if not theirs:
        raise ValueError(
            f"{path} has no config.json next to it, and the tensors do not show the number of "
            "heads. Download it from the checkpoint's source."
        )
    kind = theirs.get("model_type")
    current = FIRST_NAMES.get(kind, kind) if isinstance(kind, str) else ""
    if current not in ENCODERS:
        raise ValueError(
            f"The config.json of {path} is not that of an encoder that can be loaded: model_type "
            f"is {kind!r}, not {', '.join(map(repr, ENCODERS))}."
        )
    aliases = ENCODERS[current].aliases
    named = {aliases.get(key, key): value for key, value in theirs.items()}
    named |= {key: value for key, value in theirs.items() if key in named}
    return {**named, "model_type": current}


def config_of(theirs: Mapping[str, Any], path: str) -> BertConfig:
    """Return our config for their config.json, as `current_config` returns it.

    Raises:
      ValueError: for keys that are missing, and values that are not supported; the message lists
        all of them.
    """
    encoder = ENCODERS[theirs["model_type"]]
    keys = {**encoder.keys, **encoder.optional_keys}
    ours = {name: theirs[key] for name, key in keys.items() if key in theirs}
    missing = [key for key in encoder.keys.values() if key not in theirs]
    errors = [f"it lacks {', '.join(missing)}: add what you know"] if missing else []
    for name in [name for name in ours if name.endswith("activation")]:
        published = ours.pop(name)
        if isinstance(published, str) and published in ACTIVATIONS:
            ours[name] = ACTIVATIONS[published]
        else:
            accepted = ", ".join(ACTIVATIONS)
            errors.append(
                f"{keys[name]} must be one of {accepted}, got {shown(published)}"
            )
    errors += [
        f"{keys[name]} {fault}"
        for name, value in ours.items()
        if (fault := kinds(BertConfig)[name].error(value))
    ]
    errors += _unsupported(encoder, theirs)
    if errors:
        raise ValueError(
            f"The config.json of {path} does not describe a supported {_title(encoder)}: "
            f"{'; '.join(error.rstrip('.') for error in errors)}."
        )
    try:
        ours["max_length"] -= first_row(theirs["model_type"], theirs)
        config = BertConfig(**{**encoder.settings, **ours})
        for key, name in encoder.derived.items():
            if theirs.get(key) not in (None, getattr(config, name)):
                raise ValueError(
                    f"{key} must be {getattr(config, name)}, as the other sizes give it, got "
                    f"{shown(theirs[key])}."
                )
        encoding = from_hf(theirs)
        if encoding == config.encoding():  # A learned table is the default.
            return config
        return BertConfig(**{**encoder.settings, **ours, "position": encoding})
    except ValueError as error:
        message = str(error)
        for name, key in keys.items():
            message = re.sub(rf"\b{name}\b", key, message)
        raise ValueError(f"The config.json of {path}: {message}") from error


def _unsupported(encoder: EncoderFormat, theirs: Mapping[str, Any]) -> list[str]:
    """Return a line per key whose value only another model supports."""
    errors = [
        f"{key} must be {'left out' if only is None else repr(only)}, got {shown(theirs[key])}"
        for key, only in {**_ONLY, **encoder.only}.items()
        if theirs.get(key) not in (only, None)
    ]
    code = theirs.get("auto_map")
    if not encoder.has_remote_code and "AutoModel" in str(code):
        errors.append(
            f"auto_map must not name models, whose code is outside transformers, got "
            f"{shown(code)}: remove it if they compute what transformers' {encoder.name} does"
        )
    return errors


def _current_names(encoder: EncoderFormat, checkpoint: Checkpoint) -> dict[str, str]:
    """Return the name of each tensor by that of the family's tables; of several, the first."""
    names: dict[str, str] = {}
    for name in checkpoint.names:
        names.setdefault(_current_name(encoder, name), name)
    return names


def _current_name(encoder: EncoderFormat, name: str) -> str:
    for prefix in encoder.prefixes:
        name = name.removeprefix(prefix)
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def _conflicts(
    encoder: EncoderFormat, checkpoint: Checkpoint, names: Mapping[str, str]
) -> list[str]:
    """Return a line per tensor that has two names and two values."""
    errors = []
    for name in checkpoint.names:
        first = names[_current_name(encoder, name)]
        if first != name and not np.array_equal(
            checkpoint.read(first), checkpoint.read(name)
        ):
            errors.append(
                f"{name}: not the same as {first}, another name of the same tensor"
            )
    return errors


def _mismatches(
    checkpoint: Checkpoint, names: dict[str, str], leaves: list[Leaf]
) -> list[str]:
    """Return a line per tensor that is missing, or has another shape or dtype."""
    errors = []
    for leaf in leaves:
        shape = leaf.tensor_shape
        for name in leaf.tensors:
            if name not in names:
                why = (
                    ", as tie_word_embeddings is False"
                    if leaf.ours == layout.DECODER
                    else ""
                )
                errors.append(f"{name}: missing, {shape} expected{why}")
            elif checkpoint.shape(names[name]) != shape:
                errors.append(
                    f"{names[name]}: {checkpoint.shape(names[name])}, {shape} expected"
                )
            elif not checkpoint.is_float(names[name]):
                dtype = checkpoint.headers[names[name]].dtype
                errors.append(f"{names[name]}: {dtype}, floats expected")
    return errors


def _untied(
    checkpoint: Checkpoint, names: dict[str, str], ties: dict[str, str]
) -> list[str]:
    """Return a line per tensor that should equal another one, and does not."""
    return [
        f"{names[again]}: not the same as {names[first]}, to which this model ties it"
        for again, first in ties.items()
        if again in names and first in names
        if not np.array_equal(
            checkpoint.read(names[again]), checkpoint.read(names[first])
        )
    ]


def _other_constants(
    encoder: EncoderFormat,
    config: BertConfig,
    checkpoint: Checkpoint,
    names: dict[str, str],
) -> list[str]:
    """Return a line per tensor that has other values than the encoder's constant of that name."""
    values = {
        name: value(config.max_length, config.head_size)
        for name, value in encoder.constants.items()
        if value is not None and name in names
    }
    return [
        f"{names[name]}: has other values than the {_title(encoder)} of transformers"
        for name, value in values.items()
        # Files may have it in float16.
        if checkpoint.shape(names[name]) != value.shape
        or not np.allclose(checkpoint.read(names[name]), value, atol=1e-3)
    ]
