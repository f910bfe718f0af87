"""Frequencies, scales and rotations of every family against transformers' own rotary modules.

The modules are built alone, from a small config or a random one. Runs where the extra `parity` is
installed; `test_hf_encoding_parity.py` runs whole models.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import types
import zlib
from typing import Any

import numpy as np
import pytest
from helpers.huggingface_configs import cases

from pe_jax.encodings import HookContext
from pe_jax.interop import from_hf
from pe_jax.interop.hf_layers import FULL, SLIDING
from pe_jax.interop.hf_registry import DECODERS, TOWERS

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not (
            importlib.util.find_spec("torch")
            and importlib.util.find_spec("transformers")
        ),
        reason="needs the extra `parity`",
    ),
]

FAR = 131_071
# Names of classes that do not begin as the config's does.
ROTARY = {
    "deepseek_ocr2_encoder": "DeepseekOcr2VisionRotaryEmbedding",
    "evolla": "EvollaRotaryEmbedding",
    "qwen2_5_omni_talker": "Qwen2_5OmniRotaryEmbedding",
    "qwen2_5_omni_text": "Qwen2_5OmniRotaryEmbedding",
    "qwen3_omni_moe_talker_code_predictor": "Qwen3OmniMoeRotaryEmbedding",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextRotaryEmbedding",
    "qwen3_omni_moe_vision_encoder": "Qwen3OmniMoeVisionRotaryEmbedding",
    "step3p5": "Step3p7RotaryEmbedding",
}
# What the configs of some towers must have besides their sizes.
MORE = {
    "dots3_note_audio_encoder": lambda said: {
        "adapter_input_size": said["hidden_size"]
    },
    "dots3_note_vision_encoder": lambda said: {
        "per_layer_config": {},
        "adapter_in_dim": said["hidden_size"],
    },
    "muse_glimmer_assistant": lambda said: {"vocab_size": 40},
}


def modules_of(
    model_type: str, said: dict[str, Any]
) -> tuple[Any, Any, types.ModuleType]:
    """The config, its rotary module and the file of the model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {model_type}")
    kind = CONFIG_MAPPING[model_type]
    config = kind(**{key: value for key, value in said.items() if key != "model_type"})
    module = importlib.import_module(
        kind.__module__.replace("configuration_", "modeling_")
    )
    named = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and name.endswith("RotaryEmbedding")
    }
    prefix = kind.__name__.removesuffix("Config")
    if model_type in ROTARY:
        return config, named[ROTARY[model_type]](config), module
    image = "vision" in model_type
    near = sorted(
        (name for name in named if ("Vision" in name) == (image or "Vision" in prefix)),
        key=lambda name: -len(common(name, prefix)),
    )
    return config, named[near[0]](config), module


def common(a: str, b: str) -> str:
    count = next(
        (i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b))
    )
    return a[:count]


def frequencies_of(
    rotary: Any, layer_type: str, config: Any
) -> tuple[np.ndarray, float]:
    """The frequencies and the scale of layers of a type."""
    listed = getattr(config, "layer_types", None) or ()
    hybrid = {FULL: "hybrid", SLIDING: "hybrid_sliding"}[layer_type]
    for name in (layer_type, hybrid, "indexed_attention"):
        if hasattr(rotary, f"{name}_inv_freq") and (not listed or name in listed):
            scale = getattr(rotary, f"{name}_attention_scaling")
            return getattr(rotary, f"{name}_inv_freq").numpy(), scale
    return rotary.inv_freq.numpy(), rotary.attention_scaling


ROTATED = [
    case
    for case in cases()
    if case[0].removesuffix("_text") in DECODERS
    # Without a module of frequencies, or with one for each layer.
    and case[0]
    not in ("gptj", "codegen", "deepseek_v2", "llama4_text", "kimi_k2", "exaone4_5")
    and not case[0].endswith("_swa")
    and "rope" in case[2]
]


