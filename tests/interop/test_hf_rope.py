"""`from_hf` on rope settings of versions 4 and 5, without a `model_type`."""

import pytest

from pe_jax.encodings import from_name
from pe_jax.interop import from_hf

SMALL = dict(hidden_size=16, num_attention_heads=2, max_position_embeddings=64)
LAYERS = dict(SMALL, num_hidden_layers=6)
LIST = [1.0, 1.0, 2.0, 4.0]
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LONG = dict(short_factor=[1.0] * 4, long_factor=LIST)
V4 = dict(rope_theta=500)
NESTED = {
    "full_attention": {"rope_theta": 1e6},
    "sliding_attention": {"rope_theta": 1e4},
}
WINDOWED = ["sliding_attention", "full_attention"] * 3


@pytest.mark.parametrize(
    ("config", "name"),
    [
        # Version 4, version 5.
        (dict(rope_theta=500), "rope(base=500)"),
        (dict(V4, rope_scaling=None, head_dim=4), "rope(base=500)"),
        (dict(rope_parameters=dict(rope_type="default", rope_theta=500)), "rope(base=500)"),
        (dict(rotary_emb_base=500, rotary_pct=0.25), "rope(base=500, fraction=0.25)"),
        (
            dict(V4, partial_rotary_factor=0.5, rope_scaling=dict(type="linear", factor=2)),
            "rope_linear(factor=2, base=500, fraction=0.5)",
        ),
        (
            dict(rope_parameters=dict(rope_type="dynamic", rope_theta=500.0, factor=2.0)),
            "rope_dynamic_ntk(factor=2, original_length=64, base=500)",
        ),
        (
            dict(V4, rope_scaling=dict(LLAMA3, original_max_position_embeddings=32)),
            "rope_llama3(factor=8, original_length=32, base=500)",
        ),
        (
            dict(rope_parameters=dict(rope_type="yarn", rope_theta=500, factor=4.0, truncate=False,
                                      attention_factor=None, original_max_position_embeddings=16)),
            "rope_yarn(factor=4, original_length=16, truncate=False, base=500)",
        ),
        (
            dict(V4, original_max_position_embeddings=16, rope_scaling=dict(LONG, type="su")),
            "rope_longrope(short=(1, 1, 1, 1), long=(1, 1, 2, 4), factor=4, original_length=16, "
            "base=500)",
        ),
        (
            dict(rope_parameters=dict(V4, rope_type="proportional", partial_rotary_factor=0.25)),
            "rope(base=500, proportional=0.25)",
        ),
        # Qwen2-VL, Qwen3-VL.
        (
            dict(V4, rope_scaling=dict(type="mrope", mrope_section=[2, 1, 1])),
            "mrope(sections=(2, 1, 1), base=500)",
        ),
        (
            dict(rope_parameters=dict(V4, rope_type="default", mrope_section=[2, 1, 1],
                                      mrope_interleaved=True)),
            "mrope(sections=(2, 1, 1), interleaved=True, base=500)",
        ),
        # ModernBERT, version 4 and 5.
        (
            dict(global_rope_theta=1.6e5, local_rope_theta=1e4, local_attention=128,
                 global_attn_every_n_layers=3),
            "cycle(rope(base=160000), rope+window(max_distance=64), rope+window(max_distance=64))",
        ),
        (
            dict(rope_parameters=NESTED, local_attention=8, layer_types=WINDOWED),
            "cycle(rope+window(max_distance=4), rope(base=1000000))",
        ),
        # Gemma 3, version 4: scaling is of the layers with full attention.
        (
            dict(rope_theta=1e6, rope_local_base_freq=1e4, sliding_window=4,
                 sliding_window_pattern=2, rope_scaling=dict(rope_type="linear", factor=8)),
            "cycle(rope+window(max_distance=3), rope_linear(factor=8, base=1000000))",
        ),
        (
            dict(rope_theta=1e4, sliding_window=8, use_bidirectional_attention=True,
                 layer_types=WINDOWED),
            "cycle(rope+window(max_distance=4), rope)",
        ),
        # Mistral, Qwen 2, an encoder, layers without positions.
        (
            dict(rope_theta=1e4, sliding_window=4, model_type="mistral"),
            "rope+window(max_distance=3)",
        ),
        (
            dict(rope_theta=1e4, sliding_window=4, is_causal=False,
                 layer_types=["sliding_attention"] * 6),
            "rope+window(max_distance=4)",
        ),
        (dict(rope_theta=1e4, sliding_window=4, use_sliding_window=False), "rope"),
        (dict(rope_theta=1e4, sliding_window=4, max_window_layers=2), "rope"),
        (
            dict(rope_theta=1e4, sliding_window=4, use_sliding_window=True, max_window_layers=5),
            "cycle(rope, rope, rope, rope, rope, rope+window(max_distance=3))",
        ),
        (dict(rope_theta=1e4, no_rope_layers=[1, 1, 0] * 2), "cycle(rope, rope, none)"),
        (
            dict(rope_parameters={**NESTED, "full_attention": None}, sliding_window=4,
                 layer_types=WINDOWED),
            "cycle(rope+window(max_distance=3), none)",
        ),
    ],
)  # fmt: skip
def test_from_hf(config, name):
    encoding = from_hf({**LAYERS, **config})
    assert encoding.name == name
    sizes = dict(hidden_size=16, head_size=8, num_heads=2, max_length=16)
    assert from_name(name, **sizes).name == name


