"""`from_hf` on configs of transformers' families, real and small; needs no transformers."""

from __future__ import annotations

import inspect
import time

import numpy as np
import pytest
from helpers.huggingface_configs import SIZES, cases

from pe_jax.encodings import HookContext, from_name
from pe_jax.interop import from_hf
from pe_jax.interop.hf_registry import FAMILIES, FIRST_NAMES, TOWERS


@pytest.mark.parametrize(
    ("config", "name"),
    [(config, name) for _, config, name in cases()],
    ids=[f"{model_type}-{i}" for i, (model_type, *_) in enumerate(cases())],
)
def test_families(config, name):
    encoding = from_hf(config)
    assert encoding.name == name
    sizes = dict(hidden_size=64, head_size=16, num_heads=4, max_length=64)
    if not any(
        part in name for part in ("rope_longrope", "sections", "fraction=0.334")
    ):
        assert from_name(name, **sizes).name == name


def test_every_family_has_a_config():
    names = {model_type.removesuffix("_text") for model_type, *_ in cases()}
    known = {
        name.removesuffix("_text") for name in {*FAMILIES, *FIRST_NAMES} - {*TOWERS}
    }
    assert names == known


# --- well-known models, with the keys of version 4 ------------------------------------------------

LLAMA_4_SCOUT = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "text_config": {
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": 4,
        "floor_scale": 8192,
        "head_dim": 128,
        "hidden_size": 5120,
        "max_position_embeddings": 10485760,
        "model_type": "llama4_text",
        "no_rope_layers": [],
        "num_attention_heads": 40,
        "num_hidden_layers": 48,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
    },
}
LLAMA_4_MAVERICK = {
    "model_type": "llama4",
    "text_config": {
        "hidden_size": 5120,
        "model_type": "llama4_text",
        "no_rope_layers": [],
        "num_attention_heads": 40,
        "num_hidden_layers": 48,
        "rope_scaling": None,
    },
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "v_head_dim": 128,
}
OLMO_3 = {
    "hidden_size": 4096,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    "max_position_embeddings": 65536,
    "model_type": "olmo3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rope_scaling": {
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "yarn",
    },
    "rope_theta": 500000,
    "sliding_window": 4096,
}
EXAONE_4_32B = {
    "head_dim": 128,
    "hidden_size": 5120,
    "max_position_embeddings": 131072,
    "model_type": "exaone4",
    "num_attention_heads": 40,
    "num_hidden_layers": 64,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 1000000,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
}
GEMMA_3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}
COMMAND_R7B = {
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 8192,
    "model_type": "cohere2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "position_embedding_type": "rope_gptj",
    "rope_scaling": None,
    "rope_theta": 50000,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
QWEN2_VL = {
    "hidden_size": 1536,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2_vl",
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "vision_config": {"depth": 32},
}
FALCON_7B = {
    "alibi": False,
    "hidden_size": 4544,
    "model_type": "falcon",
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
}
ESM_2 = {
    "hidden_size": 320,
    "max_position_embeddings": 1026,
    "model_type": "esm",
    "num_attention_heads": 20,
    "num_hidden_layers": 6,
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
}
MINISTRAL_3 = {
    "model_type": "mistral3",
    "text_config": {
        "head_dim": 128,
        "hidden_size": 4096,
        "max_position_embeddings": 262144,
        "model_type": "ministral3",
        "num_attention_heads": 32,
        "num_hidden_layers": 34,
        "rope_parameters": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 16.0,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16384,
            "rope_theta": 1000000.0,
            "rope_type": "yarn",
            "type": "yarn",
        },
        "sliding_window": None,
    },
}
SMOLLM3 = {
    "hidden_size": 2048,
    "max_position_embeddings": 65536,
    "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "rope_theta": 5000000.0,
    "use_sliding_window": False,
}
EXAONE_ROPE = (
    "rope_llama3(factor=16, original_length=8192, "
    "base=1000000)+window(max_distance=4095), "
)
SCOUT_ROPE = (
    "rope_llama3(factor=16, original_length=8192, high_frequency_factor=1, base=500000, "
    "layout='interleaved')+chunks(size=8192), "
)
MAVERICK_ROPE = "rope(base=500000, layout='interleaved')+chunks(size=8192), "


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (
            LLAMA_4_SCOUT,
            "cycle("
            + SCOUT_ROPE * 3
            + "log_n(original_length=8192, coefficient=0.1, smooth=True, stepped=True))",
        ),
        (
            LLAMA_4_MAVERICK,
            f"cycle({MAVERICK_ROPE * 3}"
            "log_n(original_length=8192, coefficient=0.1, smooth=True, stepped=True))",
        ),
        (
            dict(
                LLAMA_4_MAVERICK["text_config"],
                attention_chunk_size=None,
                num_hidden_layers=4,
            ),
            "cycle("
            + "rope(base=500000, layout='interleaved'), " * 3
            + "log_n(original_length=8192, coefficient=0.1, smooth=True, stepped=True))",
        ),
        (
            DEEPSEEK_V3,
            "rope_yarn(factor=40, original_length=4096, mscale=1, mscale_all_dim=1, "
            "scale_logits=True, layout='interleaved')",
        ),
        (
            OLMO_3,
            "cycle("
            + "rope(base=500000)+window(max_distance=4095), " * 3
            + "rope_yarn(factor=8, "
            "original_length=8192, attention_factor=1.2079441541679836, base=500000))",
        ),
        (
            dict(
                EXAONE_4_32B,
                layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 16,
            ),
            f"cycle({EXAONE_ROPE * 3}none)",
        ),
        (EXAONE_4_32B, f"cycle({EXAONE_ROPE * 3}none)"),
        # The last layer attends to all keys.
        (
            dict(EXAONE_4_32B, num_hidden_layers=6),
            f"cycle({EXAONE_ROPE * 3}none, {EXAONE_ROPE}none)",
        ),
        (
            GEMMA_3_4B,
            "cycle("
            + "rope+window(max_distance=1023), " * 5
            + "rope_linear(factor=8, base=1000000))",
        ),
        (
            COMMAND_R7B,
            "cycle("
            + "rope(base=50000, layout='interleaved')+window(max_distance=4095), " * 3
            + "none)",
        ),
        (QWEN2_VL, "mrope(sections=(16, 24, 24), base=1000000)"),
        (FALCON_7B, "rope"),
        (ESM_2, "rope"),
        (
            MINISTRAL_3,
            "rope_yarn(factor=16, original_length=16384, mscale=1, mscale_all_dim=1, base=1000000)"
            "+log_n(original_length=16384, coefficient=0.1, smooth=True, stepped=True, "
            "count='earlier')",
        ),
        (SMOLLM3, "cycle(" + "rope(base=5000000), " * 3 + "none)"),
        (dict(ESM_2, position_embedding_type="absolute"), "learned_absolute"),
        (
            dict(SIZES, model_type="bert", position_embedding_type="relative_key"),
            "per_layer(relative_key)",
        ),
        (
            dict(SIZES, model_type="granitemoehybrid", position_embedding_type="nope"),
            "none",
        ),
    ],
)
def test_well_known_models(config, name):
    assert from_hf(config).name == name


