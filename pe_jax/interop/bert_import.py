"""Imports published encoders, BERT and its successors, as parameters of `pe_jax.models`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
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
    ACTIVATIONS_WITH_TANH,
    HEADS,
    POSITION_MODULE,
    EncoderFormat,
    format_of,
)
from pe_jax.interop.hf_encoding import from_hf
from pe_jax.interop.hf_keys import first_row
from pe_jax.interop.hf_registry import ENCODERS, FIRST_NAMES, REFUSED, current_name
from pe_jax.interop.hub import local_folder
from pe_jax.interop.layout import Leaf
from pe_jax.interop.published_encoder import PublishedEncoder
from pe_jax.interop.refusals import check_plain_weights
from pe_jax.interop.sentence_files import EncoderFolder, transformer_folder
from pe_jax.models import BertConfig

# Keys of transformers' base class that change any model, which must be left out, and the way out.
_REFUSED = {
    "per_layer_config": "its layers differ in size",
    "quantization_config": (
        "quantised weights are not read; load the model that was quantised, or save this one in "
        "its own dtype: from_pretrained(...).dequantize().save_pretrained(FOLDER) of transformers"
    ),
}
PRETRAINING_HEADS = ("pooler", "masked_lm", "next_sentence")  # BertForPretraining's.
TASK_HEADS = ("classifier", "spans", "tokens")  # Of which a class has one.
_TYPES = (*ENCODERS, *FIRST_NAMES)  # Values of model_type that can be loaded.
_MOST_LINES = 200  # Of an error: there are as many tensors in BERT-base.
_OUTPUT = "classifier"  # The output layer in classes for sentences, tokens, choices and spans.


def load_encoder(path: str | Path, heads: Collection[str] = HEADS) -> PublishedEncoder:
    """Return a published encoder, of a family in docs/modern.md, with the heads that it has.

    Tensor names may or may not begin with the name of the encoder, such as `bert.`; the gamma and
    beta of old files are read as LayerNorm's weight and bias.

    The class in `architectures` of config.json decides what "classifier", "spans" and "tokens" are,
    as files for all of them and for choices have tensors of the same names. Without such a class
    these heads are read where their names alone decide. Tensors of other heads are left in
    `unread`.

    Args:
      path: a folder with config.json and `model.safetensors`, or shards and their index; or one
        .safetensors file with config.json next to it; or the name of a model of the Hugging Face
        Hub, see `pe_jax.interop.hub`.
      heads: the heads to read, if the checkpoint has them.

    Raises:
      ValueError: if config.json has a value that is not supported or a size that the tensors do not
        have, or if any tensor of the encoder or of a head that it has is missing, unknown, not
        finite, of another shape or not of floats, has two names and two values, or differs from a
        tensor that this model ties it to. The message lists the first 200 of them. Also if some of
        "classifier", "spans" and "tokens" are asked for, and the checkpoint has another one.
    """
    folder = local_folder(path)
    checkpoint = open_checkpoint(transformer_folder(folder))
    check_plain_weights(checkpoint.path, checkpoint.config, checkpoint.names, _TYPES)
    theirs = current_config(checkpoint.config, str(checkpoint.path))
    encoder = format_of(theirs)
    names = _current_names(encoder, checkpoint)
    _check_sizes(encoder, theirs, checkpoint, names)
    config = config_of(theirs, str(checkpoint.path))
    errors = _conflicts(encoder, checkpoint, names)
    ties = layout.tied(encoder, config)
    if not config.tied_decoder:
        _prefer_own_decoder(names, ties)
    saved_heads = _saved_heads(encoder, theirs, names.keys())
    _check_task(checkpoint, theirs, heads, saved_heads)
    present = tuple(head for head in saved_heads if head in heads)
    output = _output_of_classes(encoder, names, present)
    classes = _rows(checkpoint, output)
    if output:
        errors += _other_labels(theirs, output, classes)
    skipped = first_row(theirs["model_type"], theirs)
    leaves = layout.leaves(encoder, config, present, classes, skipped)
    leaves += _table_norm(encoder, config, theirs)
    unread = _unread(encoder, names, leaves, ties)
    errors += _mismatches(checkpoint, names, leaves)
    errors += _untied(checkpoint, names, ties)
    errors += _other_constants(encoder, config, checkpoint, names)
    errors += _unknown(encoder, names, unread)
    if errors:
        heading = f"{path} does not hold the {_title(encoder)} that its config.json describes:"
        if len(errors) > _MOST_LINES:
            more = len(errors) - _MOST_LINES
            errors[_MOST_LINES:] = [f"... and {more:,} more"]
        raise ValueError("\n  ".join([heading, *errors]))
    params = _with_normalised_table(_read_params(checkpoint, names, leaves), config)
    absent = tuple(head for head in PRETRAINING_HEADS if head not in params)
    return PublishedEncoder(
        config=config,
        params=params,
        absent=absent,
        unread=tuple(names[name] for name in unread),
        folder=EncoderFolder(folder if folder.is_dir() else checkpoint.folder),
        labels=_labels(theirs, classes) if output else (),
    )


_TABLE_NORM = "table_norm"  # Where the parameters of `EncoderFormat.table_norm` are until applied.


def _table_norm(
    encoder: EncoderFormat, config: BertConfig, theirs: Mapping[str, Any]
) -> list[Leaf]:
    """Return the parameters of the norm of DeBERTa's table, if the config has one."""
    if "layer_norm" not in str(theirs.get("norm_rel_ebd")) or not encoder.table_norm:
        return []
    norm = encoder.table_norm
    shape = (config.hidden_size,)
    return [
        Leaf(f"{_TABLE_NORM}/scale", (f"{norm}.weight",), shape),
        Leaf(f"{_TABLE_NORM}/bias", (f"{norm}.bias",), shape),
    ]


