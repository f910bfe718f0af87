"""Position encodings from configs of Hugging Face's transformers, versions 4 and 5; dicts in.

A config does not say all that its model does with positions: which layers rotate, which dimensions
make a pair, and what the config's class has by default: `hf_registry` adds that, by
`model_type`. `hf_keys` checks values, `hf_rope` reads rope settings.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from typing import NamedTuple

from pe_jax.common.errors import did_you_mean
from pe_jax.encodings.absolute.position_vectors import learned_absolute
from pe_jax.encodings.bias.alibi import alibi
from pe_jax.encodings.bias.t5 import t5
from pe_jax.encodings.encoding import PositionEncoding, cycle, none, per_layer
from pe_jax.encodings.modifiers.temperature import log_n
from pe_jax.encodings.modifiers.window import chunks, window
from pe_jax.encodings.relative.deberta import deberta
from pe_jax.encodings.relative.inkling import inkling
from pe_jax.encodings.relative.offset_vectors import nezha
from pe_jax.encodings.relative.relative_key import relative_key, relative_key_query
from pe_jax.encodings.rotary.rotation import Layout
from pe_jax.encodings.rotary.several_axes import AxialLayout
from pe_jax.interop.hf_keys import checked_config, described, first_row, parts_of
from pe_jax.interop.hf_layers import (
    CHUNKED,
    FULL,
    LAYER_TYPES,
    NO_ATTENTION,
    SLIDING,
    Config,
    IsFull,
    has_rope,
    has_window,
    layer_rule,
    required,
)
from pe_jax.interop.hf_registry import BY_LAYER, FAMILIES, INKLING, UNNAMED, HFFamily
from pe_jax.interop.hf_rope import BASES, KNOWN_SETTINGS, ORIGINAL, rotation

# What says which layers have full attention in a config without `model_type`.
_PATTERNS: Mapping[str, str] = {
    "sliding_window_pattern": "by sliding_window_pattern",
    "global_attn_every_n_layers": "every global_attn_every_n_layers from 0",
    "max_window_layers": "before max_window_layers",
}


class _Layer(NamedTuple):
    """How a layer differs from others.

    Attributes:
      type: one of the values of `LAYER_TYPES`.
      base: of its rotations; None for the config's, 0 for no rotations.
      is_scaled: whether the config's scaling of frequencies is its as well.
    """

    type: str
    base: float | None = None
    is_scaled: bool = True


def from_hf(
    config: Config,
    *,
    part: str | None = None,
    layer_type: str | None = None,
    layout: Layout | None = None,
) -> PositionEncoding:
    """Return the position encoding, with its windows, that a config of transformers describes.

    RoPE is read from version 4's `rope_theta` and `rope_scaling` or version 5's `rope_parameters`,
    flat or by layer type; `mrope_section` gives `mrope`. A learned table gives `learned_absolute`,
    ALiBi `alibi`. The result is not causal: join `causal` for a decoder.

    Families are read by `model_type`: the keys that matter to their classes, with the defaults of
    these. A config without one is read by all keys, without defaults. docs/from-hf.md has the
    rules and what was compared with transformers, docs/huggingface.md all families.

    - DeepSeek's encoding is of the slice of `qk_rope_head_dim` dimensions; its factor of the logits
      is of whole heads.
    - RoBERTa and its kin count positions from `pad_token_id + 1`, OPT from 2: drop the rows of the
      table before that.

    The size W of a window gives another `window(max_distance=...)` in each kind of model:

        local_attention = W (ModernBERT; its decoder W // 2 - 1)     W // 2
        use_bidirectional_attention (Gemma 3, as in config.json)     W // 2
        is_causal = False                                            W
        all others, decoders: W keys, the query's own among them     W - 1

    Args:
      config: what `config.json` has, or `config.to_dict()`.
      part: the key of another model inside the config, such as `"vision_config"`,
        `"depth_decoder_config"` or, further inside, `"talker_config.text_config"`. Towers of
        images have positions `(row, column)`.
      layer_type: `"full_attention"` or `"sliding_attention"`: of these layers alone.
      layout: of the model's weights; default the family's, `"half"` without a `model_type`.

    Returns:
      The encoding; if layers differ, the shortest `cycle` that gives all of them.

    Raises:
      ValueError: for a family, part, rope type, setting or layer type that is not known, a value of
        the wrong type, and where a setting is missing.
    """
    config, family = checked_config(config, part)
    if family is None:
        raise ValueError(_unknown(config))
    if layout not in (None, "half", "interleaved"):
        raise ValueError(
            f"layout must be half or interleaved, got {reprlib.repr(layout)}."
        )
    if layer_type is not None:
        layer_type = _known_layer("layer_type", layer_type)
    name = family.encodings[0]
    if len(family.encodings) > 1:
        name = config.get("position_embedding_type") or name
    if name not in family.encodings:
        raise ValueError(
            f"position_embedding_type must be {' or '.join(family.encodings)} for "
            f"{described(config)}, got {reprlib.repr(name)}."
        )
    if config.get("alibi_starting_size"):
        name = "alibi"
    if name not in BY_LAYER:
        return _without_rotation(config, family, name)
    pairs: AxialLayout = layout or family.layout
    if layout is None and config.get("rope_interleave") is not None:
        pairs = "interleaved" if config["rope_interleave"] else "half"
    layers = _layers(config, family, layer_type)
    built: dict[_Layer, PositionEncoding] = {}
    for layer in layers:
        if layer not in built:
            built[layer] = _of_layer(config, family, layer, pairs)
    turns = [built[layer] for layer in layers[: _period(layers)]]
    if family.encodings == (INKLING,):
        return per_layer(*turns)
    if all(encoding.name == turns[0].name for encoding in turns):
        return turns[0]
    return cycle(*turns)


def _unknown(config: Config) -> str:
    """Return the error for a model_type that is not known, with advice that was tried."""
    model_type = config["model_type"]
    error = f"model_type {reprlib.repr(model_type)} is not known."
    if parts := parts_of(config):
        return f"{error} It has several models: pass part={' or '.join(map(repr, parts[:4]))}."
    try:
        name = from_hf({**config, "model_type": None}).name
    except ValueError as reason:
        # MPNet is no MPT, and a model with code of its own is none whose name was mistyped.
        matches = difflib.get_close_matches(model_type[:40], FAMILIES, n=1, cutoff=0.85)
        if matches and not config.get("auto_map"):
            error += f" Did you mean {matches[0]}?"
        return f"{error} Use that of a family that works alike. Without it: {reason}"
    return (
        f"{error} Leave it out if the model works like Llama: that gives {name[:120]}."
    )


def _without_rotation(config: Config, family: HFFamily, name: str) -> PositionEncoding:
    if name == "nope":
        return none()
    heads = required(config, "num_attention_heads")
    if name == "alibi":
        exponent = (config.get("attn_config") or {}).get("alibi_bias_max")
        if exponent is None:
            exponent = 8.0
        return alibi(num_heads=heads, exponent=float(exponent))
    if name.endswith("t5)") or name == "t5":
        biases = t5(
            num_heads=heads,
            num_buckets=config["relative_attention_num_buckets"],
            max_distance=config["relative_attention_max_distance"],
        )
        return biases if name == "t5" else per_layer(biases)
    rows = required(config, "max_position_embeddings")
    hidden_size = required(config, "hidden_size")
    if name == "nezha":
        longest = config["max_relative_position"]
        return nezha(head_size=hidden_size // heads, max_distance=longest)
    if name == "deberta":
        return _deberta(config, rows, hidden_size)
    if name in ("absolute", "absolute+t5"):
        first = first_row(config["model_type"], config)
        if first >= rows:
            raise ValueError(
                f"max_position_embeddings must be above {first}, got {rows}."
            )
        size = config.get("embedding_size") or hidden_size
        table = learned_absolute(max_length=rows - first, hidden_size=size)
        if name == "absolute+t5":
            return table + t5(num_heads=heads)
        return table
    make = relative_key if name == "relative_key" else relative_key_query
    return per_layer(make(head_size=hidden_size // heads, max_length=rows))


def _deberta(config: Config, rows: int, hidden_size: int) -> PositionEncoding:
    """DeBERTa-v2's and v3's: offsets in attention, a table at the input, both or neither."""
    encoding = none()
    if config["position_biased_input"]:
        encoding = learned_absolute(max_length=rows, hidden_size=hidden_size)
    terms = {name.strip() for name in config["pos_att_type"] or ()}
    accepted: set[str] = {"c2p", "p2c"} if config["relative_attention"] else set()
    if terms != accepted:
        raise ValueError(
            f"pos_att_type must be {'p2c|c2p' if accepted else 'left out'} with relative_attention "
            f"{config['relative_attention']}, got {reprlib.repr(config['pos_att_type'])}."
        )
    if not accepted:
        return encoding
    if not config["share_att_key"]:
        raise ValueError(
            "share_att_key must be true, got false: without it the table has projections of its "
            "own, which encodings.deberta does not."
        )
    buckets = config["position_buckets"]
    longest = config["max_relative_positions"]
    offsets = deberta(
        hidden_size=hidden_size,
        num_buckets=None if buckets == -1 else buckets,
        max_distance=rows if longest == -1 else longest,
    )
    return encoding + offsets


def _layers(config: Config, family: HFFamily, layer_type: str | None) -> list[_Layer]:
    """Return all layers, or one if they are the same; with `layer_type` one of this type."""
    if layer_type is not None and family is UNNAMED and not config.get("layer_types"):
        return [_Layer(layer_type)]
    count = config.get("num_hidden_layers")
    for key in ("layer_types", "no_rope_layers", "layer_rope_theta"):
        if config.get(key) and len(config[key]) != (count or len(config[key])):
            raise ValueError(
                f"{key} must have an entry for each of {count} layers, got {len(config[key])}."
            )
    bases = config.get("layer_rope_theta")
    by_layer = config.get("no_rope_layers") or bases
    types = _layer_types(config, family)
    scaled = config.get("rope_scaling_layers")
    if len(types) == 1:
        if by_layer:
            types *= len(by_layer)
        elif scaled is not None or config.get("no_rope_layer_interval"):
            types *= required(config, "num_hidden_layers")
    only_sliding_rotates = (
        family.only_sliding_rotates and has_window(config) and not by_layer
    )
    layers = []
    for i, (name, base) in enumerate(zip(types, bases or [None] * len(types))):
        may_rotate = name == SLIDING or not only_sliding_rotates
        if not (may_rotate and has_rope(config, i)):
            base = 0.0
        is_scaled = scaled is None or i in scaled
        layers.append(_Layer(name, base, is_scaled))
    if layer_type is None:
        return layers
    matching = [layer for layer in dict.fromkeys(layers) if layer.type == layer_type]
    if len(matching) != 1:
        known = ", ".join(dict.fromkeys(layer.type for layer in layers))
        raise ValueError(f"layer_type must be one of {known}, got {layer_type!r}.")
    return matching


def _layer_types(config: Config, family: HFFamily) -> list[str]:
    """Return the type of each layer, or of one where all are the same."""
    if config.get("layer_types"):
        types = [_known_layer("layer_types", name) for name in config["layer_types"]]
    elif family.is_full is None and (family.slides or not has_window(config)):
        types = [FULL]
    else:
        is_full = family.is_full or _rule_without_family(config)
        types = []
        for i in range(required(config, "num_hidden_layers")):
            kind = is_full(config, i)
            if not isinstance(kind, str):
                kind = FULL if kind else family.other
            types.append(kind)
    if family.slides and has_window(config):
        return [SLIDING if name == FULL else name for name in types]
    return types


def _rule_without_family(config: Config) -> IsFull:
    """Return the rule of the first key of `_PATTERNS` that the config has.

    Raises:
      ValueError: if it has none of them.
    """
    for key, rule in _PATTERNS.items():
        if config.get(key):
            return layer_rule(rule)
    raise ValueError(
        "sliding_window does not say for which layers it is. Add layer_types or model_type, or "
        "build one kind of layer with from_hf(config, layer_type=...)."
    )


def _known_layer(key: str, name: object) -> str:
    if not isinstance(name, str) or name not in LAYER_TYPES:
        near = ""
        if isinstance(name, str):
            near = did_you_mean(name[:40], LAYER_TYPES)
        raise ValueError(
            f"{key} must be {', '.join(LAYER_TYPES)}, got {reprlib.repr(name)}.{near}"
        )
    return LAYER_TYPES[name]


def _period(layers: list[_Layer]) -> int:
    """Return the shortest p such that layer i is layer i mod p."""
    # A string is compared fast, of thousands of layers too.
    letters = {kind: chr(i) for i, kind in enumerate(dict.fromkeys(layers))}
    codes = "".join(letters[layer] for layer in layers)
    period = 1
    while not codes.startswith(codes[period:]):
        period += 1
    return period


def _of_layer(
    config: Config, family: HFFamily, layer: _Layer, layout: AxialLayout
) -> PositionEncoding:
    layer_type, base, is_scaled = layer
    if layer_type == NO_ATTENTION:
        return none()
    if family.encodings == (INKLING,):
        return _inkling(config, layer_type)
    settings = None if base == 0 else _settings(config, family, layer_type)
    if settings is not None:
        settings = dict(settings)
        if not is_scaled:
            for key in settings.keys() - {"rope_theta"}:
                del settings[key]
        if base:
            settings["rope_theta"] = base
        encoding = rotation(config, family, settings, layer_type, layout)
    elif base == 0 and config.get("attn_temperature_tuning"):
        encoding = log_n(
            original_length=required(config, "floor_scale"),
            coefficient=required(config, "attn_scale"),
            smooth=True,
            stepped=True,
        )
    else:
        encoding = none()
    if layer_type == SLIDING:
        return encoding + window(max_distance=_reach(config, family))
    if layer_type == CHUNKED and config.get("attention_chunk_size"):
        return encoding + chunks(size=config["attention_chunk_size"])
    return encoding


def _inkling(config: Config, layer_type: str) -> PositionEncoding:
    window_size = config["sliding_window"] if layer_type == SLIDING else None
    heads = "swa_num_attention_heads" if window_size else "num_attention_heads"
    encoding = inkling(
        hidden_size=required(config, "hidden_size"),
        num_heads=required(config, heads),
        max_distance=(window_size or config["rel_extent"]) - 1,
        rank=config["d_rel"],
        bidirectional=False,
    )
    if window_size:
        encoding += window(max_distance=window_size - 1)
    return encoding


def _reach(config: Config, family: HFFamily) -> int:
    """Return the largest distance in the window of a sliding layer; see `from_hf`."""
    key = "local_attention" if config.get("local_attention") else "sliding_window"
    size = required(config, key)
    is_bidirectional = config.get("use_bidirectional_attention") in (True, "all")
    if family.reach:
        reach = family.reach(size)
    elif key == "local_attention" or is_bidirectional:
        reach = size // 2
    elif config.get("is_causal") is False:
        reach = size
    else:
        reach = size - 1
    if reach < 1:
        raise ValueError(
            f"{key} must let a query see other keys than its own, got {size}."
        )
    return reach


def _settings(config: Config, family: HFFamily, layer_type: str) -> Config | None:
    """Return the rope settings of a layer type, as in the config; None for layers without RoPE."""
    # Of both, transformers reads the old one.
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    settings = config.get(key) or {}
    is_by_type = any(isinstance(value, Mapping) for value in settings.values())
    if not is_by_type and settings.keys().isdisjoint(BASES):
        has_none = config.get("model_type") in (None, "olmo_hybrid")
        if has_none and settings.get("rope_theta", 1) is None:
            return None
        full_only = family.scales_full_only or "rope_local_base_freq" in config
        if full_only and layer_type == SLIDING:
            return {}
        # Phi-3 has it next to its rope settings, where it wins in all families.
        if config.get(ORIGINAL) is not None:
            return {**settings, ORIGINAL: config[ORIGINAL]}
        return settings
    by_type = {}
    for name, value in settings.items():
        if name not in LAYER_TYPES and (value is None or name in KNOWN_SETTINGS):
            continue  # Settings next to those by type are not read.
        if not isinstance(value, Mapping | None):
            raise ValueError(f"{key}.{name} must be a dict, got {reprlib.repr(value)}.")
        by_type[_known_layer(key, name)] = value
    if layer_type not in by_type:
        raise ValueError(
            f"{key} has {', '.join(by_type)}, but not {layer_type!r}. Add it; use None for layers "
            "without RoPE."
        )
    of_type = by_type[layer_type]
    if of_type is None:
        return None
    of_type = dict(of_type)
    # `truncate` is read next to the layer types, or not at all.
    of_type.pop("truncate", None)
    if "truncate" in settings:
        of_type["truncate"] = settings["truncate"]
    return of_type
