"""Exports an encoder as a Hugging Face folder, if a model of transformers can represent it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.normalizers import BertNormalizer

from pe_jax.encodings import Context, Params, convert_layout, embed
from pe_jax.encodings.parameters import split_params
from pe_jax.interop import layout
from pe_jax.interop.bert_import import config_of
from pe_jax.interop.export_folder import (
    check_folder,
    new_folder,
    save_json,
    with_special_tokens,
)
from pe_jax.interop.hf_encoders import ACTIVATIONS, EncoderFormat
from pe_jax.interop.hf_keys import first_row
from pe_jax.interop.hf_registry import ENCODERS, FAMILIES
from pe_jax.interop.hf_rope import rope_keys
from pe_jax.interop.special_tokens import NAMES, special_tokens
from pe_jax.interop.tokenizer_classes import (
    BERT_NAMES,
    BERT_SETTINGS,
    difference_from_class,
)
from pe_jax.models import BertConfig, with_tokens
from pe_jax.models.config import ARCHITECTURE

# Fields of which None stands for another value: properties that have it.
_RESOLVED = {
    "num_key_heads": "key_heads",
    "embedding_size": "embedding_width",
    "attention_head_size": "head_size",
}
_OF_POOLER = ("pooler_activation", "classifier_pooling")  # Settings of poolers alone.


def save_encoder(
    folder: str | Path,
    config: BertConfig,
    params: Params,
    tokenizer: Tokenizer,
    *,
    labels: Sequence[str] = (),
    family: str = "",
) -> str:
    """Write a folder that `from_pretrained` of transformers reads, weights and tokenizer.

    In the families of BERT and RoBERTa the position encoding becomes a table of `config.max_length`
    rows; `rope` becomes RoFormer's. Pooler and next-sentence head are left out where the family has
    none. The folder appears whole or not at all.

    Args:
      folder: a local one, new or empty.
      params: of `BertForPretraining`, `BertForClassification`, `BertForSpans` or `BertForTokens`,
        or from `load_encoder`: the encoder under "bert", each head under its own name.
      tokenizer: with special tokens that `load_tokenizer` knows, of as many tokens as the model has
        rows of embeddings, or fewer; a copy that adds those of the beginning and end is saved.
      labels: names of the classes of "classifier" or "tokens".
      family: a model type that `load_encoder` reads; default: the first that can represent the
        model.

    Returns:
      The name of the class of transformers that loads the folder.

    Raises:
      ValueError: if the folder is not empty or not local, no model of transformers can represent
        the encoder, or the parts do not fit each other; every mismatch is listed, and nothing is
        written.
    """
    check_folder(folder)
    model_type = family or _model_type_for(config, params)
    encoder = ENCODERS[model_type]
    if "classifier" not in params:  # Which needs the pooler.
        params = dict(params)
        for head in {"pooler", "next_sentence"} - encoder.heads.keys():
            params.pop(head, None)
    params = _params_in_layout_of(model_type, config, params)
    config = _in_layout_of(model_type, config)
    heads = _checked_heads(encoder, params)
    architecture = encoder.name + encoder.classes[heads]
    has_pooler = _reads_pooler(model_type, params)
    theirs = their_config(model_type, config, tokenizer, has_pooler=has_pooler)
    skipped = first_row(model_type, theirs)
    tensors, errors = _tensors(encoder, config, params, heads, skipped)
    tokens, rows = tokenizer.get_vocab_size(), theirs["vocab_size"]
    if tokens > rows:
        errors.append(
            f"the tokenizer has {tokens} tokens, the model {rows} rows of embeddings"
        )
    classes = _classes(params)
    if labels and len(labels) != classes:
        errors.append(f"{len(labels)} labels for a classifier of {classes} outputs")
    if errors:
        raise ValueError("The parts do not make one BERT:\n  " + "\n  ".join(errors))
    labels = labels or [f"LABEL_{i}" for i in range(classes)]
    theirs = {"architectures": [architecture], **theirs, **_labels(labels, heads)}
    whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    with new_folder(folder) as temporary:
        save_file(whole, temporary / "model.safetensors", metadata={"format": "pt"})
        save_json(temporary / "config.json", theirs)
        _save_tokenizer(temporary, tokenizer, config.max_length, config.num_token_types)
    return architecture


def _checked_heads(encoder: EncoderFormat, params: Params) -> tuple[str, ...]:
    """Return the heads in `params`, a key of `encoder.classes`."""
    heads = tuple(head for head in encoder.heads if head in params)
    included: set[str] = set()  # Such as a pooler in the table of the classifier.
    for head in heads:
        included |= encoder.head_parts((head,)) - {head}
    heads = tuple(head for head in heads if head not in included)
    unknown = sorted(params.keys() - {"bert", *encoder.head_parts(heads)})
    if heads not in encoder.classes or unknown:
        supported = "; ".join("bert " + " ".join(heads) for heads in encoder.classes)
        raise ValueError(
            f"No {encoder.name} of transformers has exactly the parts {', '.join(sorted(params))}. "
            f"Supported: {supported}."
        )
    return heads


def _classes(params: Params) -> int:
    """Return the number of outputs of the head "classifier" or "tokens"; 0 without these."""
    for head in ("classifier", "tokens"):
        if head in params:
            return len(params[head]["bias"])
    return 0


def _model_type_for(config: BertConfig, params: Params) -> str:
    """Return the first family that can represent an encoder; BERT, whose error tells, if none."""
    for model_type, encoder in ENCODERS.items():
        if not encoder.in_transformers:
            continue
        with contextlib.suppress(ValueError):
            has_pooler = _reads_pooler(model_type, params)
            their_config(model_type, config, has_pooler=has_pooler)
            return model_type
    return "bert"


def _reads_pooler(model_type: str, params: Params) -> bool:
    """Return whether an exported model has a pooler: its own, or that of its classifier."""
    has_own = "pooler" in params and "pooler" in ENCODERS[model_type].heads
    return has_own or "classifier" in params


def their_config(
    model_type: str,
    config: BertConfig,
    tokenizer: Tokenizer | None = None,
    *,
    has_pooler: bool = True,
) -> dict[str, Any]:
    """Return the content of config.json, without the class and its labels.

    Args:
      has_pooler: whether the model has one, so that its settings count.

    Raises:
      ValueError: if the family cannot represent the encoder.
    """
    family, encoder = FAMILIES[model_type], ENCODERS[model_type]
    config = _in_layout_of(model_type, config)
    # Theirs have rows alone.
    config = with_tokens(config, config.vocab_size + config.unused_rows)
    if not config.encoding().at_input.parts:  # Then it changes nothing.
        by_mask = encoder.settings.get("positions_from_mask", False)
        config = dataclasses.replace(config, positions_from_mask=by_mask)
    theirs = {"model_type": model_type, **_values_of_keys(encoder, config)}
    if tokenizer is not None:
        theirs |= _token_ids(tokenizer)
    for key in sorted(encoder.needs):
        derived = encoder.derived.get(key)
        theirs[key] = getattr(config, derived) if derived else encoder.only[key]
    if "max_length" in encoder.keys:
        theirs[encoder.keys["max_length"]] += first_row(model_type, theirs)
    if encoder.positions == "table":
        _check_only_embeds(config)
    elif encoder.positions == "rope":
        full = family.is_full is not None
        window_key = encoder.window_key
        theirs |= rope_keys(config.encoding(), config.num_layers, full, window_key)
    elif encoder.positions:
        theirs |= _POSITION_KEYS[encoder.positions](config.encoding().name)
    back = config_of(theirs, "the exported model")
    differences = _differences(config, back, has_pooler)
    encoding, encoding_back = config.encoding(), back.encoding()
    if encoder.positions != "table":
        for i in range(config.num_layers):
            if encoding_back.layer(i) != encoding.layer(i):
                differences.append(f"the position encoding {encoding.name!r}")
                break
    if differences:
        raise ValueError(
            f"{encoder.name} of transformers cannot represent {', '.join(differences)}. Use this "
            "model with pe_jax."
        )
    return theirs


def _deberta_keys(name: str) -> dict[str, Any]:
    """Return the keys of a DeBERTa-v2 with the positions of this name; its table is normalised."""
    options = dict(re.findall(r"(\w+)=(\w+)", name))
    has_offsets = "deberta" in name
    buckets = options.get("num_buckets", "256")
    return {
        "relative_attention": has_offsets,
        "position_biased_input": "learned_absolute" in name,
        "position_buckets": -1 if buckets == "None" else int(buckets),
        "max_relative_positions": int(options.get("max_distance", 512)),
        "pos_att_type": ["p2c", "c2p"] if has_offsets else None,
        "share_att_key": has_offsets,
    }


def _t5_keys(name: str) -> dict[str, Any]:
    options = dict(re.findall(r"(\w+)=(\w+)", name))
    return {
        "relative_attention_num_buckets": int(options.get("num_buckets", 32)),
        "relative_attention_max_distance": int(options.get("max_distance", 128)),
        "is_encoder_decoder": False,
    }


def _esm_keys(name: str) -> dict[str, Any]:
    is_table = name == "learned_absolute"
    return {"position_embedding_type": "absolute" if is_table else "rotary"}


# Keys of config.json by `EncoderFormat.positions`, from the name of an encoding. What a family does
# not have is found when the config is read back.
_POSITION_KEYS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "deberta": _deberta_keys,
    "t5": _t5_keys,
    "esm": _esm_keys,
}


def _values_of_keys(encoder: EncoderFormat, config: BertConfig) -> dict[str, Any]:
    """Return the keys of config.json that fields of the config decide."""
    theirs: dict[str, Any] = {}
    for name, key in {**encoder.keys, **encoder.optional_keys}.items():
        value = getattr(config, _RESOLVED.get(name, name))
        if name in encoder.conditions:
            theirs[encoder.conditions[name]] = value is not None
        if name.endswith("activation"):
            value = _activation_name(value)
        # Of several fields with one key the first counts, and the others are compared with it.
        theirs.setdefault(key, value)
    for key, choices in encoder.choices.items():
        for value, fields in choices.items():
            if all(getattr(config, name) == x for name, x in fields.items()):
                theirs.setdefault(key, value)
    return theirs


def _activation_name(activation: str) -> str:
    """Return the first name that transformers has for an activation; ours if it has none."""
    for name, ours in ACTIVATIONS.items():
        if ours == activation:
            return name
    return activation


def _differences(config: BertConfig, back: BertConfig, has_pooler: bool) -> list[str]:
    """Return the settings that an exported model does not have as the original has them."""
    differences = []
    for name in ARCHITECTURE:
        counts = has_pooler or name not in _OF_POOLER
        value = getattr(config, _RESOLVED.get(name, name))
        if counts and getattr(back, _RESOLVED.get(name, name)) != value:
            differences.append(f"{name} {value!r}")
    return differences


def _in_layout_of(model_type: str, config: BertConfig) -> BertConfig:
    """Return the config with the family's layout of `rope`, and a token type if it needs one."""
    layout, encoder = FAMILIES[model_type].layout, ENCODERS[model_type]
    has_types = "num_token_types" in encoder.keys and not encoder.types_are_optional
    if has_types and not config.num_token_types:
        config = dataclasses.replace(config, num_token_types=1)
    if layout == "half" or config.encoding().name != "rope":
        return config
    return dataclasses.replace(config, position=f"rope(layout={layout!r})")