def test_from_hf_of_one_layer_type():
    config = dict(LAYERS, rope_parameters=NESTED, local_attention=8)
    assert (
        from_hf(config, layer_type="sliding_attention").name
        == "rope+window(max_distance=4)"
    )
    full = from_hf(config, layer_type="full_attention", layout="interleaved")
    assert full.name == "rope(base=1000000, layout='interleaved')"
    (part,) = from_hf(dict(config, head_dim=12), layer_type="full_attention").parts
    assert part.metadata.frequencies({}).size == 6


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, "rope_theta is missing; rope_type 'default' needs it"),
        (dict(V4, rope_scaling=dict(type="yarm", factor=2)), "'yarm'.* mean yarn"),
        (
            dict(V4, rope_scaling=dict(type="yarn", factr=2)),
            "'factr' is no setting of rope_type 'yarn', .* Did you mean .*factor",
        ),
        (dict(V4, rope_scaling=dict(type="default", mrope_section=[1, 1, 1])), "add up to 4"),
        (dict(V4, rope_scaling=dict(mrope_section=[1.5, 2.5])), "must be three integers"),
        (dict(V4, rope_scaling=dict(mrope_interleaved=True)), "mrope_section, which is missing"),
        (dict(V4, rope_scaling=dict(type="yarn", mrope_section=[1])), "'mrope_section' is no"),
        (dict(V4, rope_scaling=dict(type="linear")), "factor is missing"),
        (
            dict(V4, rope_scaling=dict(LONG, type="longrope"), max_position_embeddings=None),
            "factor and original_max_position_embeddings is missing",
        ),
        (
            dict(V4, rope_scaling=dict(type="dynamic", factor=2), max_position_embeddings=None),
            "max_position_embeddings is missing",
        ),
        (dict(rope_parameters={"sliding_atention": {}}), "Did you mean sliding_attention"),
        (
            dict(rope_parameters={"full_attention": {}}, sliding_window=4, layer_types=WINDOWED),
            "not 'sliding_attention'",
        ),
        (dict(V4, sliding_window=4), "does not say for which layers it is. Add layer_types"),
        (dict(V4, layer_types=["chunked_atention"] * 6), "Did you mean chunked_attention"),
        (dict(V4, rope_scaling=dict(type="linear", factor="2")), "factor must be a number"),
        (dict(V4, layer_types=WINDOWED), "sliding_window is missing"),
    ],
)  # fmt: skip
def test_from_hf_refuses(config, match):
    with pytest.raises(ValueError, match=match):
        from_hf({**LAYERS, **config})


QWEN = dict(SMALL, model_type="qwen3", num_hidden_layers=2, head_dim=8)
DEEPSEEK = dict(
    SMALL, model_type="deepseek_v3", num_hidden_layers=2, qk_rope_head_dim=8
)
YARN = dict(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=500
)
OTHERS = dict(attention_factor=2.0, beta_fast=8, mscale=0.5, truncate=False, low_freq_factor=2.0,
              short_factor=LIST, original_max_position_embeddings=8, alpha=10.0, mrope_section=[1],
              llama_4_scaling_beta=0.1, mrope_interleaved=True, short_mscale=2.0)  # fmt: skip
YARN_4 = "rope_yarn(factor=4, original_length=16, base=500)"


