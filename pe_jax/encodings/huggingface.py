"""Position encodings from configs of Hugging Face's transformers, versions 4 and 5; dicts in.

A config does not say all that its model does with positions: which layers rotate, which dimensions
make a pair, and what the config's class has by default. `FAMILIES` adds that, by `model_type`.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pe_jax.encodings.absolute.position_vectors import learned_absolute
from pe_jax.encodings.bias.alibi import alibi
from pe_jax.encodings.encoding import PositionEncoding, cycle, none, own
from pe_jax.encodings.huggingface_families import (
    CHUNKED,
    FAMILIES,
    FULL,
    NO_ATTENTION,
    ORIGINAL,
    REFUSED,
    ROTARY,
    SLIDING,
    UNNAMED,
    Config,
    Family,
    IsFull,
    before_window,
    by_pattern,
    every,
    has_rope,
    has_window,
    required,
)
from pe_jax.encodings.modifiers.temperature import log_n
from pe_jax.encodings.modifiers.window import chunks, window
from pe_jax.encodings.naming import REQUIRED, options_of
from pe_jax.encodings.relative.relative_key import relative_key, relative_key_query
from pe_jax.encodings.rotary import rope_scaling
from pe_jax.encodings.rotary.rope import Layout, rope
from pe_jax.encodings.rotary.several_axes import mrope
from pe_jax.errors import did_you_mean

Options = dict[str, Any]

_LAYER_TYPES = {
    **{name: name for name in (FULL, SLIDING, CHUNKED, NO_ATTENTION)},
    "attention": FULL,
    "conv": NO_ATTENTION,
    "mamba": NO_ATTENTION,
}
_MOST_LAYERS = 10_000


# --- Types of rope settings ---


def _no_defaults(config: Config, options: Options) -> Options:
    return {}


def _trained_length(config: Config, options: Options) -> Options:
    return {"original_length": config.get("max_position_embeddings")}


def _stretch(config: Config, options: Options) -> Options:
    longest = config.get("max_position_embeddings")
    original = options.get("original_length", longest)
    factor = max(1.0, longest / original) if longest and original else None
    return {"original_length": original, "factor": factor}


def _default(
    *,
    head_size: int,
    sections: tuple[float, ...] | None = None,
    interleaved: bool = False,
    layout: Layout = "half",
    **options: Any,
) -> PositionEncoding:
    if sections is None:
        if interleaved:
            raise ValueError("mrope_interleaved needs mrope_section, which is missing.")
        return rope(head_size=head_size, layout=layout, **options)
    if layout != "half" or any(n % 1 for n in sections):
        raise ValueError(
            "mrope_section must be a list of integers, and the layout 'half'; got "
            f"{reprlib.repr(list(sections))} with layout={layout!r}."
        )
    return mrope(
        head_size=head_size, sections=tuple(map(int, sections)), interleaved=interleaved, **options
    )


def _proportional(*, factor: float = 1.0, **options: Any) -> PositionEncoding:
    if factor == 1:
        return rope(**options)
    return rope_scaling.rope_linear(factor=factor, **options)


def _yarn(
    *,
    llama_4_scaling_beta: float = 0.0,
    original_length: int,
    factor: float,
    **options: Any,
) -> PositionEncoding:
    rotation = rope_scaling.rope_yarn(original_length=original_length, factor=factor, **options)
    if not llama_4_scaling_beta:
        return rotation
    return rotation + log_n(
        length=original_length,
        coefficient=llama_4_scaling_beta,
        smooth=True,
        stepped=True,
        count="earlier",
    )


class _Type(NamedTuple):
    """A `rope_type`.

    Attributes:
      make: our encoding.
      options: its settings by their key, and what option each becomes.
      defaults: `(config, options) ->` further options for those not given; None is none.
    """

    make: Callable[..., PositionEncoding]
    options: Mapping[str, str]
    defaults: Callable[[Config, Options], Options] = _no_defaults


_BASE = {"rope_theta": "base", "partial_rotary_factor": "fraction"}
_SECTIONS = {"mrope_section": "sections", "mrope_interleaved": "interleaved"}
_STRETCHED = {**_BASE, "factor": "factor"}
_EXTENDED = {**_STRETCHED, ORIGINAL: "original_length"}
_SCALED = {**_EXTENDED, "attention_factor": "attention_factor"}

_LONGROPE = _Type(
    rope_scaling.rope_longrope,
    {**_SCALED, "short_factor": "short", "long_factor": "long"},
    _stretch,
)
_TYPES: Mapping[str, _Type] = {
    "default": _Type(_default, {**_BASE, **_SECTIONS}),
    "mrope": _Type(_default, {**_BASE, **_SECTIONS}),  # Qwen2-VL's first name for it.
    # HunYuan's `dynamic`, whose other settings do nothing.
    "dynamic with alpha": _Type(
        rope_scaling.rope_ntk,
        {**_BASE, "alpha": "factor"}
        | dict.fromkeys(("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"), ""),
    ),
    "linear": _Type(rope_scaling.rope_linear, _STRETCHED),
    "proportional": _Type(_proportional, {**_STRETCHED, "partial_rotary_factor": "proportional"}),
    "dynamic": _Type(rope_scaling.rope_dynamic_ntk, _STRETCHED, _trained_length),
    "yarn": _Type(
        _yarn,
        _SCALED
        | {key: key for key in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")}
        | {"llama_4_scaling_beta": "llama_4_scaling_beta"},
        _trained_length,
    ),
    "llama3": _Type(
        rope_scaling.rope_llama3,
        _EXTENDED | {f"{end}_freq_factor": f"{end}_frequency_factor" for end in ("low", "high")},
        _trained_length,
    ),
    "longrope": _LONGROPE,
    "su": _LONGROPE,  # Phi-3's first name for it.
}
# Settings that change nothing: the type's name, and a length that Ministral 3 repeats.
_NO_OPTIONS = ("rope_type", "type", "max_position_embeddings")


# --- Reading a config ---

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


def _is_list(value: Any, item: Callable[[Any], bool]) -> bool:
    if not isinstance(value, list | tuple) or len(value) > _MOST_LAYERS:
        return False
    return all(map(item, value))


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
    _TEXTS: (lambda value: _is_list(value, _is_text), list),
    _FLAGS: (lambda value: _is_list(value, lambda item: item in (0, 1)), list),
    _WHOLES: (lambda value: _is_list(value, _is_whole), list),
    _NUMBERS: (lambda value: _is_list(value, _is_number), lambda value: tuple(map(float, value))),
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


# Settings that change rotations or logits in ways that are not read, and what they do.
_NOT_READ: Mapping[str, str] = {
    "alibi": "adds ALiBi divided by sqrt(head_size), with slopes in bfloat16",
    "rotary_emb_interleaved": "is of code outside transformers",
    "rotary_emb_scale_base": "is xPos, of code outside transformers",
    "rotary_scaling_factor": "is of code outside transformers",
    "use_logn_attn": "is of code outside transformers",
}

# Keys that do not say enough without a family.
_NEED_FAMILY = (
    *("attention_chunk_size", "attn_temperature_tuning", "per_layer_config", "qk_rope_head_dim"),
    *("attn_layer_indices", "full_attention_interval", "full_attn_idxs"),
)

# Where a config itself has what its rope settings lack, by layer type: the first that is there.
_BASES = {
    FULL: ("global_rope_theta", "rope_theta"),
    CHUNKED: ("rope_theta",),
    SLIDING: ("local_rope_theta", "rope_local_base_freq", "rope_theta"),
}

# What says which layers have full attention in a config without `model_type`.
_PATTERNS: Mapping[str, IsFull] = {
    "sliding_window_pattern": by_pattern,
    "global_attn_every_n_layers": every("global_attn_every_n_layers", first=0),
    "max_window_layers": before_window,
}

_Layer = tuple[str, bool]  # One of `_LAYER_TYPES`, and whether the layer rotates.


def from_hf(
    config: Config, *, layer_type: str | None = None, layout: Layout | None = None
) -> PositionEncoding:
    """The position encoding, with its windows, that a config of transformers describes.

    RoPE is read from version 4's `rope_theta` and `rope_scaling` or version 5's `rope_parameters`,
    flat or by layer type, with `rope_type` or `type`; `mrope_section`, of three axes, gives
    `mrope`. A learned table gives `learned_absolute`, ALiBi `alibi`. Layers without attention have
    no encoding. The result has a `name`, which is what a config of ours takes. It is not causal:
    join `causal` for a decoder.

    The families in `huggingface.FAMILIES` are read, by `model_type`, with the defaults of their
    classes; those in `REFUSED` and all others are refused. A config without `model_type` is read by
    the same keys, without defaults. docs/encodings.md says what was compared with transformers.

    - DeepSeek's encoding is of the slice of `qk_rope_head_dim` dimensions; its factor of the logits
      is of whole heads.
    - RoBERTa and its kin count positions from `pad_token_id + 1`, OPT from 2: drop the rows of the
      table before that.
    - Of a multimodal config the `text_config` is read.

    A window means another reach in each kind of model:

        local_attention = W (ModernBERT; its decoder W // 2 - 1)     reach W // 2
        use_bidirectional_attention (Gemma 3, as in config.json)     reach W // 2
        is_causal = False                                            reach W
        all others, decoders: W keys, the query's own among them     reach W - 1

    Args:
      config: what `config.json` has, or `config.to_dict()`.
      layer_type: `"full_attention"` or `"sliding_attention"`: of these layers alone.
      layout: of the model's weights; default the family's, `"half"` without a `model_type`.

    Returns:
      The encoding; if layers differ, the shortest `cycle` that gives all of them.

    Raises:
      ValueError: for a family, rope type, setting or layer type that is not known, a value of the
        wrong type, and where a setting is missing.
    """
    config, family = _checked(config)
    encoding = config.get("position_embedding_type") or family.encodings[0]
    if encoding not in family.encodings:
        raise ValueError(
            f"position_embedding_type must be {' or '.join(family.encodings)} for "
            f"{_described(config)}, got {reprlib.repr(encoding)}."
        )
    if encoding not in ROTARY:
        return _without_rotation(config, family, encoding)
    if layout is None:
        layout = family.layout
        if config.get("rope_interleave") is not None:
            layout = "interleaved" if config["rope_interleave"] else "half"
    layers = _layers(config, family, layer_type)
    built = {layer: _of_layer(config, family, layer, layout) for layer in dict.fromkeys(layers)}
    if len({encoding.name for encoding in built.values()}) == 1:
        return built[layers[0]]
    return cycle(*(built[layer] for layer in layers[: _period(layers)]))


def _checked(config: object) -> tuple[Options, Family]:
    """The config with defaults and checked values, and its family."""
    if not isinstance(config, Mapping):
        raise ValueError(
            f"config must be a dict, got {type(config).__name__}. Pass config.to_dict() of a "
            "config object."
        )
    if isinstance(config.get("text_config"), Mapping):
        return _checked(config["text_config"])
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


def _described(config: Config) -> str:
    model_type = config.get("model_type")
    return f"model_type {model_type!r}" if model_type else "a config without model_type"


def _full_head_size(config: Config) -> int:
    """Gemma 4 in version 5: the head size of layers with full attention is an override of each."""
    overrides = config["per_layer_config"]
    full = {i for i, name in enumerate(config.get("layer_types") or ()) if name == FULL}
    readable = all(
        isinstance(values, Mapping)
        and {"head_dim"} <= set(values) <= {"head_dim", "num_key_value_heads"}
        for values in overrides.values()
    )
    sizes = {str(values["head_dim"]) for values in overrides.values()} if readable else set()
    if len(sizes) != 1 or {str(layer).lstrip("0") or "0" for layer in overrides} != set(
        map(str, full)
    ):
        raise ValueError(
            "per_layer_config is supported only if it gives all layers with full attention the "
            f"same head_dim, got {reprlib.repr(overrides)}."
        )
    return _converted("head_dim", next(iter(overrides.values()))["head_dim"], _SIZE)


def _without_rotation(config: Config, family: Family, name: str) -> PositionEncoding:
    """Encodings other than RoPE."""
    if name == "nope":
        return none()
    heads = required(config, "num_attention_heads")
    if name == "alibi":
        if not (config.get("attn_config") or {}).get("alibi", True):
            raise ValueError(
                "attn_config.alibi=False is not supported: transformers has no such model."
            )
        return alibi(num_heads=heads)
    rows = required(config, "max_position_embeddings")
    hidden_size = required(config, "hidden_size")
    if name == "absolute":
        first = required(config, "pad_token_id") + 1 if family.padded_table else 0
        if first >= rows:
            raise ValueError(f"max_position_embeddings must be above {first}, got {rows}.")
        size = config.get("embedding_size") or hidden_size
        return learned_absolute(max_length=rows - first, hidden_size=size)
    make = {"relative_key": relative_key, "relative_key_query": relative_key_query}[name]
    return own(make(head_size=hidden_size // heads, max_length=rows))


def _layers(config: Config, family: Family, layer_type: str | None) -> list[_Layer]:
    """All layers, or one if they are the same; one of `layer_type`."""
    if layer_type is not None:
        layer_type = _known_layer(layer_type)
        if family is UNNAMED and not config.get("layer_types"):
            return [(layer_type, True)]
    listed, interval = config.get("no_rope_layers"), config.get("no_rope_layer_interval")
    count = config.get("num_hidden_layers", len(listed or ()))
    if listed and len(listed) != count:
        raise ValueError(
            f"no_rope_layers must have an entry for each of {count} layers, got {len(listed)}."
        )
    types = _layer_types(config, family)
    if len(types) == 1 and (listed or interval):
        types *= len(listed) if listed else required(config, "num_hidden_layers")
    only_sliding = family.only_sliding_rotates and has_window(config)
    layers = [
        (name, has_rope(config, i) and (name == SLIDING or not only_sliding))
        for i, name in enumerate(types)
    ]
    if layer_type is None:
        return layers
    matching = [layer for layer in dict.fromkeys(layers) if layer[0] == layer_type]
    if len(matching) != 1:
        raise ValueError(
            f"layer_type must be one of {', '.join(dict(layers))}, got {layer_type!r}."
        )
    return matching


def _layer_types(config: Config, family: Family) -> list[str]:
    """The type of each layer, or of one where all are the same."""
    if family.slides:
        return [SLIDING if has_window(config) else FULL]
    count = config.get("num_hidden_layers")
    if config.get("layer_types"):
        types = [_known_layer(name) for name in config["layer_types"]]
        if count is not None and len(types) != count:
            raise ValueError(
                f"layer_types must have an entry for each of {count} layers, got {len(types)}."
            )
        return types
    if family.is_full is None and not has_window(config):
        return [FULL]
    patterns = [is_full for key, is_full in _PATTERNS.items() if config.get(key)]
    is_full = family.is_full or next(iter(patterns), None)
    if is_full is None:
        raise ValueError(
            "The config has a window but does not say for which layers. Add layer_types, or build "
            "one kind of layer with from_hf(config, layer_type=...)."
        )
    count = required(config, "num_hidden_layers")
    return [FULL if is_full(config, i) else family.other for i in range(count)]


def _known_layer(name: str) -> str:
    if name not in _LAYER_TYPES:
        raise ValueError(
            f"Unknown layer type {reprlib.repr(name)}.{did_you_mean(name[:40], _LAYER_TYPES)} Use "
            f"one of {', '.join(_LAYER_TYPES)}."
        )
    return _LAYER_TYPES[name]


def _period(layers: list[_Layer]) -> int:
    """The shortest p such that layer i is layer i mod p, by Knuth, Morris and Pratt."""
    border = [0] * len(layers)  # Of each start: the longest proper beginning that also ends it.
    for i in range(1, len(layers)):
        size = border[i - 1]
        while size and layers[i] != layers[size]:
            size = border[size - 1]
        border[i] = size + (layers[i] == layers[size])
    return len(layers) - border[-1]


def _of_layer(config: Config, family: Family, layer: _Layer, layout: Layout) -> PositionEncoding:
    layer_type, rotates = layer
    if layer_type == NO_ATTENTION:
        return none()
    settings = _settings(config, family, layer_type) if rotates else None
    if settings is not None:
        encoding = _rotation(config, family, settings, layer_type, layout)
    elif not rotates and config.get("attn_temperature_tuning"):
        scale = {"length": "floor_scale", "coefficient": "attn_scale"}
        options = {option: required(config, key) for option, key in scale.items()}
        encoding = log_n(**options, smooth=True, stepped=True)
    else:
        encoding = none()
    if layer_type == SLIDING:
        return encoding + window(reach=_reach(config, family))
    if layer_type == CHUNKED and config.get("attention_chunk_size"):
        return encoding + chunks(size=config["attention_chunk_size"])
    return encoding


def _reach(config: Config, family: Family) -> int:
    """Return the reach of a sliding layer; see `from_hf`."""
    key = "local_attention" if config.get("local_attention") else "sliding_window"
    size = required(config, key)
    if family.reach:
        return family.reach(size)
    if key == "local_attention" or config.get("use_bidirectional_attention") in (True, "all"):
        return size // 2
    return size if config.get("is_causal") is False else size - 1


def _settings(config: Config, family: Family, layer_type: str) -> Config | None:
    """The rope settings of a layer type as the config has them; None for layers without RoPE."""
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    if old and new and old != new:
        raise ValueError(
            "The config has both rope_scaling and rope_parameters, with different values. Keep "
            "one of them."
        )
    settings = new or old
    if not any(name in _BASES or isinstance(value, Mapping) for name, value in settings.items()):
        full_only = family.scales_full_only or "rope_local_base_freq" in config
        return {} if full_only and layer_type == SLIDING else settings
    for name, value in settings.items():
        _known_layer(name)
        if not isinstance(value, Mapping | None):
            raise ValueError(
                f"The rope settings of {name} must be a dict, got {reprlib.repr(value)}."
            )
    if layer_type not in settings:
        raise ValueError(
            f"The rope settings have {', '.join(settings)}, but not {layer_type!r}. Add it; use "
            "None for layers without RoPE."
        )
    return settings[layer_type]


def _rotation(
    config: Config, family: Family, settings: Config, layer_type: str, layout: Layout
) -> PositionEncoding:
    """Build the encoding of rope settings, completed from the config."""
    name, kind = _type_of(settings)
    values = {
        **{key: value for key, value in family.defaults.items() if key in kind.options},
        "rope_theta": _first(config, _BASES[layer_type]),
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        **_present(settings),
    }
    # Phi-3 has it next to its rope settings, where it wins.
    values |= _present({ORIGINAL: config.get(ORIGINAL)})
    head_size = _head_size(config, layer_type)
    if config.get("rotary_dim"):
        if "rotary_dim" not in family.defaults:
            raise ValueError(
                f"rotary_dim must be left out for {_described(config)}, which ignores it; got "
                f"{config['rotary_dim']}."
            )
        values["partial_rotary_factor"] = config["rotary_dim"] / head_size
    options = {
        option: _converted(f"The rope setting {key!r}", values[key], _SETTINGS.get(key, _NUMBER))
        for key, option in kind.options.items()
        if option and values.get(key) is not None
    }
    reads_share = family is UNNAMED or {"partial_rotary_factor", "rotary_dim"} & {*family.defaults}
    if options.get("fraction", 1) != 1 and not reads_share:
        raise ValueError(
            f"partial_rotary_factor must be 1 for {_described(config)}, whose model rotates whole "
            f"heads; got {options['fraction']}."
        )
    options = {**_present(kind.defaults(config, options)), **options}
    if family.scales_logits and options.get("mscale_all_dim"):
        options["scale_logits"] = True
    needed = [name for name, default in options_of(kind.make).items() if default is REQUIRED]
    keys = {"original_length": "max_position_embeddings"}
    keys |= {option: key for key, option in kind.options.items()}
    if missing := [keys[option] for option in (*needed, "base") if option not in options]:
        raise ValueError(
            f"The rope type {name!r} needs {' and '.join(missing)}, which the config lacks."
        )
    return kind.make(head_size=head_size, **options, layout=layout)


def _head_size(config: Config, layer_type: str) -> int:
    """Return the size of a head, or of its rotated slice in latent attention."""
    full = ("global_head_dim",) if layer_type == FULL else ()
    if size := _first(config, ("qk_rope_head_dim", *full, "head_dim")):
        return size
    hidden_size = required(config, "hidden_size")
    heads = required(config, "num_attention_heads")
    if heads > hidden_size:
        raise ValueError(
            f"num_attention_heads must be at most hidden_size={hidden_size}, got {heads}."
        )
    return hidden_size // heads


def _type_of(settings: Config) -> tuple[str, _Type]:
    """The type of rope settings, by name, all of whose keys are known."""
    name = settings.get("rope_type") or settings.get("type") or "default"
    if name == "dynamic" and settings.get("alpha"):
        name = "dynamic with alpha"
    if not isinstance(name, str) or name not in _TYPES:
        raise ValueError(
            f"Unknown rope type {reprlib.repr(name)}.{did_you_mean(str(name)[:40], _TYPES)} Use "
            f"one of {', '.join(_TYPES)}."
        )
    known = _TYPES[name].options
    for key in settings:
        if key not in known and key not in _NO_OPTIONS:
            raise ValueError(
                f"The rope type {name!r} has no setting {reprlib.repr(key)}."
                f"{did_you_mean(str(key)[:40], known)} It has: {', '.join(known)}."
            )
    return name, _TYPES[name]


def _first(config: Config, keys: Iterable[str]) -> Any:
    """The value of the first key that has one, or None."""
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _present(options: Config) -> Options:
    return {key: value for key, value in options.items() if value is not None}
