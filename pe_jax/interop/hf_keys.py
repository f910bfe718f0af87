"""Keys of transformers' configs: their names, the values that they may have, and defaults."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pe_jax.interop.hf_family import (
    FULL,
    ORIGINAL,
    SIZE_KEYS,
    UNNAMED,
    Config,
    HFFamily,
    required,
)
from pe_jax.interop.hf_registry import FAMILIES, FIRST_NAMES, REFUSED, WITHOUT

_MOST_LAYERS = 10_000
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
# Other names of the keys that are read.
_ALIASES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "d_model": "hidden_size",
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "depth": "num_hidden_layers",
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
_SIZE, _WHOLE = "an integer from 1 to 2147483647", "an integer from 0 to 2147483647"
_WIDTH, _HEAD = "an integer from 1 to 1048576", "an integer from 1 to 65536"
_COUNT = f"an integer from 1 to {_MOST_LAYERS}"
_POSITIVE, _NUMBER = "a positive number", "a number"
_FLAG, _TEXT, _DICT = "true or false", "a string", "a dict"
_PATTERN = "an integer, 0 or more, or a string of L and G"
_TEXTS, _FLAGS, _WHOLES, _NUMBERS = (
    f"a list of at most {_MOST_LAYERS} {items}"
    for items in ("strings", "times 0 or 1", "integers, 0 or more", "numbers")
)
_KINDS: Mapping[str, tuple[Callable[[Any], bool], Callable[[Any], Any]]] = {
    _SIZE: (lambda value: _is_whole(value) and 0 < value < 2**31, int),
    _WHOLE: (lambda value: _is_whole(value) and value < 2**31, int),
    _WIDTH: (lambda value: _is_whole(value) and 0 < value <= 2**20, int),
    _HEAD: (lambda value: _is_whole(value) and 0 < value <= 2**16, int),
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
    _SIZE: "max_position_embeddings local_attention floor_scale attention_chunk_size "
    f"global_attn_every_n_layers no_rope_layer_interval full_attention_interval "
    f"layer_group_size rel_extent d_rel {ORIGINAL}",
    _WIDTH: "hidden_size embedding_size",
    _HEAD: "num_attention_heads head_dim global_head_dim qk_rope_head_dim rotary_dim "
    "swa_num_attention_heads",
    _WHOLE: "sliding_window max_window_layers pad_token_id",
    _COUNT: "num_hidden_layers",
    _POSITIVE: "rope_theta global_rope_theta local_rope_theta rope_local_base_freq attn_scale "
    "partial_rotary_factor",
    _FLAG: "use_sliding_window rope_interleave use_mem_rope",
    _TEXT: "model_type position_embedding_type",
    _DICT: "rope_scaling rope_parameters per_layer_config attn_config",
    _PATTERN: "sliding_window_pattern",
    _TEXTS: "layer_types block_types",
    _FLAGS: "no_rope_layers",
    _WHOLES: "attn_layer_indices full_attn_idxs cross_attention_layers rope_scaling_layers "
    "local_layer_ids",
    _NUMBERS: "layer_rope_theta",
}
_KIND_OF = {key: kind for kind, keys in _KEYS.items() for key in keys.split()}
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
    return _converted(key, value, _SETTINGS.get(key, _NUMBER))


# Keys that change positions in ways that are not read, mostly of code outside transformers.
_NOT_READ: Mapping[str, str] = {
    "alibi": "adds ALiBi divided by sqrt(head_size), with slopes in bfloat16",
    "alibi_starting_size": "adds ALiBi",
    "rope_ratio": "multiplies the base of RoPE",
    "rotary_emb_interleaved": "makes pairs of neighbours",
    "rotary_emb_scale_base": "is xPos",
    "rotary_scaling_factor": "scales positions",
    "rotary_value": "rotates the values too",
    "sinusoidal_pos_embds": "makes the table at the input sinusoidal",
    "use_alibi": "adds ALiBi",
    "use_dynamic_ntk": "changes the base of RoPE with the length",
    "use_logn_attn": "scales the logits by the length",
}
_HARMLESS = {"rope_ratio": 1}
# The same of MPT's `attn_config`: what these keys may be.
_ATTN_CONFIG = {"alibi": True, "prefix_lm": False, "rope": False, "sliding_window_size": -1}
# Keys that do not say enough without a family.
_NEED_FAMILY = (
    *("attention_chunk_size", "attn_temperature_tuning", "per_layer_config", "qk_rope_head_dim"),
    *("attn_layer_indices", "full_attention_interval", "full_attn_idxs", "cross_attention_layers"),
)


def _inner(config: Config, key: str) -> Config:
    """A model inside a config, of the outer model's type if it names none."""
    outer = config.get("model_type")
    known = isinstance(outer, str) and outer in FAMILIES
    inner = {**({"model_type": outer} if known else {}), **config[key]}
    # Qwen2-VL's tower has the type of the whole, and others none.
    kind = f"{inner.get('model_type') or outer}_{key.removesuffix('_config')}"
    return {**inner, "model_type": kind} if kind in FAMILIES or kind in REFUSED else inner


def parts_of(config: Config) -> list[str]:
    """Return the keys of the models inside a config."""
    return [
        key
        for key, value in config.items()
        if isinstance(value, Mapping) and (value.get("model_type") or key == "vision_config")
    ]


