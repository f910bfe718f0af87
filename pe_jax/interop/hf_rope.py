"""Rope settings of transformers' configs as encodings, and encodings as rope settings."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pe_jax.common.errors import did_you_mean
from pe_jax.encodings.encoding import PositionEncoding
from pe_jax.encodings.modifiers.temperature import log_n
from pe_jax.encodings.registry import REQUIRED, options_of
from pe_jax.encodings.rotary import rope_scaling
from pe_jax.encodings.rotary.rope import Layout, rope
from pe_jax.encodings.rotary.several_axes import AxialLayout, mrope, rope_axial
from pe_jax.interop.hf_keys import checked_setting, described
from pe_jax.interop.hf_layers import CHUNKED, FULL, SLIDING, Config, required
from pe_jax.interop.hf_registry import AXIAL, UNNAMED, HFFamily

ORIGINAL = "original_max_position_embeddings"
Options = dict[str, Any]


def _trained_length(config: Config, options: Options) -> Options:
    return {"original_length": config.get("max_position_embeddings")}


def _stretch(config: Config, options: Options) -> Options:
    longest = config.get("max_position_embeddings")
    original = options.get("original_length", longest)
    factor = None
    if longest and original:
        factor = max(1.0, longest / original)
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
    if len(sections) != 3 or any(n % 1 or n < 0 for n in sections):
        raise ValueError(
            f"mrope_section must be three integers, 0 or more; got {reprlib.repr(list(sections))}."
        )
    counts = tuple(map(int, sections))
    pairs = int(head_size * options.get("fraction", 1.0)) // 2
    left = pairs - sum(counts[1:])
    if interleaved and left >= 0:  # Time has all pairs that height and width leave.
        counts = (left, *counts[1:])
    return mrope(
        head_size=head_size,
        sections=counts,
        interleaved=interleaved,
        layout=layout,
        **options,
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
    yarn = rope_scaling.rope_yarn(
        original_length=original_length, factor=factor, **options
    )
    if not llama_4_scaling_beta:
        return yarn
    return yarn + log_n(
        original_length=original_length,
        coefficient=llama_4_scaling_beta,
        smooth=True,
        stepped=True,
        count="earlier",
    )


def _ntk_of_gte(
    *,
    head_size: int,
    factor: float,
    base: float,
    fraction: float = 1.0,
    layout: Layout = "half",
) -> PositionEncoding:
    """ω_m / s^((m + 1)/(r/2)): the slowest frequency is divided by s = `factor`, and the fastest by
    the least; Su 2023, kexue.fm/archives/9706, eq. 6."""
    return rope_scaling.rope_linear(
        head_size=head_size,
        factor=factor ** (2 / round(head_size * fraction)),
        base=base * factor,
        layout=layout,
        fraction=fraction,
    )


class _Type(NamedTuple):
    """How a rope type is read.

    Attributes:
      make: our encoding.
      options: its settings by their key, and the option that each becomes.
      defaults: `(config, options) ->` options where the settings have none; None for no default.
    """

    make: Callable[..., PositionEncoding]
    options: Mapping[str, str]
    defaults: Callable[[Config, Options], Options] = lambda config, options: {}


_BASE = {"rope_theta": "base", "partial_rotary_factor": "fraction"}
_SECTIONS = {"mrope_section": "sections", "mrope_interleaved": "interleaved"}
_STRETCHED = {**_BASE, "factor": "factor"}
_EXTENDED = {**_STRETCHED, ORIGINAL: "original_length"}
_SCALED = {**_EXTENDED, "attention_factor": "attention_factor"}
# Options of ours that have the names of the settings.
_SAME_NAMES = (
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "llama_4_scaling_beta",
)
_OF_YARN = {**_SCALED, **{key: key for key in _SAME_NAMES}}
_OF_LLAMA3 = {
    **_EXTENDED,
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
}
_LONGROPE = _Type(
    rope_scaling.rope_longrope,
    {**_SCALED, "short_factor": "short", "long_factor": "long"},
    _stretch,
)
_TYPES: Mapping[str, _Type] = {
    "default": _Type(_default, {**_BASE, **_SECTIONS}),
    "mrope": _Type(_default, {**_BASE, **_SECTIONS}),  # Qwen2-VL's first name for it.
    "axial of towers": _Type(rope_axial, {"rope_theta": "base"}),
    # HunYuan's.
    "dynamic with alpha": _Type(rope_scaling.rope_ntk, {**_BASE, "alpha": "factor"}),
    # `ntk` of GTE's first configs, for code outside transformers.
    "ntk of GTE": _Type(_ntk_of_gte, _STRETCHED),
    "linear": _Type(rope_scaling.rope_linear, _STRETCHED),
    "proportional": _Type(
        _proportional, {**_STRETCHED, "partial_rotary_factor": "proportional"}
    ),
    "dynamic": _Type(rope_scaling.rope_dynamic_ntk, _STRETCHED, _trained_length),
    "yarn": _Type(_yarn, _OF_YARN, _trained_length),
    "llama3": _Type(rope_scaling.rope_llama3, _OF_LLAMA3, _trained_length),
    "longrope": _LONGROPE,
    "su": _LONGROPE,  # Phi-3's first name for it.
}
# Settings of any type. A type ignores those of the others, as in transformers.
# No type reads these four: Ministral 3 repeats a length, the first YaRN models have a flag.
KNOWN_SETTINGS = {"rope_type", "type", "max_position_embeddings", "finetuned"}
KNOWN_SETTINGS.update(*(kind.options for kind in _TYPES.values()))
# Settings that only code outside transformers reads, and the value with which they do nothing.
_OUTSIDE = {"attn_factor": 1}
# Settings that belong to a family, not to a type: the families whose code reads them.
_READERS = {
    "alpha": ("hunyuan_v1_dense", "hunyuan_v1_moe"),
    "llama_4_scaling_beta": ("ministral3", "mistral4"),
    "short_mscale": ("phimoe",),
    "long_mscale": ("phimoe",),
}
# Where a config itself has what its rope settings lack, by layer type: the first that is there.
BASES = {
    FULL: ("global_rope_theta", "rope_theta"),
    CHUNKED: ("rope_theta",),
    SLIDING: ("local_rope_theta", "rope_local_base_freq", "rope_theta"),
}


def rotation(
    config: Config,
    family: HFFamily,
    settings: Config,
    layer_type: str,
    layout: AxialLayout,
) -> PositionEncoding:
    """Build the encoding of rope settings, completed from the config.

    Raises:
      ValueError: for an unknown type or setting, a value of the wrong type, or a missing key.
    """
    if settings.get("rope_theta", 1) is None:
        raise ValueError(
            "rope_theta must be a positive number, got None. Leave it out for the default of "
            f"{described(config)}."
        )
    settings = _of_family(settings, config, family)
    name, kind = _type_of(settings, config, family)
    values = {
        **family.defaults,
        "rope_theta": _first(config, BASES[layer_type]),
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        **_present(settings),
    }
    head_size = _head_size(config, layer_type)
    if config.get("rotary_dim"):
        values["partial_rotary_factor"] = config["rotary_dim"] / head_size
    options = {}
    for key, option in kind.options.items():
        if values.get(key) is not None:
            options[option] = checked_setting(key, values[key])
    shares = {"partial_rotary_factor", "rotary_dim"}
    if family is not UNNAMED and shares.isdisjoint(family.defaults):
        options.pop("fraction", None)
    options = {**_present(kind.defaults(config, options)), **options}
    if name == "yarn":
        options |= _nulls_of_yarn(config, settings, options)
    if family.scales_logits and options.get("mscale_all_dim"):
        options["scale_logits"] = True
    keys = {"original_length": "max_position_embeddings", "head_size": "head_dim"}
    keys |= {option: key for key, option in kind.options.items()}
    missing = []
    for option, default in options_of(kind.make).items():
        if default is REQUIRED and option not in options:
            missing.append(keys[option])
    if "base" not in options:
        missing.append("rope_theta")
    if missing:
        raise ValueError(
            f"{' and '.join(missing)} is missing; rope_type {name!r} needs it."
        )
    if head_size % 2 and options.get("fraction", 1) == 1:
        raise ValueError(
            f"head_dim must be even, as pairs of dimensions rotate; got {head_size}."
        )
    try:
        return kind.make(head_size=head_size, **options, layout=layout)
    except ValueError as error:
        message = str(error)
        for option, key in keys.items():
            message = re.sub(rf"\b{option}\b(?!')", key, message)
        raise ValueError(message) from None


def _of_family(settings: Config, config: Config, family: HFFamily) -> Config:
    """Return the settings without those that only the code of other families reads."""
    if family is UNNAMED:
        return settings
    read = dict(settings)
    for key, types in _READERS.items():
        if config["model_type"] not in types:
            read.pop(key, None)
    # A family's code decides it, whatever its configs say.
    read.pop("mrope_interleaved", None)
    read.pop("interleaved" if _has_axes(family) else "mrope_section", None)
    return read


def _has_axes(family: HFFamily) -> bool:
    """Return whether the family's code reads the sections of three axes."""
    return "mrope_section" in family.defaults


