"""Rotary encodings from configs of Hugging Face's transformers, versions 4 and 5; dicts in.

What the code of a model does beyond its config is not seen here: that it rotates interleaved pairs
(GPT-J, GLM, Cohere: give `layout`), or that some of its layers have no positions (Cohere 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pe_jax.encodings.base import PositionEncoding, cycle, none
from pe_jax.encodings.modifiers.window import window
from pe_jax.encodings.naming import REQUIRED, options_of
from pe_jax.encodings.rotary import rope_scaling
from pe_jax.encodings.rotary.rope import Layout, rope
from pe_jax.encodings.rotary.several_axes import mrope
from pe_jax.errors import did_you_mean

Config = Mapping[str, Any]
Options = dict[str, Any]

FULL, SLIDING = "full_attention", "sliding_attention"
_ORIGINAL = "original_max_position_embeddings"


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
            raise ValueError("mrope_interleaved interleaves mrope_section, which is missing.")
        return rope(head_size=head_size, layout=layout, **options)
    if layout != "half" or "fraction" in options or any(n % 1 for n in sections):
        raise ValueError(
            "mrope_section is a list of integers, for heads that are rotated whole and in halves; "
            f"got {list(sections)}, layout={layout!r}, partial_rotary_factor="
            f"{options.get('fraction', 1)}."
        )
    return mrope(
        head_size=head_size, sections=tuple(map(int, sections)), interleaved=interleaved, **options
    )


def _proportional(*, factor: float = 1.0, **options: Any) -> PositionEncoding:
    if factor == 1:
        return rope(**options)
    return rope_scaling.rope_linear(factor=factor, **options)


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
_EXTENDED = {**_STRETCHED, _ORIGINAL: "original_length"}
_SCALED = {**_EXTENDED, "attention_factor": "attention_factor"}

_LONGROPE = _Type(
    rope_scaling.rope_longrope,
    {**_SCALED, "short_factor": "short", "long_factor": "long"},
    _stretch,
)
_TYPES: Mapping[str, _Type] = {
    "default": _Type(_default, {**_BASE, **_SECTIONS}),
    "mrope": _Type(_default, {**_BASE, **_SECTIONS}),  # Qwen2-VL's first name for it.
    "linear": _Type(rope_scaling.rope_linear, _STRETCHED),
    "proportional": _Type(_proportional, {**_STRETCHED, "partial_rotary_factor": "proportional"}),
    "dynamic": _Type(rope_scaling.rope_dynamic_ntk, _STRETCHED, _trained_length),
    "yarn": _Type(
        rope_scaling.rope_yarn,
        _SCALED
        | {key: key for key in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")},
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

# Where a config itself has what its rope settings lack, by layer type: the first that is there.
_BASES = {
    FULL: ("global_rope_theta", "rope_theta", "rotary_emb_base"),
    SLIDING: ("local_rope_theta", "rope_local_base_freq", "rope_theta", "rotary_emb_base"),
}
_HEAD_SIZES = {FULL: ("global_head_dim", "head_dim"), SLIDING: ("head_dim",)}
_FRACTIONS = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")

# What says which of n layers have full attention, where `layer_types` does not.
_PATTERNS: Mapping[str, Callable[[int, int], bool]] = {
    "sliding_window_pattern": lambda layer, n: (layer + 1) % n == 0,
    "_sliding_window_pattern": lambda layer, n: (layer + 1) % n == 0,
    "global_attn_every_n_layers": lambda layer, n: layer % n == 0,
    "max_window_layers": lambda layer, n: layer < n,
}

# Encoders whose `sliding_window` is the reach itself, by `model_type`.
_INCLUSIVE = ("embedding_gemma2", "openai_privacy_filter", "ultrabert")

# Models that have the window in all layers where their config does not say in which.
_ALL_SLIDE = ("mistral", "mixtral", "phi3", "starcoder2")

# Settings that change rotations or windows in ways that are not read.
_NOT_READ = (
    "per_layer_config",
    "rotary_dim",
    "rotary_emb_interleaved",
    "rotary_emb_scale_base",
    "rotary_scaling_factor",
)


def from_hf(
    config: Config, *, layer_type: str | None = None, layout: Layout = "half"
) -> PositionEncoding:
    """The rotary encoding, with its windows, that a config of transformers describes.

    Reads version 4's `rope_theta` and `rope_scaling`, and version 5's `rope_parameters`, flat or by
    layer type; `rope_type` or `type`; `partial_rotary_factor`; head size, lengths, layer types and
    windows; ModernBERT's and Gemma 3's own keys; `no_rope_layers`. The result has a `name`, which
    is what a config of ours takes. `mrope_section`, of three axes, becomes `mrope`.

    A window means another reach in each kind of model (tested against transformers' masks):

        local_attention = W (ModernBERT)                             reach W // 2
        use_bidirectional_attention (Gemma 3, as in config.json)     reach W // 2
        is_causal = False, and the encoders in `_INCLUSIVE`          reach W
        all others, decoders: W keys, the query's own among them     reach W - 1

    Args:
      config: what `config.json` has, or `config.to_dict()`; of a multimodal model its
        `text_config`.
      layer_type: `"full_attention"` or `"sliding_attention"`: of these layers alone.
      layout: of the model's weights, which no config tells: nearly all models have `"half"`.

    Returns:
      The encoding; if layers differ, the shortest `cycle` that gives all of them.

    Raises:
      ValueError: for rope settings with an unknown type, key or layer type, and where a setting is
        missing. Defaults of a model's class are not known here: a config without `rope_theta`, or
        with a window that may be of some layers only, is refused.
    """
    if unread := [key for key in _NOT_READ if config.get(key)]:
        raise ValueError(
            f"The config has {', '.join(unread)}, which from_hf does not read: build the encoding "
            "from encodings.rope and its kin."
        )
    if layer_type is not None:
        return _of_layer(config, _known_layer(layer_type), True, layout)
    kinds = list(map(_known_layer, _layer_types(config)))
    rotates = list(map(bool, config.get("no_rope_layers") or [True] * len(kinds)))
    if len(kinds) == 1:
        kinds *= len(rotates)
    if len(rotates) != len(kinds):
        raise ValueError(f"no_rope_layers has {len(rotates)} entries for {len(kinds)} layers.")
    layers = list(zip(kinds, rotates))
    built = {layer: _of_layer(config, *layer, layout) for layer in dict.fromkeys(layers)}
    turn = next(
        layers[:n] for n in range(1, len(layers) + 1)
        if all(layer == layers[i % n] for i, layer in enumerate(layers))
    )  # fmt: skip
    if len({encoding.name for encoding in built.values()}) == 1:
        return built[layers[0]]
    return cycle(*(built[layer] for layer in turn))


def _layer_types(config: Config) -> list[str]:
    """Of each layer, or of one where all are the same."""
    if config.get("layer_types"):
        return list(config["layer_types"])
    if not _has_window(config):
        return [FULL]
    for key, full in _PATTERNS.items():
        if n := config.get(key):
            layers = range(_required(config, "num_hidden_layers"))
            return [FULL if full(layer, n) else SLIDING for layer in layers]
    if config.get("model_type") in _ALL_SLIDE:
        return [SLIDING]
    raise ValueError(
        "The config has a window, but does not say for which layers: add layer_types, or take one "
        "kind of layer with from_hf(config, layer_type=...)."
    )


def _known_layer(name: str) -> str:
    known = list(_BASES)
    if name not in known:
        raise ValueError(
            f"The layer type {name!r} is not known.{did_you_mean(name, known)} Known: "
            f"{', '.join(known)}."
        )
    return name


def _of_layer(config: Config, layer_type: str, rotates: bool, layout: Layout) -> PositionEncoding:
    settings = _settings(config, layer_type) if rotates else None
    rotated = none() if settings is None else _rotation(config, settings, layer_type, layout)
    return rotated + window(reach=_reach(config)) if layer_type == SLIDING else rotated


def _has_window(config: Config) -> bool:
    if config.get("local_attention"):
        return True
    # Qwen, which has `max_window_layers`, uses its window only where it says so.
    used = config.get("use_sliding_window", "max_window_layers" not in config)
    return bool(config.get("sliding_window")) and used


def _reach(config: Config) -> int:
    """How far a sliding layer attends; see `from_hf`."""
    if config.get("local_attention"):
        return config["local_attention"] // 2
    size = _required(config, "sliding_window")
    if config.get("use_bidirectional_attention") in (True, "all"):
        return size // 2
    inclusive = config.get("is_causal") is False or config.get("model_type") in _INCLUSIVE
    return size if inclusive else size - 1


def _settings(config: Config, layer_type: str) -> Config | None:
    """The rope settings of a layer type as the config has them; None for layers without RoPE."""
    old, new = config.get("rope_scaling") or {}, config.get("rope_parameters") or {}
    if old and new and old != new:
        raise ValueError("The config has rope_scaling and rope_parameters, which differ: keep one.")
    settings = new or old
    if not any(name in _BASES or isinstance(value, Mapping) for name, value in settings.items()):
        # Gemma 3 in version 4: rope_scaling is of the layers with full attention alone.
        local = layer_type == SLIDING and "rope_local_base_freq" in config
        return {} if local else settings
    for name in settings:
        _known_layer(name)
    if layer_type not in settings:
        raise ValueError(
            f"The rope settings have {', '.join(settings)}, but not {layer_type!r}. Add it, with "
            "None for layers without RoPE."
        )
    return settings[layer_type]


def _rotation(
    config: Config, settings: Config, layer_type: str, layout: Layout
) -> PositionEncoding:
    """The encoding that rope settings describe, with what the config itself adds to them."""
    name, kind = _type_of(settings)
    values = {
        "rope_theta": _first(config, _BASES[layer_type]),
        "partial_rotary_factor": _first(config, _FRACTIONS),
        **_present(settings),
    }
    # Phi-3 has it next to its rope settings, where it wins.
    values |= _present({_ORIGINAL: config.get(_ORIGINAL)})
    options = {
        option: _value(key, values[key], whole=key == _ORIGINAL)
        for key, option in kind.options.items()
        if values.get(key) is not None
    }
    options = {**_present(kind.defaults(config, options)), **options}
    required = [name for name, default in options_of(kind.make).items() if default is REQUIRED]
    keys = {"original_length": "max_position_embeddings"}
    keys |= {option: key for key, option in kind.options.items()}
    if missing := [keys[option] for option in (*required, "base") if option not in options]:
        raise ValueError(
            f"The rope type {name!r} needs {' and '.join(missing)}, which the config lacks."
        )
    heads = _required(config, "num_attention_heads")
    head_size = _first(config, _HEAD_SIZES[layer_type])
    head_size = head_size or _required(config, "hidden_size") // heads
    return kind.make(head_size=head_size, **options, layout=layout)


def _type_of(settings: Config) -> tuple[str, _Type]:
    """The type of rope settings, by name, all of whose keys are known."""
    name = settings.get("rope_type") or settings.get("type") or "default"
    if name not in _TYPES:
        raise ValueError(
            f"The rope type {name!r} is not known.{did_you_mean(name, _TYPES)} Known: "
            f"{', '.join(_TYPES)}."
        )
    known = _TYPES[name].options
    for key in settings:
        if key not in known and key not in ("rope_type", "type"):
            raise ValueError(
                f"The rope type {name!r} has no setting {key!r}.{did_you_mean(key, known)} It has: "
                f"{', '.join(known)}."
            )
    return name, _TYPES[name]


def _value(key: str, value: Any, whole: bool) -> Any:
    """A setting as our options have it: JSON makes no difference between 8 and 8.0."""
    if isinstance(value, bool):
        return value
    numbers = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"The rope setting {key!r} is a number or a list of them, got {value!r}.")
    if numbers is value:
        return tuple(map(float, value))
    return int(value) if whole else float(value)


def _first(config: Config, keys: Iterable[str]) -> Any:
    """The value of the first key that has one, or None."""
    return next((config[key] for key in keys if config.get(key) is not None), None)


def _present(options: Config) -> Options:
    return {key: value for key, value in options.items() if value is not None}


def _required(config: Config, key: str) -> Any:
    if config.get(key) is None:
        raise ValueError(f"The config has no {key}, which its position encoding needs.")
    return config[key]