def _params_in_layout_of(model_type: str, config: BertConfig, params: Params) -> Params:
    converted = _in_layout_of(model_type, config)
    if converted.num_token_types > config.num_token_types:
        zeros = {"embedding": np.zeros((1, config.embedding_width), np.float32)}
        params = {**params, "bert": {**params["bert"], "token_type": zeros}}
    if converted.position == config.position:
        return params
    to = FAMILIES[model_type].layout
    assert to != "half_by_axis"  # Of towers for images, which are not exported.
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    for path, leaf in flat.items():
        if "/attention/qkv/" in path:  # Kernels [D, 3, H, d], biases [3, H, d].
            query_key, value = np.split(np.asarray(leaf), [2], axis=-3)
            flat[path] = np.concatenate([convert_layout(query_key, to), value], axis=-3)
    return flax.traverse_util.unflatten_dict(flat, sep="/")


def _token_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the ids of special tokens, by their keys; else transformers assumes a family's own."""
    names = special_tokens(tokenizer)
    cls = tokenizer.token_to_id(names["cls"])
    sep = tokenizer.token_to_id(names["sep"])
    return {
        "pad_token_id": tokenizer.token_to_id(names["pad"]),
        "cls_token_id": cls,
        "bos_token_id": cls,
        "sep_token_id": sep,
        "eos_token_id": sep,
    }