# The names are those of what transformers 5.24 computes: test_hf_rope_parity.py compares them.
@pytest.mark.parametrize(
    ("config", "name"),
    [
        (dict(QWEN, rope_parameters=dict(V4, factor=4.0, **OTHERS)), "rope(base=500)"),
        (dict(QWEN, rope_parameters=dict(V4, factor="four", beta_fast=[])), "rope(base=500)"),
        (dict(QWEN, **V4, rope_scaling=dict(type="default", factor=4.0)), "rope(base=500)"),
        (
            dict(QWEN, rope_parameters=dict(V4, rope_type="linear", factor=2.0, **OTHERS)),
            "rope_linear(factor=2, base=500)",
        ),
        (
            dict(QWEN, rope_parameters=dict(V4, rope_type="dynamic", factor=2.0, **OTHERS)),
            "rope_dynamic_ntk(factor=2, original_length=64, base=500)",
        ),
        (
            dict(QWEN, rope_parameters=dict(V4, rope_type="proportional", **OTHERS)),
            "rope(base=500)",
        ),
        # Nulls, of names that nothing reads too.
        (dict(QWEN, rope_parameters=dict(YARN, attn_factor=None, factr=None)), YARN_4),
        (dict(SMALL, rope_parameters=dict(YARN, mrope_section=None, alpha=None)), YARN_4),
        (dict(QWEN, rope_parameters=dict(YARN, attn_factor=1.0)), YARN_4),
        (dict(QWEN, rope_parameters=dict(YARN, beta_fast=None, beta_slow=0)), YARN_4),
        # Nulls that are no defaults: the ratio of the lengths, and ends that are not rounded.
        (dict(QWEN, rope_parameters=dict(YARN, factor=None)), YARN_4),
        (
            dict(QWEN, rope_parameters=dict(YARN, truncate=None)),
            "rope_yarn(factor=4, original_length=16, truncate=False, base=500)",
        ),
        # A length next to the settings wins.
        (
            dict(QWEN, rope_parameters=YARN, original_max_position_embeddings=32),
            "rope_yarn(factor=4, original_length=32, base=500)",
        ),
        # By layer type: `truncate` is read next to the types alone.
        (
            dict(
                LAYERS, layer_types=WINDOWED[1:] + WINDOWED[:1], sliding_window=4,
                rope_parameters=dict(
                    full_attention=dict(YARN, truncate=False, low_freq_factor=2.0),
                    sliding_attention=dict(V4, rope_type="default", factor=8.0),
                    rope_theta=3.0, rope_type="default", factor=None,
                ),
            ),
            f"cycle({YARN_4}, rope(base=500)+window(max_distance=3))",
        ),
        # What a family's code alone reads.
        (
            dict(QWEN, model_type="hunyuan_v1_dense",
                 rope_parameters=dict(V4, rope_type="dynamic", factor=2.0, alpha=10.0)),
            "rope_ntk(factor=10, base=500)",
        ),
        (
            dict(QWEN, model_type="ministral3",
                 rope_parameters=dict(YARN, llama_4_scaling_beta=0.1)),
            f"{YARN_4}+log_n(original_length=16, coefficient=0.1, smooth=True, stepped=True, "
            "count='earlier')",
        ),
        (dict(DEEPSEEK, rope_parameters=dict(V4, mscale_all_dim=1.0)), None),
        (
            dict(QWEN, model_type="qwen2_5_vl",
                 rope_parameters=dict(V4, type="mrope", mrope_section=[2, 1, 1],
                                      mrope_interleaved=True, factor=3.0)),
            "mrope(sections=(2, 1, 1), base=500)",
        ),
        (
            dict(QWEN, model_type="qwen3_vl",
                 rope_parameters=dict(V4, mrope_section=[2, 1, 1], mrope_interleaved=False)),
            "mrope(sections=(2, 1, 1), interleaved=True, base=500)",
        ),
    ],
)  # fmt: skip
def test_settings_that_change_nothing(config, name):
    if name is None:  # DeepSeek's attention has no factor of default rope.
        name = from_hf({**config, "rope_parameters": V4}).name
    assert from_hf(config).name == name


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (dict(QWEN, rope_parameters=dict(YARN, factr=2)), "'factr' is no setting of rope_type 'ya"),
        (dict(QWEN, rope_parameters=dict(YARN, attn_factor=2)), "'attn_factor' is no setting"),
        (
            dict(DEEPSEEK, rope_parameters=dict(V4, type="linear", factor=2, mscale_all_dim=1.0)),
            "'mscale_all_dim' is no setting of rope_type 'linear'",
        ),
        (
            dict(QWEN, model_type="ministral3", rope_parameters=dict(V4, llama_4_scaling_beta=0.1)),
            "'llama_4_scaling_beta' is no setting of rope_type 'default'",
        ),
        (
            dict(SMALL, rope_parameters=dict(YARN, llama_4_scaling_beta=0.1, mrope_section=[1])),
            "'mrope_section' is no setting of rope_type 'yarn'",
        ),
        (dict(QWEN, rope_parameters=dict(V4, rope_type="mrope")), "rope_type must be .*, got 'mro"),
        (dict(QWEN, rope_parameters=dict(rope_theta=None)), "rope_theta must be a positive number"),
        (dict(QWEN, rope_parameters=dict(V4, type="linear", factor=None)), "factor is missing"),
        (
            dict(QWEN, model_type="qwen2_5_vl", rope_parameters=YARN),
            "rope_type must be default, mrope for model_type 'qwen2_5_vl', got 'yarn'",
        ),
    ],
)  # fmt: skip
def test_settings_that_matter_are_refused(config, match):
    with pytest.raises(ValueError, match=match):
        from_hf(config)