def _with_normalised_table(params: Params, config: BertConfig) -> Params:
    """Apply the norm of DeBERTa's table to it, in float64."""
    if _TABLE_NORM not in params:
        return params
    norm = params.pop(_TABLE_NORM)
    (part,) = params["bert"]["position"].values()
    table = np.asarray(part["table"], np.float64)
    centred = table - table.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    normalised = centred / np.sqrt(variance + config.layer_norm_epsilon)
    scaled = normalised * np.asarray(norm["scale"]) + np.asarray(norm["bias"])
    part["table"] = jnp.asarray(scaled, jnp.float32)
    return params


def _prefer_own_decoder(names: dict[str, str], ties: Mapping[str, str]) -> None:
    """Let tensors of a decoder stand for those that a tied one repeats.

    A decoder that is not tied adds its own bias alone, in transformers too.
    """
    for own, first in ties.items():
        if own in names:
            names[first] = names.pop(own)


def _tensors_of_head(encoder: EncoderFormat, head: str) -> set[str]:
    """Return all names that a head's tensors may have."""
    tensors: set[str] = set()
    for modules in encoder.heads[head].values():
        for module in modules:
            tensors |= {f"{module}.weight", f"{module}.bias"}
    return tensors


def _saved_heads(
    encoder: EncoderFormat, theirs: Mapping[str, Any], names: Set[str]
) -> list[str]:
    """Return the heads that a file with tensors of these names has.

    Heads of tasks have one output layer, `classifier`, in many classes: there `architectures`
    decides which of them it is, and whose the layers before it are.
    """
    task = _task(theirs)
    tensors = {head: _tensors_of_head(encoder, head) for head in encoder.heads}
    heads_of_class: set[str] = set()
    for heads, end in encoder.classes.items():
        # Such as a classifier with its pooler.
        is_complete = all(tensors[head] & names for head in heads)
        if end == task and is_complete:
            heads_of_class = set(heads)
    # The output layer of each head, by the entry of its table that has the head's name.
    outputs: dict[str, str] = {}
    for head, table in encoder.heads.items():
        modules = table.get(head, ("",))
        outputs[head] = modules[0]
    has_output = f"{_OUTPUT}.weight" in names or f"{_OUTPUT}.bias" in names
    shared: set[str] = set()
    for head, output in outputs.items():
        if output == _OUTPUT:
            shared |= tensors[head]
    saved: list[str] = []
    for head, own in tensors.items():
        if outputs[head] == _OUTPUT or (has_output and own & shared):
            is_saved = has_output and head in heads_of_class
        elif head in TASK_HEADS:
            output = outputs[head]
            named = f"{output}.weight" in names or f"{output}.bias" in names
            is_saved = named and (head in heads_of_class or not task)
        else:
            is_saved = bool(own & names)
        if is_saved:
            saved.append(head)
    return saved


def _task(theirs: Mapping[str, Any]) -> str:
    """Return the end of the class in `architectures`, such as `ForTokenClassification`; empty for
    an encoder alone, and where no or several classes are named."""
    ends = set()
    for name in theirs.get("architectures") or ():
        match = re.search(r"For[A-Z]\w*$", str(name))
        if match:
            ends.add(match[0])
    return ends.pop() if len(ends) == 1 else ""


