"""Keys of transformers' configs: their names, the values that they may have, and defaults."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pe_jax.encodings.huggingface_families import (
    FAMILIES,
    FULL,
    ORIGINAL,
    REFUSED,
    UNNAMED,
    Config,
    Family,
)
from pe_jax.errors import did_you_mean

_MOST_LAYERS = 10_000
# Other names of the keys that are read.
_ALIASES = {
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "dim": "hidden_size",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "layers_block_type": "layer_types",
    "rotary_emb_base": "rope_theta",
    "rotary_pct": "partial_rotary_factor",
    "rotary_emb_fraction": "partial_rotary_factor",
    "_sliding_window_pattern": "sliding_window_pattern",
}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value % 1 == 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _list_of(item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list | tuple) and len(value) <= _MOST_LAYERS and all(map(item, value))
    )


# What a value may be: a check, and a conversion, as JSON makes no difference between 8 and 8.0.
_SIZE, _WHOLE = "a positive integer", "an integer, 0 or more"
_COUNT = f"an integer from 1 to {_MOST_LAYERS}"
_POSITIVE, _NUMBER = "a positive number", "a number"
_FLAG, _TEXT, _DICT = "true or false", "a string", "a dict"
_PATTERN = "an integer, 0 or more, or a string of L and G"
_TEXTS, _FLAGS, _WHOLES, _NUMBERS = (
    f"a list of at most {_MOST_LAYERS} {items}"
    for items in ("strings", "times 0 or 1", "integers, 0 or more", "numbers")
)
_KINDS: Mapping[str, tuple[Callable[[Any], bool], Callable[[Any], Any]]] = {
    _SIZE: (lambda value: _is_whole(value) and value > 0, int),
    _WHOLE: (_is_whole, int),
    _COUNT: (lambda value: _is_whole(value) and 0 < value <= _MOST_LAYERS, int),
    _POSITIVE: (lambda value: _is_number(value) and value > 0, float),
    _NUMBER: (_is_number, float),
    _FLAG: (lambda value: value in (0, 1), bool),
    _TEXT: (_is_text, str),
    _DICT: (lambda value: isinstance(value, Mapping), dict),
    _PATTERN: (
        lambda value: set(value) <= {"L", "G"} if _is_text(value) else _is_whole(value),
        lambda value: value if _is_text(value) else int(value),
    ),
    _TEXTS: (_list_of(_is_text), list),
    _FLAGS: (_list_of(lambda item: item in (0, 1)), list),
    _WHOLES: (_list_of(_is_whole), list),
    _NUMBERS: (_list_of(_is_number), lambda value: tuple(map(float, value))),
}
# What is read of a config. None stands for a key that is missing.
_KEYS: Mapping[str, str] = {
    _SIZE: "hidden_size embedding_size num_attention_heads max_position_embeddings head_dim "
    "global_head_dim qk_rope_head_dim rotary_dim local_attention floor_scale attention_chunk_size "
    f"global_attn_every_n_layers no_rope_layer_interval full_attention_interval {ORIGINAL}",
    _WHOLE: "sliding_window max_window_layers pad_token_id",
    _COUNT: "num_hidden_layers",
    _POSITIVE: "rope_theta global_rope_theta local_rope_theta rope_local_base_freq attn_scale "
    "partial_rotary_factor",
    _FLAG: "use_sliding_window rope_interleave",
    _TEXT: "model_type position_embedding_type",
    _DICT: "rope_scaling rope_parameters per_layer_config attn_config",
    _PATTERN: "sliding_window_pattern",
    _TEXTS: "layer_types",
    _FLAGS: "no_rope_layers",
    _WHOLES: "attn_layer_indices full_attn_idxs",
}
# The same of rope settings; all others are numbers.
_SETTINGS: Mapping[str, str] = {
    "rope_theta": _POSITIVE,
    ORIGINAL: _SIZE,
    "truncate": _FLAG,
    "mrope_interleaved": _FLAG,
    "mrope_section": _NUMBERS,
    "short_factor": _NUMBERS,
    "long_factor": _NUMBERS,
}


def _converted(name: str, value: Any, kind: str) -> Any:
    accepts, convert = _KINDS[kind]
    if not accepts(value):
        raise ValueError(f"{name} must be {kind}, got {reprlib.repr(value)}.")
    return convert(value)


def checked_setting(key: str, value: Any) -> Any:
    """A rope setting as its kind.

    Raises:
      ValueError: for a value of another kind.
    """
    return _converted(f"The rope setting {key!r}", value, _SETTINGS.get(key, _NUMBER))


# Settings that change rotations or logits in ways that are not read, and what they do.
_NOT_READ: Mapping[str, str] = {
    "alibi": "adds ALiBi divided by sqrt(head_size), with slopes in bfloat16",
    "rotary_emb_interleaved": "is of code outside transformers",
    "rotary_emb_scale_base": "is xPos, of code outside transformers",
    "rotary_value": "rotates the values too",
    "rotary_scaling_factor": "is of code outside transformers",
    "use_logn_attn": "is of code outside transformers",
}
# Keys that do not say enough without a family.
_NEED_FAMILY = (
    *("attention_chunk_size", "attn_temperature_tuning", "per_layer_config", "qk_rope_head_dim"),
    *("attn_layer_indices", "full_attention_interval", "full_attn_idxs"),
)


def checked_config(config: object) -> tuple[dict[str, Any], Family]:
    """The config with defaults and checked values, and its family."""
    if not isinstance(config, Mapping):
        raise ValueError(
            f"config must be a dict, got {type(config).__name__}. Pass config.to_dict() of a "
            "config object."
        )
    if isinstance(config.get("text_config"), Mapping):
        return checked_config(config["text_config"])
    values = dict(config)
    for old, new in _ALIASES.items():
        if old in values and values.get(new) is None:
            values[new] = values[old]
    for kind, keys in _KEYS.items():
        for key in keys.split():
            if values.get(key) is not None:
                values[key] = _converted(key, values[key], kind)
    family = _family(values.get("model_type"))
    for key, effect in _NOT_READ.items():
        if values.get(key):
            raise ValueError(
                f"{key} {effect}, which from_hf does not support. Build the encoding from "
                "encodings.rope or a related encoding."
            )
    if family is UNNAMED:
        for key in _NEED_FAMILY:
            if values.get(key):
                raise ValueError(f"{key} needs model_type: add that of the model.")
    else:
        for key, default in {"rope_theta": family.theta, **family.defaults}.items():
            values.setdefault(key, default)
        if not values.get("rope_scaling") and not values.get("rope_parameters"):
            values["rope_parameters"] = family.settings
    if values.get("per_layer_config"):
        values["global_head_dim"] = _full_head_size(values)
    return values, family


def _family(model_type: str | None) -> Family:
    if not model_type:
        return UNNAMED
    name = model_type.removesuffix("_text")
    if name in REFUSED:
        raise ValueError(f"model_type {model_type!r} is not supported: {REFUSED[name]}.")
    if name not in FAMILIES:
        raise ValueError(
            f"Unknown model_type {reprlib.repr(model_type)}.{did_you_mean(name[:40], FAMILIES)} If "
            "the model works like Llama, leave out model_type."
        )
    return FAMILIES[name]


def described(config: Config) -> str:
    model_type = config.get("model_type")
    return f"model_type {model_type!r}" if model_type else "a config without model_type"


def _full_head_size(config: Config) -> int:
    """Gemma 4 in version 5: the head size of layers with full attention is an override of each."""
    overrides = config["per_layer_config"]
    full = {str(i) for i, name in enumerate(config.get("layer_types") or ()) if name == FULL}
    readable = all(
        isinstance(values, Mapping)
        and {"head_dim"} <= set(values) <= {"head_dim", "num_key_value_heads"}
        for values in overrides.values()
    )
    sizes = {str(values["head_dim"]) for values in overrides.values()} if readable else set()
    if len(sizes) != 1 or {str(layer).lstrip("0") or "0" for layer in overrides} != full:
        raise ValueError(
            "per_layer_config is supported only if it gives all layers with full attention the "
            f"same head_dim, got {reprlib.repr(overrides)}."
        )
    return _converted("head_dim", next(iter(overrides.values()))["head_dim"], _SIZE)