def position_table(config: BertConfig, position: Params) -> np.ndarray:
    """Return the vectors that an encoding adds to the token embeddings, at 0 .. max_length - 1.

    Args:
      position: the parameters of the encoding.

    Returns:
      `[N, D]` float32.

    Raises:
      ValueError: for an encoding that does more than add vectors to the token embeddings.
    """
    _check_only_embeds(config)
    encoding = config.encoding()
    table = np.zeros((config.max_length, config.embedding_width), np.float32)
    for part, params in split_params(encoding, position):
        assert part.metadata and part.metadata.vectors
        table += np.asarray(part.metadata.vectors(params, np.arange(config.max_length)))
    _compare(config, position, table)
    return table


def _check_only_embeds(config: BertConfig) -> None:
    encoding = config.encoding()
    other_effects = []
    for part in encoding.parts:
        card = part.metadata
        other_effects += [f"{part.key} {effect}" for effect in part.effects]
        if part.embed and not (card and card.kind == "absolute" and card.vectors):
            other_effects.append(f"{part.key} changes the input in a way of its own")
    if encoding.layers or other_effects:
        raise ValueError(
            "PyTorch's BERT has only a table of absolute positions, which cannot represent "
            f"{encoding.name!r}: {', '.join(other_effects) or 'it differs between layers'}. Export "
            "it with --config.format=onnx or stablehlo (interop.save_onnx, save_stablehlo), or a "
            "model with an absolute encoding, `rope` or none."
        )


