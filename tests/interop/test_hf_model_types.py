"""Every model type of transformers with rotary, relative or bias positions is read or refused."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from pe_jax.interop import from_hf
from pe_jax.interop.hf_registry import FAMILIES, REFUSED, WITHOUT

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/huggingface.md"


def test_no_model_type_is_both_read_and_refused():
    assert not {*FAMILIES} & {*REFUSED}
    assert not {*FAMILIES, *REFUSED} & {*WITHOUT}


@pytest.mark.parametrize(
    "model_type", ["pixtral", "dinov3_vit", "deepseek_v4", "moshi_depth"]
)
def test_refusals_name_the_type_and_the_reason(model_type):
    reason = REFUSED.get(model_type, "its code in transformers has no rotary")
    with pytest.raises(
        ValueError, match=f"^model_type '{model_type}' is not supported"
    ) as caught:
        from_hf({"model_type": model_type})
    assert reason in str(caught.value)


def test_the_page_has_every_family():
    text = PAGE.read_text(encoding="utf-8")
    for name in (*FAMILIES, *REFUSED, *WITHOUT):
        assert f"`{name}`" in text or f"`{name}_text`" in text, name


@pytest.mark.torch
@pytest.mark.skipif(
    not (
        importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")
    ),
    reason="needs the extra `parity`",
)
def test_the_page_is_what_its_tool_writes():
    """And no model type of the installed transformers is unknown."""
    import transformers

    sys.path.insert(0, str(ROOT / "tools"))
    import write_hf_table

    assert not [
        name
        for name, kind in write_hf_table.model_types().items()
        if write_hf_table.outcome(name, kind)[0] == "unknown"
    ]
    if not transformers.__version__.startswith("5.24"):
        pytest.skip("the page is of transformers 5.24")
    assert write_hf_table.page() == PAGE.read_text(encoding="utf-8")


# --- parts of a config ----------------------------------------------------------------------------

QWEN3_OMNI = {
    "model_type": "qwen3_omni_moe",
    "thinker_config": {
        "model_type": "qwen3_omni_moe_thinker",
        "text_config": {
            "model_type": "qwen3_omni_moe_text", "head_dim": 128, "hidden_size": 2048,
            "num_attention_heads": 32, "num_hidden_layers": 48, "rope_theta": 1000000,
            "rope_scaling": {"mrope_section": [24, 20, 20], "rope_type": "default",
                             "interleaved": True, "mrope_interleaved": True},
        },
        "vision_config": {"model_type": "qwen3_omni_moe_vision_encoder", "hidden_size": 1152,
                          "num_heads": 16, "depth": 27},
    },
    "talker_config": {
        "code_predictor_config": {"model_type": "qwen3_omni_moe_talker_code_predictor",
                                  "rope_theta": 1000000, "sliding_window": None},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("vision_config", "rope_axial(base=10000)"),
        ("thinker_config.vision_config", "rope_axial(base=10000)"),
        ("talker_config.code_predictor_config", "rope(base=1000000)"),
    ],
)
def test_parts(part, name):
    assert from_hf(QWEN3_OMNI, part=part).name == name


def test_a_tower_has_the_type_of_its_key():
    """Published files give it the type of the whole, or none."""
    sizes = {"embed_dim": 1280, "num_heads": 16, "depth": 32, "hidden_size": 3584}
    for inner in ({"model_type": "qwen2_vl"}, {}):
        config = {"model_type": "qwen2_vl", "vision_config": {**sizes, **inner}}
        encoding = from_hf(config, part="vision_config")
        assert encoding.name == "rope_axial(base=10000)"
        assert encoding.parts[0].metadata.frequencies({}).shape == (
            20,
        )  # Of heads of 80.


@pytest.mark.parametrize("part", ["audio_config", "", 5, "vision_config.x"])
def test_parts_that_are_not_there(part):
    config = {"model_type": "qwen2_vl", "vision_config": {"model_type": "qwen2_vl"}}
    with pytest.raises(ValueError, match="^part must be"):
        from_hf(config, part=part)


def test_a_config_of_models_alone_asks_for_a_part():
    config = {"model_type": "dia", "encoder_config": {"model_type": "dia_encoder"},
              "decoder_config": {"model_type": "dia_decoder"}}  # fmt: skip
    with pytest.raises(
        ValueError, match="pass part='encoder_config' or 'decoder_config'"
    ):
        from_hf(config)
    assert from_hf(config, part="encoder_config").name == "rope"


def test_encoder_and_decoder_have_other_windows():
    module = {
        "model_type": "t5_gemma_module",
        "sliding_window": 8,
        "num_hidden_layers": 2,
    }
    config = {"model_type": "t5gemma", "encoder": module, "decoder": module}
    assert (
        from_hf(config, part="encoder").name
        == "cycle(rope+window(max_distance=8), rope)"
    )
    assert (
        from_hf(config, part="decoder").name
        == "cycle(rope+window(max_distance=7), rope)"
    )