def _check_task(
    checkpoint: Checkpoint,
    theirs: Mapping[str, Any],
    heads: Collection[str],
    saved: Collection[str],
) -> None:
    """Raise a ValueError if heads of tasks are asked for, and the checkpoint has another one."""
    asked = [head for head in TASK_HEADS if head in heads]
    others = [head for head in TASK_HEADS if head in saved]
    if asked and others and not set(asked) & set(others):
        raise ValueError(
            f"{checkpoint.path} has no head {' or '.join(map(repr, asked))}: "
            f"{', '.join(map(str, theirs.get('architectures') or ['its file']))} has "
            f"{', '.join(map(repr, others))}. Pass heads={tuple(others)!r} to read it, or heads=() "
            "for the encoder alone."
        )


def _output_of_classes(
    encoder: EncoderFormat, names: Mapping[str, str], present: Collection[str]
) -> str:
    """Return the name in the file of the output layer of "classifier" or "tokens"; "" for none."""
    for head in ("classifier", "tokens"):
        if head in present:
            (output,) = encoder.heads[head][head]
            return names.get(f"{output}.weight", "")
    return ""


def _labels(theirs: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    """Return the names of the classes in their order; those of transformers without `id2label`."""
    names = {str(i): name for i, name in (theirs.get("id2label") or {}).items()}
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(classes))


def _unread(
    encoder: EncoderFormat,
    names: Mapping[str, str],
    leaves: list[Leaf],
    ties: Mapping[str, str],
) -> list[str]:
    """Return the tensors that no parameter needs, but for copies and constants."""
    rest = names.keys() - ties.keys()
    for leaf in leaves:
        rest -= {*leaf.tensors}
    unread = []
    for name in sorted(rest):
        of_any_layer = re.sub(r"\.[0-9]+\.", ".*.", name)
        if encoder.constants.keys().isdisjoint((name, of_any_layer)):
            unread.append(name)
    return unread


def _unknown(
    encoder: EncoderFormat, names: Mapping[str, str], unread: list[str]
) -> list[str]:
    """Return a line per tensor that is part of another model.

    Such as layers beyond those of config.json, or relative position embeddings.
    """
    complete = _complete(encoder)
    readable: set[str] = set()
    for head in encoder.heads:
        readable |= _tensors_of_head(encoder, head)
    errors = []
    for name in unread:
        if name.startswith(complete) and name not in readable:
            errors.append(f"{names[name]}: is not part of this model")
    return errors


def _other_labels(
    theirs: Mapping[str, Any], classifier: str, classes: int
) -> list[str]:
    """Return a line if config.json has another number of labels than the classifier has rows."""
    labels = theirs.get("id2label")
    if labels is None:
        count = theirs.get("num_labels")
        if count in (None, classes):
            return []
        return [
            f"{classifier}: {classes} classes, but num_labels of config.json has {shown(count)}"
        ]
    if not isinstance(labels, Mapping):
        return [
            f"{classifier}: id2label of config.json must be an object, got {shown(labels)}"
        ]
    if set(map(str, labels)) != set(map(str, range(len(labels)))):
        numbers = shown([*labels])
        return [
            f"{classifier}: id2label of config.json must count from 0, got {numbers}"
        ]
    if len(labels) == classes:
        return []
    return [
        f"{classifier}: {classes} classes, but id2label of config.json has {len(labels)}"
    ]


def _rows(checkpoint: Checkpoint, name: str) -> int:
    """Return the first size of a tensor; 0 if there is none."""
    if not name:
        return 0
    shape = checkpoint.shape(name)
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
    first_module = next(iter(encoder.layer.values()))[0]
    beginning = first_module.partition("*")[0]
    number_in_name = re.compile(rf"{re.escape(beginning)}([0-9]{{1,9}})(\.|$)")
    count = 0
    for tensor in names:
        match = number_in_name.match(tensor)
        if match:
            count = max(count, int(match[1]) + 1)
    if count:
        yield "num_layers", count, f"the file has tensors of {count} layers"
    embeddings = encoder.embeddings
    is_narrow = "embedding_size" in encoder.optional_keys
    size_of_embeddings = "embedding_size" if is_narrow else "hidden_size"
    shown_by = [
        ("vocab_size", embeddings["bert/token"], 0),
        (size_of_embeddings, embeddings["bert/token"], 1),
        ("num_token_types", embeddings.get("bert/token_type"), 0),
        ("max_length", embeddings.get(POSITION_MODULE), 0),
        ("num_heads", embeddings.get("bert/position/t5"), 1),
        ("intermediate_size", encoder.layer["down"], 1),
    ]
    tables = []
    for field, modules, axis in shown_by:
        if modules:
            tables.append((field, f"{modules[0]}.weight".replace("*", "0"), axis))
    for tensor, constant in encoder.constants.items():
        if constant:
            tables.append(("max_length", tensor, 0))
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
    beginnings = set()
    for table in (encoder.embeddings, encoder.layer, *encoder.heads.values()):
        for modules in table.values():
            beginnings.add(modules[0].split(".")[0] + ".")
    return tuple(beginnings - {"classifier.", "qa_outputs."})