def _compare(config: BertConfig, position: Params, table: np.ndarray) -> None:
    """Raise ValueError unless the encoding embeds random hidden states as adding the table does."""
    encoding, rng = config.encoding(), np.random.default_rng(0)
    for length in (config.max_length, -(-config.max_length // 2)):
        x = rng.normal(size=(2, length, config.embedding_width)).astype(np.float32)
        tokens = rng.integers(config.vocab_size, size=(2, length))
        context = Context(positions_q=range(length), tokens=tokens)
        embedded = embed(x, encoding, position, context)
        error = np.abs(embedded - x - table[:length])
        if not error.max() <= 1e-4 * max(1, np.abs(table).max()):
            raise ValueError(
                f"PyTorch's BERT adds a table of positions to the word embeddings, which cannot "
                f"represent {encoding.name!r}: in an input of {length} tokens the hidden states "
                f"differ by {error.max():.2g}. Use this model with pe_jax, or export one with "
                "another encoding."
            )


def _tensors(
    encoder: EncoderFormat,
    config: BertConfig,
    params: Params,
    heads: tuple[str, ...],
    skipped: int,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the exported tensors by name, and one line per parameter that does not fit."""
    if encoder.positions == "table":
        bert = dict(params["bert"])
        table = position_table(config, bert.pop("position", {}))
        ours = flax.traverse_util.flatten_dict({**params, "bert": bert}, sep="/")
        ours[layout.POSITIONS] = table
        config = dataclasses.replace(config, position="learned_absolute")
    else:
        ours = flax.traverse_util.flatten_dict(params, sep="/")
    classes = _classes(params)
    leaves = layout.leaves(encoder, config, heads, classes, skipped)
    unknown = sorted(ours.keys() - {leaf.ours for leaf in leaves})
    # Classes with heads hold the encoder, and its pooler, as a submodule.
    prefix = encoder.prefixes[0] if heads not in ((), ("pooler",)) else ""
    in_encoder = ("bert/", "pooler/") if "pooler" in heads else ("bert/",)
    tensors: dict[str, np.ndarray] = {}
    for name, constant in encoder.constants.items():
        if constant is not None:
            tensors[f"{prefix}{name}"] = constant(config.max_length, config.head_size)
    errors = [f"{path}: is not part of such a model" for path in unknown]
    for leaf in leaves:
        if leaf.ours not in ours:
            errors.append(f"{leaf.ours}: missing")
            continue
        x = np.asarray(ours[leaf.ours], np.float32)
        if x.shape != leaf.shape:
            errors.append(f"{leaf.ours}: {x.shape}, {leaf.shape} expected")
            continue
        start = prefix if leaf.ours.startswith(in_encoder) else ""
        for name, tensor in zip(leaf.tensors, leaf.to_theirs(x), strict=True):
            tensors[f"{start}{name}"] = tensor
    if not config.tied_decoder:
        # A bias that transformers ties to another, or adds alone.
        for own, first in layout.tied(encoder, config).items():
            if first in tensors:
                tensors[own] = tensors[first]
    return tensors, errors


def _labels(labels: Sequence[str], heads: Collection[str]) -> dict[str, Any]:
    """Return the keys of config.json about the classes of a head; none without labels."""
    if not labels:
        return {}
    keys: dict[str, Any] = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    if "tokens" not in heads:
        keys["problem_type"] = "single_label_classification"
        if len(labels) == 1:
            keys["problem_type"] = "regression"
    return keys


def _save_tokenizer(
    folder: Path, tokenizer: Tokenizer, length: int, token_types: int
) -> None:
    """Write `tokenizer.json`, and the class that reads it in transformers.

    Args:
      length: the most tokens of an input.
      token_types: the number of token types of the model.
    """
    whole = with_special_tokens(tokenizer)
    whole.save(str(folder / "tokenizer.json"))
    names = {**getattr(tokenizer, NAMES, {}), **special_tokens(tokenizer)}
    values = {
        "model_max_length": length,
        "padding_side": "right",
        "truncation_side": "right",
    }
    for role, name in names.items():
        if name:
            values[f"{role}_token"] = name
    if token_types < 2:
        values["model_input_names"] = ["input_ids", "attention_mask"]
    settings = _bert_settings(whole, names)
    if settings is None:
        values = {"tokenizer_class": "PreTrainedTokenizerFast", **values}
        return save_json(folder / "tokenizer_config.json", values)
    values = {"tokenizer_class": "BertTokenizer", **settings, **values}
    save_json(folder / "tokenizer_config.json", values)
    ids = tokenizer.get_vocab(with_added_tokens=False)
    vocabulary = "".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__))
    (folder / "vocab.txt").write_text(vocabulary, encoding="utf-8")


def _bert_settings(
    tokenizer: Tokenizer, names: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the settings of transformers' `BertTokenizer`, None if it builds another tokenizer of
    the same vocabulary: version 5 takes neither normalizer nor pre-tokenizer of a tokenizer.json.
    """
    normalizer = tokenizer.normalizer
    has_roles = all(names[role] for role in BERT_NAMES)
    if not isinstance(normalizer, BertNormalizer) or not has_roles:
        return None
    words = tokenizer.get_vocab_size(with_added_tokens=False)
    if tokenizer.get_vocab_size() != words:
        return None
    settings = {
        key: getattr(normalizer, name) for key, (name, _) in BERT_SETTINGS.items()
    }
    if difference_from_class(tokenizer, "BertTokenizer", settings, names):
        return None
    return settings