def test_sizes_of_what_is_rotated():
    def frequencies(config, **options):
        (part, *_) = from_hf(config, **options).layer(0).parts
        return part.metadata.frequencies({}).shape[-1]

    assert frequencies(DEEPSEEK_V3) == 32
    assert frequencies(GEMMA_3_4B) == 128
    gemma4 = dict(SIZES, model_type="gemma4_text")
    assert frequencies(gemma4, layer_type="sliding_attention") == 128
    assert frequencies(gemma4, layer_type="full_attention") == 256
    overrides = {"05": {"head_dim": 64}}
    saved = dict(
        gemma4, num_hidden_layers=6, per_layer_config=overrides,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )  # fmt: skip
    assert frequencies(saved, layer_type="full_attention") == 32


def test_rows_of_learned_tables():
    def longest(model_type, **said):
        return from_hf({**SIZES, "model_type": model_type, **said}).max_length

    assert longest("bert") == longest("opt") == 64
    assert longest("roberta", max_position_embeddings=514, pad_token_id=1) == 512


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        (dict(mscale=0.707, mscale_all_dim=0), 1.3689),
        (dict(mscale=0.707), 1.3689),
        (dict(mscale_all_dim=0.707), 1.3689),
        (dict(mscale=1.0, mscale_all_dim=0.707), 1.3689 / 1.2608),
        (dict(attention_factor=0.5, mscale=0.707), 0.5),
        (dict(beta_fast=8, beta_slow=8), 1.3689),
    ],
)
def test_scale_of_yarn(settings, scale):
    yarn = dict(
        rope_type="yarn", factor=40, original_max_position_embeddings=16, **settings
    )
    (part,) = from_hf(dict(SIZES, rope_theta=1e4, rope_scaling=yarn)).parts
    assert f"c = {scale:.4}"[:7] in part.metadata.formula