@pytest.mark.parametrize(
    ("model_type", "said", "name"),
    ROTATED,
    ids=[f"{c[0]}-{i}" for i, c in enumerate(ROTATED)],
)
def test_frequencies(model_type, said, name):
    """As far as position 131,071, up to the rounding of float32 frequencies."""
    config, rotary, _ = modules_of(model_type, said)
    ours = from_hf(said)
    compared = 0
    for index in range(config.num_hidden_layers):
        layer = ours.layer(index)
        rotations = [part for part in layer.parts if part.map_qkv]
        if not rotations or (model_type == "molmo2_text" and index % 2):
            continue
        windowed = any(part.key == "window" for part in layer.parts)
        w, scale = frequencies_of(rotary, SLIDING if windowed else FULL, config)
        found = np.asarray(rotations[0].metadata.frequencies({}), np.float64).reshape(
            -1
        )
        np.testing.assert_allclose(found[: w.size], w, rtol=2e-6)
        assert not found[w.size :].any()
        assert np.abs(found[: w.size] - w).max() * FAR < 0.05
        size = said.get("qk_rope_head_dim") or said.get(
            "global_head_dim" if not windowed else ""
        )
        size = size or said.get("head_dim") or said.get("attention_head_dim")
        size = size or said["hidden_size"] // said["num_attention_heads"]
        x = np.ones((1, 1, 1, size), np.float32)
        origin = np.zeros((1, ours.axes), int) if ours.axes > 1 else np.zeros(1, int)
        q, _, _ = rotations[0].map_qkv(
            {}, x, x, x, HookContext(positions_q=origin, positions_k=origin)
        )
        np.testing.assert_allclose(np.asarray(q).max(), scale, rtol=1e-6)
        compared += 1
    assert compared


# --- rotations of towers, and of models that do not run on tokens alone ---------------------------


def random_config(model_type: str) -> dict[str, Any]:
    """Sizes and a base that depend on the name alone."""
    rng = np.random.default_rng(zlib.crc32(model_type.encode()))
    heads = int(rng.integers(2, 5))
    size = int(rng.choice([16, 32, 64]))
    said = dict(
        hidden_size=heads * size, num_attention_heads=heads, num_heads=heads, head_dim=size,
        num_hidden_layers=4, depth=4, intermediate_size=32, embed_dim=heads * size,
        num_key_value_heads=heads,
    )  # fmt: skip
    theta = float(np.exp(rng.uniform(np.log(100), np.log(1e6))))
    kind = {"rope_type": "axial"} if "axial" in TOWERS[model_type].encodings else {}
    share = TOWERS[model_type].defaults.get("partial_rotary_factor")
    said["rope_parameters"] = {"rope_theta": theta, **kind}
    if share:
        said["rope_parameters"]["partial_rotary_factor"] = share
    more = MORE[model_type](said) if model_type in MORE else {}
    return {"model_type": model_type, **said, **more}


@pytest.mark.parametrize("model_type", TOWERS)
def test_rotations_of_towers(model_type):
    """Rotated queries and keys, at near positions and as far as 131,071."""
    import torch

    said = random_config(model_type)
    _, rotary, module = modules_of(model_type, said)
    if model_type == "qwen2_vl_vision":
        said.pop("hidden_size")
    layer = next(
        layer for layer in (from_hf(said).layer(i) for i in range(4)) if layer.parts
    )
    (part,) = (part for part in layer.parts if part.map_qkv)
    axes = part.traits.axes
    heads, size = said["num_attention_heads"], said["head_dim"]
    rng = np.random.default_rng(0)
    for at, tolerance in (
        (rng.integers(0, 40, (7, axes)), 3e-5),
        (
            np.array(
                [[0] * axes, [5] * axes, [70_000, 12_345][:axes], [FAR, 999][:axes]]
            ),
            0.05,
        ),
    ):
        q, k = (
            rng.normal(size=(1, len(at), heads, size)).astype(np.float32)
            for _ in range(2)
        )
        ids = torch.tensor(at if axes == 2 else at[:, 0][None])
        if model_type == "gemma4_vision":
            ids = ids[None]
        cos, sin = rotary(torch.zeros(1), ids)
        turned = [
            apply(model_type, module, torch.tensor(x), cos, sin, ids, axes)
            for x in (q, k)
        ]
        positions = at if axes == 2 else at[:, 0]
        ours = part.map_qkv(
            {}, q, k, k, HookContext(positions_q=positions, positions_k=positions)
        )[:2]
        for mine, theirs in zip(ours, turned):
            np.testing.assert_allclose(
                np.asarray(mine), theirs, atol=tolerance * np.abs(q).max(), rtol=1e-5
            )


def apply(
    model_type: str,
    module: types.ModuleType,
    x: Any,
    cos: Any,
    sin: Any,
    ids: Any,
    axes: int,
) -> np.ndarray:
    """Heads `[1, L, H, d]` as the model rotates them."""
    if model_type == "gemma4_vision":
        return module.apply_multidimensional_rope(x, cos, sin, ids).numpy()
    if axes == 2:
        return module.apply_rotary_pos_emb_vision(x[0], x[0], cos, sin)[0][None].numpy()
    swapped = x.swapaxes(1, 2)
    return (
        module.apply_rotary_pos_emb(swapped, swapped, cos, sin)[0]
        .swapaxes(1, 2)
        .numpy()
    )
