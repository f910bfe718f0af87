"""`from_hf` on the config.json of decoders and multimodal models, key by key as published.

The texts are in `tests/published/decoders.json`, their sources in the README beside it.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import re

import numpy as np
import pytest
from helpers.huggingface_configs import SIZES, cases
from helpers.published_configs import DECODERS

from pe_jax.encodings import HookContext
from pe_jax.interop import from_hf
from pe_jax.interop.hf_registry import FAMILIES, FIRST_NAMES

YARN_ROPE = "rope_yarn(factor={}, original_length={}, {})"
LLAMA_3 = "rope_llama3(factor={}, original_length=8192, base={})"
EXAONE = (
    f"cycle({(LLAMA_3.format(16, 1000000) + '+window(max_distance=4095), ') * 3}none)"
)
MINISTRAL = (
    "+log_n(original_length={}, coefficient=0.1, smooth=True, "
    "stepped=True, count='earlier')"
)
LONGROPE = "rope_longrope(short=(...), long=(...), factor=32, original_length=4096"
GPT_OSS = YARN_ROPE.format(32, 4096, "truncate=False, base=150000")
# Long tuples of numbers are written as (...).
READ = {
    "aya-23-8b": "rope(layout='interleaved')",
    "deepseek-v2-lite": YARN_ROPE.format(
        40,
        4096,
        "mscale=0.707, mscale_all_dim=0.707, scale_logits=True, layout='interleaved'",
    ),
    "deepseek-v3": YARN_ROPE.format(
        40, 4096, "mscale=1, mscale_all_dim=1, scale_logits=True, layout='interleaved'"
    ),
    "devstral-small-2-24b": YARN_ROPE.format(
        48, 8192, "mscale=1, mscale_all_dim=1, base=100000000"
    )
    + MINISTRAL.format(8192),
    "exaone-4.0-32b": EXAONE,
    "exaone-4.5-33b": EXAONE,
    "gemma-2-9b": "cycle(rope+window(max_distance=4095), rope)",
    "gemma-2b": "rope",
    "gemma-3-1b-it": f"cycle({'rope+window(max_distance=511), ' * 5}rope(base=1000000))",
    "gpt-bigcode-santacoder": "learned_absolute",
    "gpt-j-6b": "rope(layout='interleaved', fraction=0.25)",
    "gpt-oss-120b": f"cycle({GPT_OSS}+window(max_distance=127), {GPT_OSS})",
    "gpt2": "learned_absolute",
    "kimi-k2-instruct-0905": YARN_ROPE.format(
        64,
        4096,
        "beta_fast=1, mscale=1, mscale_all_dim=1, scale_logits=True, base=50000, "
        "layout='interleaved'",
    ),
    "lfm2.5-vl-1.6b": "cycle("
    + "none, none, rope(base=1000000), " * 3
    + ", ".join(["none, rope(base=1000000)"] * 3)
    + ")",
    "llama-3.1-8b-instruct": LLAMA_3.format(8, 500000),
    "llama-3.2-90b-vision-instruct": "cycle("
    + f"{LLAMA_3.format(8, 500000)}, " * 3
    + f"none, {LLAMA_3.format(8, 500000)})",
    "llava-1.5-7b": "rope",
    "ministral-3-3b": YARN_ROPE.format(
        16, 16384, "mscale=1, mscale_all_dim=1, base=1000000"
    )
    + MINISTRAL.format(16384),
    "mistral-7b-v0.1": "rope+window(max_distance=4095)",
    "mixtral-8x7b-v0.1": "rope(base=1000000)",
    "mosaic-bert-base": "alibi",
    "mpt-7b-instruct": "alibi",
    "olmo-2-7b": "rope(base=500000)",
    "olmo-3.1-32b-instruct": "cycle("
    + "rope(base=500000)+window(max_distance=4095), " * 3
    + YARN_ROPE.format(8, 8192, "attention_factor=1.2079441541679836, base=500000")
    + ")",
    "phi-1": "rope(fraction=0.5)",
    "phi-3.5-vision-instruct": LONGROPE + ")+window(max_distance=131071)",
    "phi-4": "rope(base=250000)",
    "phi-4-mini": LONGROPE + ", fraction=0.75)+window(max_distance=262143)",
    "qwen1.5-moe-a2.7b": "rope(base=1000000)",
    "qwen2.5-3b": "rope(base=1000000)",
    "qwen2.5-vl-7b-instruct": "mrope(sections=(16, 24, 24), base=1000000)",
    "qwen3-8b": "rope(base=1000000)",
    "qwen3.5-9b": "cycle(none, none, none, mrope(sections=(11, 11, 10), interleaved=True, "
    "base=10000000, fraction=0.25))",
    "redpajama-3b-v1": "rope",
    "stablelm-2-zephyr-1.6b": "rope(fraction=0.25)",
    "stablelm-3b-4e1t": "rope(fraction=0.25)",
    "starcoder2-3b": "rope(base=1000000)+window(max_distance=4095)",
    "voxtral-mini-3b": "rope(base=100000000)",
}
# Families that transformers does not have.
REFUSED = {
    "baichuan-7b": "Without it: rope_theta is missing",
    "chatglm3-6b": "Without it: rope_theta is missing",
    "internlm2.5-7b": "Leave it out .*: that gives rope_dynamic_ntk",
    "minicpm-2b": "Leave it out .*: that gives rope_dynamic_ntk",
    "phi-2-msft": "Without it: rope_theta is missing",
    "phi-3.5-vision-remote": "Without it: sliding_window does not say",
    "qwen-1.8b": "Without it: use_dynamic_ntk changes the base",
}


def test_every_config_has_an_outcome():
    assert DECODERS.keys() == {*READ, *REFUSED}


@pytest.mark.parametrize("name", READ)
def test_published(name):
    encoding = from_hf(DECODERS[name]).name
    assert re.sub(r"\([\d., ]{60,}\)", "(...)", encoding) == READ[name]


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_advice_that_works(name):
    config = copy.deepcopy(DECODERS[name])
    with pytest.raises(ValueError, match=REFUSED[name]) as caught:
        from_hf(config)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    if found := re.search(r"Leave it out .*: that gives (.*)\.$", message):
        del config["model_type"]
        assert from_hf(config).name == found[1]
    assert "Did you mean" not in message


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("qwen3.5-9b", "rope_axial(base=10000)"),
        (
            "qwen2.5-vl-7b-instruct",
            "model_type 'qwen2_5_vl_vision' is not supported: most layers",
        ),
        (
            "exaone-4.5-33b",
            "model_type 'exaone4_5_vision' is not supported: most layers",
        ),
        (
            "devstral-small-2-24b",
            "model_type 'pixtral' is not supported: rows have every other",
        ),
        (
            "llama-3.2-90b-vision-instruct",
            "'mllama_vision_model' is not supported: its code",
        ),
    ],
)
def test_towers_of_published_files(name, outcome):
    try:
        found = from_hf(DECODERS[name], part="vision_config").name
    except ValueError as error:
        found = str(error)
    assert outcome in found


# --- keys ---------------------------------------------------------------------------------------

IGNORED = dict(
    _attn_implementation_autoset=True, num_labels=3, auto_map={"AutoModel": "modeling.Model"},
    sentence_transformers={"version": "5"}, matryoshka_dimensions=[8], bos_token="<s>",
    alibi=False, rotary_pct=0.5, tie_word_embeddings=True, task_specific_params={},
)  # fmt: skip
# What each of these says matters to some family alone.
POSITIONAL = dict(
    position_embedding_type="sans_pos", layer_types=["full_attention"], sliding_window="all",
    no_rope_layers=[0], attention_chunk_size=2, qk_rope_head_dim=2, rope_interleave=True,
    partial_rotary_factor=0.5, rotary_dim=8, embedding_size=8, use_sliding_window=True,
    attn_config={"alibi": False}, full_attention_interval=2, global_head_dim=8,
    local_attention=4, layer_rope_theta=[0], original_max_position_embeddings=2,
)  # fmt: skip


def test_keys_that_a_class_ignores_are_ignored():
    """Whatever they say; a file may have keys of other families, such as Qwen's windows."""
    for model_type, config, name in cases():
        kind = (
            model_type if model_type in FAMILIES else model_type.removesuffix("_text")
        )
        family = FAMILIES[FIRST_NAMES.get(kind, kind)]
        foreign = {
            key: value for key, value in POSITIONAL.items() if key not in family.reads()
        }
        ignored = {key: value for key, value in IGNORED.items() if key not in config}
        if "partial_rotary_factor" in family.defaults:
            ignored.pop("rotary_pct", None)
        assert from_hf({**ignored, **foreign, **config}).name == name, model_type


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (dict(model_type="llama", alibi_starting_size=512), "alibi_starting_size adds ALiBi"),
        (dict(model_type="falcon", alibi=True), r"alibi adds ALiBi divided by sqrt\(head_size\)"),
        (dict(model_type="xlm-roberta", position_embedding_type="rotary"),
         "position_embedding_type must be absolute or .*, got 'rotary'"),
        (dict(model_type="distilbert", sinusoidal_pos_embds=True), "sinusoidal_pos_embds makes"),
        (dict(model_type="mpt", attn_config={"alibi": False}), "attn_config.alibi must be True"),
        (dict(model_type="mpt", attn_config={"prefix_lm": True}), "attn_config.prefix_lm must be"),
        (dict(model_type="mpt", attn_config={"rope": True}), "attn_config.rope must be False"),
        (dict(model_type="mpt", attn_config={"alibi_bias_max": 0}), "attn_config.alibi_bias_max"),
        (dict(model_type="qwen2", rope_theta=1e4, use_logn_attn=True), "use_logn_attn scales"),
        (dict(model_type="deepseek_v3", qk_rope_head_dim=10**18), "qk_rope_head_dim must be an"),
        (dict(model_type="albert", embedding_size=10**18), "embedding_size must be an integer"),
        (dict(model_type="llama", head_dim=15), "head_dim must be even"),
        (dict(model_type="mistral", sliding_window=1), "sliding_window must let a query see"),
        (dict(model_type="qwen2_vl", rope_scaling=dict(type="mrope", mrope_section=[2, 3, 4])),
         "mrope_section must add up to 8"),
        (dict(model_type="granite_swa", layer_rope_theta=[0, 1]), "layer_rope_theta must have an"),
        (dict(model_type="stablelm", partial_rotary_factor=2), "partial_rotary_factor must be"),
        (dict(model_type="llama", rope_scaling=dict(rope_type="yarn", factor=0.5)), "factor must"),
    ],
)  # fmt: skip
def test_refused_by_the_key(config, match):
    with pytest.raises(ValueError, match=f"^{match}"):
        from_hf({**SIZES, **config})