def test_factor_of_deepseek():
    """(0.1 ln 40 + 1)², of all logits."""
    (part,) = from_hf(DEEPSEEK_V3).parts
    assert part.scale(
        {}, HookContext(positions_q=range(2), positions_k=range(2))
    ) == pytest.approx(1.3689**2, rel=1e-4)


def test_layout():
    assert "interleaved" not in from_hf(dict(DEEPSEEK_V3, rope_interleave=False)).name
    assert (
        from_hf(COMMAND_R7B, layout="half").layer(0).name
        == "rope(base=50000)+window(max_distance=4095)"
    )


def test_layers_of_one_type():
    alone = from_hf(COMMAND_R7B, layer_type="sliding_attention")
    assert (
        alone.name == "rope(base=50000, layout='interleaved')+window(max_distance=4095)"
    )
    assert from_hf(COMMAND_R7B, layer_type="full_attention").name == "none"
    with pytest.raises(ValueError, match="layer_type must be one of full_attention"):
        from_hf(SMOLLM3, layer_type="full_attention")


# --- refusals, in one line ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (dict(FALCON_7B, alibi=True), r"alibi adds ALiBi divided by sqrt\(head_size\)"),
        (dict(SIZES, model_type="nanochat"), "opposite direction: swap the halves"),
        (dict(SIZES, model_type="switch_transformers"), "tables of their own: encodings.t5"),
        (dict(SIZES, model_type="lama"), "model_type 'lama' is not known. Did you mean llama"),
        (dict(SIZES, position_embedding_type="absolute"), "position_embedding_type must be rope"),
        (dict(SIZES, model_type="bert", position_embedding_type="rotary"), "must be absolute or"),
        (
            dict(SIZES, model_type="phimoe", rope_scaling=dict(
                type="longrope", short_mscale=1.2, long_mscale=1.2)),
            "'short_mscale' is no setting of rope_type 'longrope'",
        ),
        (dict(SIZES, model_type="mpt", attn_config={"alibi": False}), "attn_config.alibi"),
        (
            dict(SIZES, model_type="gemma4_text", layer_types=["full_attention"] * 8,
                 per_layer_config={"1": {"head_dim": 64}}),
            "per_layer_config is supported only if",
        ),
        ({**DEEPSEEK_V3, "model_type": None}, "qk_rope_head_dim is .* that has it: deepseek_v2"),
        (
            {**LLAMA_4_SCOUT["text_config"], "model_type": None},
            "attention_chunk_size is read only with a model_type that has it: llama4",
        ),
        (dict(SIZES, model_type="qwen2", layer_types=["full_attention"] * 3), "8 layers, got 3"),
        (dict(SIZES, model_type="smollm3", no_rope_layers=[1] * 3), "each of 8 layers, got 3"),
        (
            dict(SIZES, model_type="gemma4_text", per_layer_config={"x": 1}),
            "per_layer_config is supported only if",
        ),
        (dict(SIZES, rope_theta=1e4, num_attention_heads=65), "must be at most hidden_size=64"),
        (dict(SIZES, model_type="roberta", pad_token_id=64), "must be above 65, got 64"),
        (
            dict(SIZES, model_type="qwen3_next", full_attention_interval=None),
            "full_attention_interval is missing from the config",
        ),
        (dict(SIZES, rope_theta=float("inf")), "rope_theta must be a positive number, got inf"),
    ],
)  # fmt: skip
def test_refusals(config, match):
    with pytest.raises(ValueError, match=match) as caught:
        from_hf(config)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


WRONG = [
    "LLLX",
    [],
    [None],
    {},
    -1,
    1.5,
    float("nan"),
    True,
    "x" * 10**5,
    [0.5] * 10**5,
    object(),
]
KEYS = [
    "hidden_size", "num_attention_heads", "num_hidden_layers", "head_dim", "rope_theta",
    "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "sliding_window_pattern",
    "max_window_layers", "no_rope_layers", "no_rope_layer_interval", "model_type",
    "position_embedding_type", "max_position_embeddings", "partial_rotary_factor", "rotary_dim",
    "local_attention", "rope_local_base_freq", "per_layer_config",
    "original_max_position_embeddings",
]  # fmt: skip
SETTINGS = [
    "rope_type", "type", "factor", "rope_theta", "original_max_position_embeddings",
    "mscale", "mscale_all_dim", "beta_fast", "truncate", "attention_factor", "mrope_section",
    "short_factor", "unknown", "partial_rotary_factor", "full_attention", "alpha",
]  # fmt: skip