def _read_params(
    checkpoint: Checkpoint, names: dict[str, str], leaves: list[Leaf]
) -> Params:
    flat: dict[str, np.ndarray] = {}
    broken: list[str] = []
    for leaf in leaves:
        tensors = []
        for name in leaf.tensors:
            with np.errstate(over="ignore"):  # Of float64: checked below.
                tensor = checkpoint.read(names[name]).astype(np.float32)
            if not np.isfinite(tensor).all():
                broken.append(names[name])
            tensors.append(tensor)
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
    encoder = format_of(theirs)
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
    current = current_name(kind, theirs) if isinstance(kind, str) else ""
    if current not in ENCODERS:
        reason = f" ({REFUSED[current]})" if current in REFUSED else ""
        raise ValueError(
            f"The config.json of {path} is not that of an encoder that can be loaded: model_type "
            f"is {kind!r}{reason}, not {', '.join(map(repr, ENCODERS))}."
        )
    aliases = format_of({**theirs, "model_type": current}).aliases
    named = {aliases.get(key, key): value for key, value in theirs.items()}
    # A current name takes precedence over its aliases.
    for key in theirs.keys() & named.keys():
        named[key] = theirs[key]
    return {**named, "model_type": current}


def config_of(theirs: Mapping[str, Any], path: str) -> BertConfig:
    """Return our config for their config.json, as `current_config` returns it.

    Raises:
      ValueError: for keys that are missing, and values that are not supported; the message lists
        all of them.
    """
    encoder = format_of(theirs)
    keys = {**encoder.keys, **encoder.optional_keys}
    values = {name: theirs[key] for name, key in keys.items() if key in theirs}
    for name, condition in encoder.conditions.items():
        if not theirs.get(condition):
            values.pop(name, None)
    required = [*encoder.keys.values(), *(encoder.needs - encoder.only.keys())]
    missing = [key for key in required if key not in theirs]
    errors = []
    if missing:
        errors.append(f"it lacks {', '.join(missing)}: add what you know")
    for name, published in list(values.items()):
        if not name.endswith("activation"):
            continue
        may_be_tanh = name in ("pooler_activation", "conv_activation")
        accepted = ACTIVATIONS_WITH_TANH if may_be_tanh else ACTIVATIONS
        if isinstance(published, str) and published in accepted:
            values[name] = accepted[published]
        else:
            del values[name]
            errors.append(_not_one_of(keys[name], accepted, published))
    for key, choices in encoder.choices.items():
        if key not in theirs:
            continue
        if isinstance(theirs[key], str) and theirs[key] in choices:
            values |= choices[theirs[key]]
        else:
            errors.append(_not_one_of(key, choices, theirs[key]))
    for name, value in values.items():
        fault = kinds(BertConfig)[name].error(value)
        if fault:
            errors.append(f"{keys[name]} {fault}")
    errors += _unsupported(encoder, theirs)
    if errors:
        raise ValueError(
            f"The config.json of {path} does not describe a supported {_title(encoder)}: "
            f"{'; '.join(error.rstrip('.') for error in errors)}."
        )
    try:
        return _built_config(encoder, theirs, values)
    except ValueError as error:
        message = str(error)
        for name, key in keys.items():
            message = re.sub(rf"\b{name}\b", key, message)
        raise ValueError(f"The config.json of {path}: {message}") from error


def _not_one_of(key: str, accepted: Iterable[str], value: object) -> str:
    return f"{key} must be one of {', '.join(accepted)}, got {shown(value)}"