def _part_of(config: Config, part: object) -> Config:
    """The model under the keys `part`, joined by dots; the first may be in a text model's config.

    Raises:
      ValueError: if there is none.
    """
    keys = part.split(".") if isinstance(part, str) else [""]
    for key in keys:
        while not isinstance(config.get(key), Mapping):
            outer = next((k for k in _TEXT_PARTS if isinstance(config.get(k), Mapping)), None)
            if outer is None:
                raise ValueError(
                    f"part must be {' or '.join(parts_of(config)) or 'left out'} for "
                    f"{described(config)}, got {reprlib.repr(part)}."
                )
            config = config[outer]
        config = _inner(config, key)
        if key.endswith(("encoder", "decoder")):
            config = {"is_decoder": key.endswith("decoder"), **config}
    return config


def checked_config(
    config: object, part: str | None = None
) -> tuple[dict[str, Any], HFFamily | None]:
    """Return the keys that matter, with defaults and checked values, and the family.

    Of a family that is not known, None, all keys are returned as they are.

    Args:
      part: keys of the model that is read, see `from_hf`.
    """
    if not isinstance(config, Mapping):
        raise ValueError(
            f"config must be a dict, got {type(config).__name__}. Pass config.to_dict() of a "
            "config object."
        )
    if part is not None:
        config = _part_of(config, part)
    while keys := [key for key in _TEXT_PARTS if isinstance(config.get(key), Mapping)]:
        config = _inner(config, keys[0])
    name = _converted("model_type", config.get("model_type") or "", _TEXT)
    if name not in FAMILIES and name not in WITHOUT:
        name = name.removesuffix("_text")
    name = FIRST_NAMES.get(name, name)
    if name in REFUSED:
        raise ValueError(f"model_type {name!r} is not supported: {REFUSED[name]}.")
    if name in WITHOUT:
        raise ValueError(
            f"model_type {name!r} is not supported: its code in transformers has no rotary, "
            "relative or bias positions."
        )
    family = FAMILIES.get(name) if name else UNNAMED
    if family is None:
        return dict(config), None
    values = dict(config)
    for old, new in _ALIASES.items():
        if old in values and values.get(new) is None:
            values[new] = values[old]
    for own, ours in family.renamed.items():
        if values.get(own) is not None:
            values[ours] = values[own]
    _refuse(values, family)
    if family is not UNNAMED:
        values = {key: values[key] for key in family.reads() if key in values}
        _fill(values, family)
        values["model_type"] = name
    for key, value in values.items():
        if value is not None and key in _KIND_OF:
            values[key] = _converted(key, value, _KIND_OF[key])
    if values.get("per_layer_config"):
        values["global_head_dim"] = _full_head_size(values)
    for key, value in (values.get("attn_config") or {}).items():  # MPT's.
        if key == "alibi_bias_max" and value is not None:
            _converted("attn_config.alibi_bias_max", value, _POSITIVE)
        if key in _ATTN_CONFIG and value not in (None, _ATTN_CONFIG[key]):
            raise ValueError(
                f"attn_config.{key} must be {_ATTN_CONFIG[key]} or left out, got "
                f"{reprlib.repr(value)}: transformers has no such model."
            )
    return values, family


def _refuse(values: Config, family: HFFamily) -> None:
    """Raise ValueError for keys that matter and are not supported."""
    for key, effect in _NOT_READ.items():
        value = values.get(key)
        if value and value != _HARMLESS.get(key) and key not in family.defaults:
            raise ValueError(
                f"{key} {effect}, which from_hf does not support; got {reprlib.repr(value)}. "
                "Build the encoding by name."
            )
    for key, accepted in family.only.items():
        if values.get(key) not in (None, accepted):
            raise ValueError(
                f"{key} must be {accepted} or left out for {described(values)}, got "
                f"{reprlib.repr(values[key])}, which from_hf does not support."
            )
    for key in family.needs:
        required(values, key)
    for key in _NEED_FAMILY if family is UNNAMED else ():
        if values.get(key):
            alike = ", ".join(name for name in FAMILIES if key in FAMILIES[name].defaults)
            raise ValueError(
                f"{key} is read only with a model_type that has it: {alike}. Add that of the model."
            )


def _fill(values: dict[str, Any], family: HFFamily) -> None:
    """Add the defaults of a family."""
    sizes = dict(zip(SIZE_KEYS, family.sizes))
    for key in ("layer_types", "no_rope_layers", "layer_rope_theta"):
        if isinstance(values.get(key), list | tuple) and values[key]:
            sizes["num_hidden_layers"] = len(values[key])
    for key, default in {"rope_theta": family.theta, **family.defaults, **sizes}.items():
        values.setdefault(key, default)
    if not values.get("rope_scaling") and not values.get("rope_parameters"):
        values["rope_parameters"] = family.settings


def first_row(model_type: str, config: Config) -> int:
    """Return the row of a learned table that is the first position's.

    Raises:
      ValueError: if it depends on a `pad_token_id` that is missing or no row.
    """
    family = FAMILIES[model_type]
    if not family.padded_table:
        return 0
    padding = required({**family.defaults, **config}, "pad_token_id")
    return int(_converted("pad_token_id", padding, _WHOLE)) + 1


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