@pytest.mark.parametrize(
    ("config", "advice", "followed"),
    [
        (dict(qk_rope_head_dim=16), r"that has it: (\w+), (\w+), .* Add that",
         lambda found: dict(model_type=found[2])),
        (dict(full_attention_interval=2), r"that has it: (\w+)",
         lambda found: dict(model_type=found[1])),
        (dict(sliding_window=8), "Add layer_types or model_type",
         lambda found: dict(layer_types=["full_attention", "sliding_attention"] * 4)),
        (dict(sliding_window=8), "Add layer_types or model_type",
         lambda found: dict(model_type="mistral")),
        (dict(model_type="stablelm", partial_rotary_factor=0.1),
         r"Use partial_rotary_factor=([\d.]+)",
         lambda found: dict(partial_rotary_factor=float(found[1].rstrip(".")))),
        (dict(model_type="gemma2", rope_parameters={"full_attention": {"rope_theta": 1.0}}),
         "but not 'sliding_attention'. Add it; use None",
         lambda found: dict(rope_parameters={"full_attention": None, "sliding_attention": {}})),
        (dict(model_type="lama"), r"Did you mean (\w+)", lambda found: dict(model_type=found[1])),
    ],
)  # fmt: skip
def test_advice_works(config, advice, followed):
    config = {**SIZES, "rope_theta": 1e4, **config}
    if config.get("model_type") == "lama":
        del config["rope_theta"]
    with pytest.raises(ValueError, match=advice) as caught:
        from_hf(config)
    found = re.search(advice, str(caught.value))
    assert from_hf(config | followed(found)).name