def in_one_line(config):
    """Reads a config, or refuses it in one line; in less than a second of CPU time either way."""
    start, message = time.process_time(), ""
    try:
        from_hf(config)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message and len(message) < 800
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "base",
    [
        dict(SIZES, rope_theta=1e4),
        pytest.param(GEMMA_3_4B["text_config"], marks=pytest.mark.slow),
        pytest.param(EXAONE_4_32B, marks=pytest.mark.slow),
    ],
)
def test_wrong_values(base):
    for value in WRONG:
        for key in KEYS:
            in_one_line({**base, key: value})
        for key in SETTINGS:
            for kind in ("default", "yarn", "longrope", "dynamic"):
                settings = dict(
                    rope_type=kind, factor=2.0, original_max_position_embeddings=16
                )
                in_one_line({**base, "rope_scaling": {**settings, key: value}})


MANY = dict(SIZES, rope_theta=1e4, num_hidden_layers=10_000)


@pytest.mark.parametrize(
    "config",
    [
        dict(SIZES, rope_theta=1e4, num_hidden_layers=10**6, no_rope_layers=[1] * 10**6),
        dict(MANY, layer_types=["full_attention"] * 10**6),
        dict(MANY, model_type="gpt_oss"),
        dict(MANY, rope_parameters={"full_attention": {}, **{f"{i}": None for i in range(10**5)}},
             layer_types=["full_attention", "sliding_attention"] * 5_000),
        *[dict(SIZES, model_type=name, num_hidden_layers=10**6) for name in ("bert", "gpt_oss")],
        *[
            dict(SIZES, model_type=name, **{key: 10**9})
            for name in ("bert", "llama", "mpt", "modernbert")
            for key in ("hidden_size", "num_attention_heads", "max_position_embeddings")
        ],
    ],
)  # fmt: skip
def test_huge_counts(config):
    in_one_line(config)


def test_more_than_256_kinds_of_layers():
    bases = [float(i + 1) for i in range(300)]
    config = dict(
        SIZES, rope_theta=1e4, num_hidden_layers=600, layer_rope_theta=bases * 2
    )
    encoding = from_hf(config)
    assert len(encoding.layers) == 300
    assert encoding.layer(599).name == "rope(base=300)"


@pytest.mark.parametrize(
    "config", [None, [], "llama", 3, {"text_config": {"model_type": 3}}]
)
def test_wrong_configs(config):
    with pytest.raises(ValueError, match="must be a"):
        inspect.unwrap(from_hf)(config)  # Without the tests' checks of types.


@pytest.mark.parametrize(
    "many",
    [
        dict(layer_types=["full_attention"] * 10**5),
        dict(layer_types=["full_attention", "x"] * 10**5),
        dict(no_rope_layers=[1, 0] * 10**5),
        dict(model_type="smollm3", num_hidden_layers=10**9),
        dict(model_type="gemma2", num_hidden_layers=10**9),
        dict(no_rope_layer_interval=2, num_hidden_layers=10**9),
    ],
)
def test_many_layers(many):
    start = time.process_time()
    with pytest.raises(ValueError) as caught:
        from_hf({**SIZES, "rope_theta": 1e4, **many})
    assert len(str(caught.value)) < 400
    assert time.process_time() - start < 1


def test_layers_without_a_period():
    """As many as are allowed, none of them a repetition."""
    types = ["sliding_attention"] * 9_999 + ["full_attention"]
    config = dict(
        SIZES,
        rope_theta=1e4,
        sliding_window=8,
        layer_types=types,
        num_hidden_layers=10**4,
    )
    start = time.process_time()
    encoding = from_hf(config)
    assert time.process_time() - start < 1
    assert encoding.layer(9_999).name == "rope"


def test_ntk_of_gte():
    """The formula of the code that GTE's first configs are for; other models have other ones."""
    config = dict(SIZES, rope_theta=5e5, rope_scaling={"type": "ntk", "factor": 2.0})
    (part,) = from_hf(dict(config, model_type="gte")).parts
    size = SIZES["hidden_size"] // SIZES["num_attention_heads"]
    index = np.arange(size // 2)
    expected = (2 * 5e5) ** (-2 * index / size) / 2 ** (2 / size)
    np.testing.assert_allclose(part.metadata.frequencies({})[0], expected, rtol=1e-6)
    np.testing.assert_allclose(
        expected, 5e5 ** (-2 * index / size) / 2 ** ((index + 1) * 2 / size)
    )
    with pytest.raises(ValueError, match="rope_type must be .*, got 'ntk'"):
        from_hf(dict(config, model_type="llama"))
