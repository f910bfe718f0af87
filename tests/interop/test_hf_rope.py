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
NESTED = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
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
            "cycle(rope(base=160000), rope+window(reach=64), rope+window(reach=64))",
        ),
        (
            dict(rope_parameters=NESTED, local_attention=8, layer_types=WINDOWED),
            "cycle(rope+window(reach=4), rope(base=1000000))",
        ),
        # Gemma 3, version 4: scaling is of the layers with full attention.
        (
            dict(rope_theta=1e6, rope_local_base_freq=1e4, sliding_window=4,
                 sliding_window_pattern=2, rope_scaling=dict(rope_type="linear", factor=8)),
            "cycle(rope+window(reach=3), rope_linear(factor=8, base=1000000))",
        ),
        (
            dict(rope_theta=1e4, sliding_window=8, use_bidirectional_attention=True,
                 layer_types=WINDOWED),
            "cycle(rope+window(reach=4), rope)",
        ),
        # Mistral, Qwen 2, an encoder, layers without positions.
        (dict(rope_theta=1e4, sliding_window=4, model_type="mistral"), "rope+window(reach=3)"),
        (
            dict(rope_theta=1e4, sliding_window=4, is_causal=False,
                 layer_types=["sliding_attention"] * 6),
            "rope+window(reach=4)",
        ),
        (dict(rope_theta=1e4, sliding_window=4, use_sliding_window=False), "rope"),
        (dict(rope_theta=1e4, sliding_window=4, max_window_layers=2), "rope"),
        (
            dict(rope_theta=1e4, sliding_window=4, use_sliding_window=True, max_window_layers=5),
            "cycle(rope, rope, rope, rope, rope, rope+window(reach=3))",
        ),
        (dict(rope_theta=1e4, no_rope_layers=[1, 1, 0] * 2), "cycle(rope, rope, none)"),
        (
            dict(rope_parameters={**NESTED, "full_attention": None}, sliding_window=4,
                 layer_types=WINDOWED),
            "cycle(rope+window(reach=3), none)",
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
    assert from_hf(config, layer_type="sliding_attention").name == "rope+window(reach=4)"
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