@pytest.mark.parametrize("wrong", [5, 1.5, [], {}, ("a",), b"x", "sliding"])
def test_arguments_of_wrong_types(wrong):
    read = from_hf.__wrapped__ if hasattr(from_hf, "__wrapped__") else from_hf
    for argument in ("layer_type", "layout"):
        with pytest.raises(ValueError, match=f"^{argument} must be"):
            read(dict(SIZES, model_type="gemma2"), **{argument: wrong})


def test_nested_configs():
    """The language model of a multimodal one, under any of its names, of the outer model's type."""
    inner = dict(SIZES, rope_theta=1e6)
    for key in ("text_config", "llm_config", "language_config"):
        assert from_hf({"model_type": "qwen2", key: inner}).name == "rope(base=1000000)"
        outer = {"model_type": "internvl_chat", key: dict(inner, model_type="qwen2")}
        assert (
            from_hf({"model_type": "x", "thinker_config": outer}).name
            == "rope(base=1000000)"
        )
    deep = dict(inner, model_type="qwen2")
    for _ in range(5_000):
        deep = {"text_config": deep}
    assert from_hf(deep).name == "rope(base=1000000)"


def test_layers_that_attend_to_images():
    config = dict(SIZES, model_type="mllama_text_model", cross_attention_layers=None)
    assert [bool(from_hf(config).layer(i).parts) for i in range(8)] == [
        i != 3 for i in range(8)
    ]