def _nulls_of_yarn(config: Config, settings: Config, options: Options) -> Options:
    """Return the options of settings whose null is not the default of a missing key."""
    from_nulls: Options = {}
    if settings.get("truncate", True) is None:
        from_nulls["truncate"] = False
    if settings.get("factor", 1) is None:
        from_nulls |= _present({"factor": _stretch(config, options)["factor"]})
    # Zero is read as null is.
    defaults = options_of(rope_scaling.rope_yarn)
    for key in ("beta_fast", "beta_slow"):
        if options.get(key) == 0:
            from_nulls[key] = defaults[key]
    return from_nulls


def _head_size(config: Config, layer_type: str) -> int:
    """Return the size of a head, or of its rotated slice in latent attention."""
    keys = ["qk_rope_head_dim", "head_dim"]
    if layer_type == FULL:
        keys.insert(1, "global_head_dim")
    size = _first(config, keys)
    if size:
        return size
    hidden_size = required(config, "hidden_size")
    heads = required(config, "num_attention_heads")
    if heads > hidden_size:
        raise ValueError(
            f"num_attention_heads must be at most hidden_size={hidden_size}, got {heads}."
        )
    return hidden_size // heads


def _type_of(settings: Config, config: Config, family: HFFamily) -> tuple[str, _Type]:
    """Return the type of rope settings, by name.

    Raises:
      ValueError: for a type that is not known, and for a setting that may matter and is not known.
    """
    name = settings.get("rope_type") or settings.get("type") or "default"
    if family.encodings == (AXIAL,):
        known = ["default", AXIAL]
    elif _has_axes(family):
        known = ["default", "mrope"]
    else:
        known = [known for known in _TYPES if " " not in known]
        if family is not UNNAMED:
            known.remove("mrope")
    if name == "dynamic" and settings.get("alpha"):
        name = "dynamic with alpha"
    elif name == "ntk" and config.get("model_type") == "gte":
        name = "ntk of GTE"
    elif name not in known:
        raise ValueError(
            f"rope_type must be {', '.join(known)} for {described(config)}, got "
            f"{reprlib.repr(name)}.{did_you_mean(str(name)[:40], known)}"
        )
    elif family.encodings == (AXIAL,):
        name = "axial of towers"
    options = _TYPES[name].options
    for key, value in settings.items():
        if value is None or key in options or value == _OUTSIDE.get(key):
            continue
        if key in KNOWN_SETTINGS and not (value and _acts_beside(key, name, family)):
            continue
        raise ValueError(
            f"{reprlib.repr(key)} is no setting of rope_type {name!r}, which has: "
            f"{', '.join(options)}.{did_you_mean(str(key)[:40], options)}"
        )
    return name, _TYPES[name]


