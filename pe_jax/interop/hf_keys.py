"""Keys of transformers' configs: their names, the values that they may have, and defaults."""

from __future__ import annotations

import functools
import json
import reprlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pe_jax.interop.hf_layers import FULL, Config, required
from pe_jax.interop.hf_registry import (
    FAMILIES,
    REFUSED,
    SIZE_KEYS,
    UNNAMED,
    WITHOUT,
    HFFamily,
    current_name,
)

_MOST_LAYERS = 10_000
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value % 1 == 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return value in (0, 1)


def _is_dict(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_size_or_minus_1(value: Any) -> bool:
    return value == -1 or (_is_whole(value) and 1 <= value < 2**31)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _are_names(value: Any) -> bool:
    return _is_text(value) or _is_list_of(_is_text, value)


def _split_names(value: Any) -> list[str]:
    return value.split("|") if _is_text(value) else list(value)


def _is_pattern(value: Any) -> bool:
    if _is_text(value):
        return set(value) <= {"L", "G"}
    return _is_whole(value)


def _to_pattern(value: Any) -> str | int:
    return value if _is_text(value) else int(value)


def _to_floats(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value))


def _is_list_of(item: Callable[[Any], bool], value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) > _MOST_LAYERS:
        return False
    return all(map(item, value))


class _Kind(NamedTuple):
    """What a value may be: in words, as a check, and the type that it is converted to.

    JSON makes no difference between 8 and 8.0.
    """

    what: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any]


def _whole(least: int, most: int) -> _Kind:
    def accepts(value: Any) -> bool:
        return _is_whole(value) and least <= value <= most

    return _Kind(f"an integer from {least} to {most}", accepts, int)


def _list_of(what: str, item: Callable[[Any], bool], convert: Callable = list) -> _Kind:
    accepts = functools.partial(_is_list_of, item)
    return _Kind(f"a list of at most {_MOST_LAYERS} {what}", accepts, convert)


# By the names of `hf_keys.json`; None stands for a key that is missing, and is accepted by all.
_INTEGERS = {
    "size": _whole(1, 2**31 - 1),
    "whole": _whole(0, 2**31 - 1),
    "width": _whole(1, 2**20),
    "head": _whole(1, 2**16),
    "count": _whole(1, _MOST_LAYERS),
    "size or -1": _Kind("an integer, 1 or more, or -1", _is_size_or_minus_1, int),
}
_OTHER_SCALARS = {
    "positive": _Kind("a positive number", _is_positive, float),
    "number": _Kind("a number", _is_number, float),
    "flag": _Kind("true or false", _is_flag, bool),
    "text": _Kind("a string", _is_text, str),
    "dict": _Kind("a dict", _is_dict, dict),
}
_PATTERN_TEXT = "an integer, 0 or more, or a string of L and G"
_NAMES_TEXT = "a string of names joined by |, or a list of them"
_SEQUENCES = {
    "pattern": _Kind(_PATTERN_TEXT, _is_pattern, _to_pattern),
    "names": _Kind(_NAMES_TEXT, _are_names, _split_names),
    "texts": _list_of("strings", _is_text),
    "flags": _list_of("times 0 or 1", _is_flag),
    "wholes": _list_of("integers, 0 or more", _is_whole),
    "numbers": _list_of("numbers", _is_number, _to_floats),
}
_KINDS: Mapping[str, _Kind] = {**_INTEGERS, **_OTHER_SCALARS, **_SEQUENCES}
_DATA = json.loads(Path(__file__).with_name("hf_keys.json").read_text(encoding="utf-8"))
_KIND_OF: dict[str, str] = {}
for _kind, _keys in _DATA["kinds"].items():
    _KIND_OF |= dict.fromkeys(_keys, _kind)


def _converted(name: str, value: Any, kind: str) -> Any:
    accepted = _KINDS[kind]
    if not accepted.accepts(value):
        raise ValueError(f"{name} must be {accepted.what}, got {reprlib.repr(value)}.")
    return accepted.convert(value)


def checked_setting(key: str, value: Any) -> Any:
    """Return a rope setting, converted to its kind.

    Raises:
      ValueError: for a value of another kind.
    """
    return _converted(key, value, _DATA["settings"].get(key, "number"))


def _inner(config: Config, key: str) -> Config:
    """Return a model inside a config, of the outer model's type if it names none."""
    outer = config.get("model_type")
    inner = dict(config[key])
    if isinstance(outer, str) and outer in FAMILIES:
        inner.setdefault("model_type", outer)
    # Qwen2-VL's tower has the type of the whole, and others none.
    kind = f"{inner.get('model_type') or outer}_{key.removesuffix('_config')}"
    if kind in FAMILIES or kind in REFUSED:
        inner["model_type"] = kind
    return inner