def test_slopes_of_mpt():
    """StoryWriter's `alibi_bias_max` of 16 makes slopes from 2^-0.5 to 2^-16."""
    config = dict(
        model_type="mpt", d_model=128, n_heads=32, attn_config={"alibi_bias_max": 16}
    )
    bias = (
        from_hf(config)
        .parts[0]
        .offsets.bias(
            {},
            np.asarray([-1]),
            HookContext(positions_q=range(0), positions_k=range(0)),
        )
    )
    np.testing.assert_allclose(
        -np.asarray(bias)[0], 2.0 ** -(np.arange(1, 33) / 2), rtol=1e-6
    )


# --- against transformers -----------------------------------------------------------------------

parity = pytest.mark.skipif(
    not (
        importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")
    ),
    reason="needs the extra `parity`",
)


@pytest.mark.torch
@parity
@pytest.mark.parametrize(
    "name",
    [
        "aya-23-8b", "deepseek-v2-lite", "deepseek-v3", "devstral-small-2-24b",
        "kimi-k2-instruct-0905", "llama-3.1-8b-instruct", "llama-3.2-90b-vision-instruct",
        "mistral-7b-v0.1", "olmo-2-7b", "phi-1", "phi-3.5-vision-instruct", "phi-4-mini",
        "qwen3-8b", "redpajama-3b-v1", "stablelm-3b-4e1t", "starcoder2-3b", "voxtral-mini-3b",
    ],
)  # fmt: skip
def test_frequencies_of_published_files(name):
    """Those of transformers' rotary module, built from the same file."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = copy.deepcopy(DECODERS[name])
    ours = from_hf(config)
    config = config.get("text_config", config)
    kind = CONFIG_MAPPING[config["model_type"].replace("kimi_k2", "deepseek_v3")]
    theirs = kind(
        **{key: value for key, value in config.items() if key != "model_type"}
    )
    module = importlib.import_module(
        kind.__module__.replace("configuration_", "modeling_")
    )
    rotary = next(
        value
        for key, value in vars(module).items()
        if key.endswith("RotaryEmbedding") and "Vision" not in key
    )
    (part, *_) = ours.layer(0).parts
    found = np.asarray(part.metadata.frequencies({})).reshape(-1)
    np.testing.assert_allclose(found, rotary(theirs).inv_freq.numpy(), rtol=2e-6)


@pytest.mark.torch
@parity
def test_defaults_of_the_classes():
    """A config with nothing but its model_type reads as the class with all its defaults."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    different = {}
    for name in FAMILIES:
        model_type = f"{name}_text" if f"{name}_text" in CONFIG_MAPPING else name
        if model_type not in CONFIG_MAPPING:
            continue  # NEZHA, which transformers 5 has no more.
        # Names of others; no length; layers that must be listed.
        if name in ("kimi_k2", "exaone4_5", "bloom", "zamba2"):
            continue
        outcomes = []
        for config in (CONFIG_MAPPING[model_type]().to_dict(), {}):
            try:
                outcomes.append(from_hf({**config, "model_type": model_type}).name)
            except ValueError as error:
                outcomes.append(str(error))
        if outcomes[0] != outcomes[1]:
            different[name] = outcomes
    assert not different