def _acts_beside(key: str, rope_type: str, family: HFFamily) -> bool:
    """Return whether code reads a setting that is none of the type's, so that it matters."""
    if key == "mscale_all_dim":
        # DeepSeek's attention has its factor with all types but one.
        return family.scales_logits and rope_type != "default"
    return key in (*_SECTIONS, "llama_4_scaling_beta")


def _first(config: Config, keys: Iterable[str]) -> Any:
    """Return the value of the first key that has one, or None."""
    for key in keys:
        if config.get(key) is not None:
            return config[key]
    return None


def _present(options: Config) -> Options:
    return {key: value for key, value in options.items() if value is not None}


class _RopeLayer(NamedTuple):
    """A layer with `rope`, and with or without a window."""

    base: float
    max_distance: int | None

    @property
    def type(self) -> str:
        return FULL if self.max_distance is None else SLIDING


# The name of an encoding that `rope_keys` writes: base and window.
_LAYER = re.compile(r"rope(?:\(base=([0-9.e+]+)\))?(?:\+window\(max_distance=(\d+)\))?")


def rope_keys(
    encoding: PositionEncoding,
    num_layers: int,
    by_layer: bool,
    window_key: str = "local_attention",
) -> dict[str, Any]:
    """Return `rope` as keys of a config, the same in all layers or, with a window, in some.

    Args:
      by_layer: the family tells layers with a window from the others.
      window_key: of the window's size, which is twice its reach.

    Raises:
      ValueError: for other encodings.
    """
    layers = []
    for i in range(num_layers):
        match = _LAYER.fullmatch(encoding.layer(i).name)
        if match:
            max_distance = int(match[2]) if match[2] else None
            layers.append(_RopeLayer(float(match[1] or 10_000), max_distance))
    by_type = {layer.type: layer for layer in layers}
    differ = len(set(layers)) != len(by_type)
    if len(layers) < num_layers or differ or (SLIDING in by_type and not by_layer):
        raise ValueError(
            f"No model of transformers that is known here has the positions {encoding.name!r}: it "
            "has rope, of one base in all layers, and of another in those with a window."
        )
    if not by_layer:
        return {"rope_theta": by_type[FULL].base}
    keys: dict[str, Any] = {"layer_types": [layer.type for layer in layers]}
    if SLIDING in by_type:
        max_distance = by_type[SLIDING].max_distance
        assert max_distance is not None
        keys[window_key] = 2 * max_distance
    keys["rope_parameters"] = {}
    for layer_type in (FULL, SLIDING):
        base = by_type[layer_type].base if layer_type in by_type else 10_000.0
        settings = {"rope_type": "default", "rope_theta": base}
        keys["rope_parameters"][layer_type] = settings
    return keys