def _text_part(config: Config) -> str | None:
    """Return the key of the text model inside a config; None if it has none."""
    for key in _TEXT_PARTS:
        if isinstance(config.get(key), Mapping):
            return key
    return None


def parts_of(config: Config) -> list[str]:
    """Return the keys of the models inside a config."""
    keys = []
    for key, value in config.items():
        if not isinstance(value, Mapping):
            continue
        if value.get("model_type") or key == "vision_config":
            keys.append(key)
    return keys


def _part_of(config: Config, part: object) -> Config:
    """Return the model under the keys `part`, joined by dots.

    A text model's config may hold the first.
    """
    keys = part.split(".") if isinstance(part, str) else [""]
    for key in keys:
        while not isinstance(config.get(key), Mapping):
            outer = _text_part(config)
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

    Raises:
      ValueError: if the config is no dict, has no such part, is of a family that is refused, or has
        a key that is missing, not supported or of the wrong type.
    """
    if not isinstance(config, Mapping):
        raise ValueError(
            f"config must be a dict, got {type(config).__name__}. Pass config.to_dict() of a "
            "config object."
        )
    if part is not None:
        config = _part_of(config, part)
    while (key := _text_part(config)) is not None:
        config = _inner(config, key)
    name = _converted("model_type", config.get("model_type") or "", "text")
    if name not in FAMILIES and name not in WITHOUT:
        name = name.removesuffix("_text")
    name = current_name(name, config)
    if name in REFUSED or name in WITHOUT:
        absent = "its code in transformers has no rotary, relative or bias positions"
        raise ValueError(
            f"model_type {name!r} is not supported: {REFUSED.get(name, absent)}."
        )
    family = FAMILIES.get(name) if name else UNNAMED
    if family is None:
        return dict(config), None
    values = dict(config)
    for old, new in _DATA["aliases"].items():
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
            _converted("attn_config.alibi_bias_max", value, "positive")
        only = _DATA["attn_config"].get(key)
        if only is not None and value not in (None, only):
            raise ValueError(
                f"attn_config.{key} must be {only} or left out, got "
                f"{reprlib.repr(value)}: transformers has no such model."
            )
    return values, family


def _refuse(values: Config, family: HFFamily) -> None:
    for key, effect in _DATA["not_read"].items():
        value = values.get(key)
        if value and value != _DATA["harmless"].get(key) and key not in family.defaults:
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
    if family is not UNNAMED:
        return
    for key in _DATA["need_family"]:
        if values.get(key):
            alike = [name for name in FAMILIES if key in FAMILIES[name].defaults]
            raise ValueError(
                f"{key} is read only with a model_type that has it: {', '.join(alike)}. Add that "
                "of the model."
            )


def _fill(values: dict[str, Any], family: HFFamily) -> None:
    sizes = dict(zip(SIZE_KEYS, family.sizes))
    for key in ("layer_types", "no_rope_layers", "layer_rope_theta"):
        if isinstance(values.get(key), list | tuple) and values[key]:
            sizes["num_hidden_layers"] = len(values[key])
    defaults = {"rope_theta": family.theta, **family.defaults, **sizes}
    for key, default in defaults.items():
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
    return int(_converted("pad_token_id", padding, "whole")) + 1


def described(config: Config) -> str:
    model_type = config.get("model_type")
    return f"model_type {model_type!r}" if model_type else "a config without model_type"


def _full_head_size(config: Config) -> int:
    """Gemma 4 in version 5: the head size of layers with full attention is an override of each."""
    overrides = config["per_layer_config"]
    full_layers = set()
    for i, name in enumerate(config.get("layer_types") or ()):
        if name == FULL:
            full_layers.add(str(i))
    layers = {str(layer).lstrip("0") or "0" for layer in overrides}
    sizes = set()
    is_supported = layers == full_layers
    for values in overrides.values():
        if not isinstance(values, Mapping) or "head_dim" not in values:
            is_supported = False
            break
        is_supported &= set(values) <= {"head_dim", "num_key_value_heads"}
        sizes.add(str(values["head_dim"]))
    if not is_supported or len(sizes) != 1:
        raise ValueError(
            "per_layer_config is supported only if it gives all layers with full attention the "
            f"same head_dim, got {reprlib.repr(overrides)}."
        )
    return _converted("head_dim", next(iter(overrides.values()))["head_dim"], "size")