def _built_config(
    encoder: EncoderFormat, theirs: Mapping[str, Any], values: dict[str, Any]
) -> BertConfig:
    """Return the config of these values of its fields, with the position encoding of `theirs`.

    Raises:
      ValueError: for values that `BertConfig` refuses, or keys that contradict others.
    """
    fields = {**encoder.settings, **values}
    fields["max_length"] -= first_row(theirs["model_type"], theirs)
    config = BertConfig(**fields)
    # Sizes that others give are not said again.
    if config.embedding_width == config.hidden_size:
        config = dataclasses.replace(config, embedding_size=None)
    if config.head_size * config.num_heads == config.hidden_size:
        config = dataclasses.replace(config, attention_head_size=None)
    for key, name in encoder.derived.items():
        value = getattr(config, name)
        if theirs.get(key) not in (None, value):
            raise ValueError(
                f"{key} must be {value}, as the other sizes give it, got {shown(theirs[key])}."
            )
    encoding = from_hf(theirs)
    if encoding == config.encoding():  # A learned table is the default.
        return config
    return dataclasses.replace(config, position=encoding)


def _unsupported(encoder: EncoderFormat, theirs: Mapping[str, Any]) -> list[str]:
    """Return a line per key whose value only another model supports."""
    errors = []
    for key, way_out in _REFUSED.items():
        if theirs.get(key) is not None:
            errors.append(
                f"{key} must be left out, got {shown(theirs[key])}: {way_out}"
            )
    for key, only in encoder.only.items():
        if key in encoder.needs and theirs.get(key) is None:
            errors.append(
                f"model_type {theirs['model_type']!r} is that of an encoder only if {key} is {only}"
            )
        elif theirs.get(key) not in (only, None):
            accepted = "left out" if only is None else repr(only)
            errors.append(f"{key} must be {accepted}, got {shown(theirs[key])}")
    window = theirs.get("sliding_window")
    is_both_ways = theirs.get("use_bidirectional_attention") is True
    if is_both_ways and isinstance(window, int) and window % 2 == 1:
        errors.append(
            f"sliding_window must be even, twice the reach of a layer with a window, got {window}: "
            "transformers 4.57, for one, saves half of the published size plus 1. If it wrote the "
            f"file, correct it to {2 * (window - 1)}"
        )
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
    for beginning, current in encoder.renames.items():
        if name.startswith(beginning):
            name = current + name.removeprefix(beginning)
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    return name.replace("LayerNorm.beta", "LayerNorm.bias")


def _conflicts(
    encoder: EncoderFormat, checkpoint: Checkpoint, names: Mapping[str, str]
) -> list[str]:
    """Return a line per tensor that has two names and two values."""
    errors = []
    for name in checkpoint.names:
        first = names[_current_name(encoder, name)]
        if first != name and not _are_equal(checkpoint, first, name):
            errors.append(
                f"{name}: not the same as {first}, another name of the same tensor"
            )
    return errors


def _are_equal(checkpoint: Checkpoint, first: str, second: str) -> bool:
    return np.array_equal(checkpoint.read(first), checkpoint.read(second))


def _mismatches(
    checkpoint: Checkpoint, names: dict[str, str], leaves: list[Leaf]
) -> list[str]:
    """Return a line per tensor that is missing, or has another shape or dtype."""
    errors = []
    for leaf in leaves:
        shape = leaf.tensor_shape
        for name in leaf.tensors:
            if name not in names:
                error = f"{name}: missing, {shape} expected"
                if leaf.ours == layout.DECODER:
                    error += ", as tie_word_embeddings is False"
                errors.append(error)
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
    errors = []
    for own, tied in ties.items():
        if own not in names or tied not in names:
            continue
        again, first = names[own], names[tied]
        if not _are_equal(checkpoint, again, first):
            errors.append(
                f"{again}: not the same as {first}, to which this model ties it"
            )
    return errors


def _other_constants(
    encoder: EncoderFormat,
    config: BertConfig,
    checkpoint: Checkpoint,
    names: dict[str, str],
) -> list[str]:
    """Return a line per tensor that has other values than the encoder's constant of that name."""
    errors = []
    for name, constant in encoder.constants.items():
        if constant is None or name not in names:
            continue
        tensor = names[name]
        values = constant(config.max_length, config.head_size)
        is_same = checkpoint.shape(tensor) == values.shape
        if is_same:
            # Files may have it in float16.
            is_same = np.allclose(checkpoint.read(tensor), values, atol=1e-3)
        if not is_same:
            errors.append(
                f"{tensor}: has other values than the {_title(encoder)} of transformers"
            )
    return errors
