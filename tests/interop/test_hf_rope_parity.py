"""Rotary encodings, windows and settings against Hugging Face's transformers itself.

Runs where the extra `parity` is installed; its version 5 reads the spelling of version 4 as well.
"""

import copy
import importlib.util

import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax.attention import attention
from pe_jax.encodings import HookContext
from pe_jax.encodings.rotary.rope import rotate_heads
from pe_jax.interop import from_hf

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

HEAD, LENGTH = 64, 256
SIZES = dict(
    hidden_size=2 * HEAD, num_attention_heads=2, max_position_embeddings=LENGTH
)
SHORT, LONG = ([1 + m / step for m in range(HEAD // 2)] for step in (32, 4))

# Settings of a type, without its base: real models' where there are any.
TYPES = {
    "default": {},
    "partial": {"partial_rotary_factor": 0.5},
    "linear": dict(rope_type="linear", factor=8.0),
    "dynamic": dict(rope_type="dynamic", factor=4.0),
    "llama3": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=128),
    "yarn": dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=128),
    "yarn, gpt-oss": dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0,
                          truncate=False, original_max_position_embeddings=128),
    "yarn, deepseek": dict(rope_type="yarn", factor=40.0, beta_fast=16, beta_slow=2, mscale=0.707,
                           mscale_all_dim=1.4, original_max_position_embeddings=128),
    "yarn, explicit": dict(rope_type="yarn", factor=40.0, attention_factor=0.7,
                           mscale=0.707, mscale_all_dim=1.4, original_max_position_embeddings=128),
    "longrope": dict(rope_type="longrope", factor=4.0, short_factor=SHORT, long_factor=LONG,
                     original_max_position_embeddings=128),
    "longrope, ratio": dict(rope_type="longrope", short_factor=SHORT, long_factor=LONG,
                            original_max_position_embeddings=128),
    "proportional": dict(rope_type="proportional", partial_rotary_factor=0.25),
    "proportional, stretched": dict(rope_type="proportional", partial_rotary_factor=0.3,
                                    factor=4.0),
}  # fmt: skip


def spelled(settings, version, base=50_000.0):
    """A config with rope settings as version 4 or 5 writes them."""
    if version == 5:
        return {**SIZES, "rope_parameters": {**settings, "rope_theta": base}}
    if settings == TYPES["partial"]:  # GPT-NeoX's keys.
        return {
            **SIZES,
            "rotary_emb_base": base,
            "rotary_pct": settings["partial_rotary_factor"],
        }
    inside = {
        key: value for key, value in settings.items() if key != "partial_rotary_factor"
    }
    outside = {key: value for key, value in settings.items() if key not in inside}
    return {**SIZES, **outside, "rope_theta": base, "rope_scaling": inside or None}


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def llama():
    return pytest.importorskip("transformers.models.llama.modeling_llama")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("length", [64, 200, 4096])
def test_tables(torch, llama, kind, version, length):
    """Frequencies and scale, and rotated heads to the precision of float32 angles."""
    if (
        kind == "partial"
    ):  # Llama's own default rotates all dimensions, whatever it is told.
        llama = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
        family = llama.GPTNeoXConfig, llama.GPTNeoXRotaryEmbedding
    else:
        family = llama.LlamaConfig, llama.LlamaRotaryEmbedding
    config = spelled(TYPES[kind], version)
    theirs = family[1](family[0](**config))
    positions = torch.arange(length)[None]
    cos, sin = theirs(torch.zeros(1), positions)
    (part,) = from_hf(config).parts

    # Heads with (1, 0) in each pair become (c cos, c sin).
    at = np.arange(length)
    pairs = cos.shape[-1] // 2
    x = np.zeros((1, length, 1, HEAD), np.float32)
    x[..., :pairs] = 1
    (rotated, _, _) = part.map_qkv(
        {}, x, x, x, HookContext(positions_q=at, positions_k=at)
    )
    ours = np.asarray(rotated)[0, :, 0, : 2 * pairs]
    want = np.concatenate([cos[0, :, :pairs], sin[0, :, :pairs]], axis=-1)
    # float32 frequencies differ by an ulp or two, and by as many at the farthest position.
    np.testing.assert_allclose(ours, want, atol=3e-7 * length + 1e-6)

    # The angles of their own frequencies: the same to the last digits.
    scale, w = theirs.attention_scaling, theirs.inv_freq.numpy()[None]
    exact = rotate_heads(x, at, w, "half", float(scale))
    np.testing.assert_allclose(np.asarray(exact)[0, :, 0, : 2 * pairs], want, atol=1e-6)
    np.testing.assert_allclose(
        np.hypot(ours[:, :pairs], ours[:, pairs:]), scale, rtol=1e-6
    )


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", [one for one in TYPES if one != "partial"])
@pytest.mark.parametrize("length", [64, 200, 4096])
def test_frequencies(torch, llama, kind, version, length):
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    config = spelled(TYPES[kind], version)
    parsed = llama.LlamaConfig(**config)
    default = llama.LlamaRotaryEmbedding.compute_default_rope_parameters
    function = utils.ROPE_INIT_FUNCTIONS.get(TYPES[kind].get("rope_type"), default)
    want, _ = function(parsed, device="cpu", seq_len=length)
    ours = frequencies(from_hf(config), length)
    np.testing.assert_allclose(ours, want.numpy(), rtol=1e-6)


def frequencies(encoding, length):
    """Angles of the key at position 1, next to one at the end: these are the frequencies."""
    at = np.array([1, length - 1])
    x = np.zeros((1, 2, 1, HEAD), np.float32)
    x[..., : HEAD // 2] = 1
    _, k, _ = encoding.parts[0].map_qkv(
        {}, x, x, x, HookContext(positions_q=at, positions_k=at)
    )
    rotated = np.asarray(k, np.float64)[0, 0, 0]
    return np.arctan2(rotated[HEAD // 2 :], rotated[: HEAD // 2])


LAYERS = dict(SIZES, num_hidden_layers=6)
BY_LAYER = {"full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        dict(global_rope_theta=160_000.0, local_rope_theta=10_000.0, local_attention=16,
             global_attn_every_n_layers=3),
        dict(rope_parameters=BY_LAYER, local_attention=16,
             layer_types=["sliding_attention", "full_attention"] * 3),
    ],
)  # fmt: skip
def test_modernbert(torch, config):
    """Its layers' attention, from the same hidden states: bases, windows and schedule."""
    theirs = pytest.importorskip("transformers.models.modernbert.modeling_modernbert")
    config = {**LAYERS, **config}
    ours = from_hf(config)
    parsed = theirs.ModernBertConfig(
        **config, vocab_size=32, intermediate_size=8, pad_token_id=0, eos_token_id=1,
        bos_token_id=1, cls_token_id=1, sep_token_id=1, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = theirs.ModernBertModel(parsed).eval()
    seen = {}

    def hook(module, arguments, keywords, out):
        x = keywords.get("hidden_states", arguments[0] if arguments else None)
        seen[module.layer_idx] = x, out[0]

    for layer in model.layers:
        layer.attn.register_forward_hook(hook, with_kwargs=True)
    with torch.inference_mode():
        model(input_ids=torch.randint(2, 32, (2, 40)))
    assert sorted(seen) == list(range(6))
    for layer, (x, out) in seen.items():
        own = model.layers[layer].attn
        weights = own.Wqkv.weight.detach().numpy().reshape(3, 2, HEAD, -1)
        q, k, v = (
            jnp.asarray(np.einsum("bld,hfd->blhf", x.numpy(), one)) for one in weights
        )
        encoding = ours.layer(layer)
        mixed = np.asarray(attention(q, k, v, encoding, {})).reshape(2, 40, -1)
        np.testing.assert_allclose(
            mixed @ own.Wo.weight.detach().numpy().T, out.numpy(), atol=1e-5
        )


def test_windows(torch):
    """How far a query attends in each kind of model, from transformers' own masks."""
    masks = pytest.importorskip("transformers.masking_utils")
    gemma = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    base = dict(SIZES, rope_theta=1e4)
    size, query = 6, torch.tensor(20)

    def reach(allowed):
        return max(
            abs(j - 20) for j in range(40) if allowed(0, 0, query, torch.tensor(j))
        )

    def ours(**config):
        return from_hf({**base, **config}, layer_type="sliding_attention").window.right

    decoder = masks.sliding_window_causal_mask_function(size)
    assert ours(sliding_window=size) == reach(decoder)
    encoder = masks.sliding_window_bidirectional_mask_function(size)
    assert ours(sliding_window=size, is_causal=False) == reach(encoder)
    parsed = gemma.Gemma3TextConfig(
        sliding_window=size, use_bidirectional_attention=True
    )
    both = gemma._bidirectional_window_overlay(parsed.sliding_window)
    assert ours(sliding_window=size, use_bidirectional_attention=True) == reach(both)


@pytest.mark.parametrize("scaling", [None, dict(rope_type="linear", factor=8.0)])
def test_gemma3(torch, scaling):
    """Two bases; version 4's rope_scaling is of the layers with full attention alone."""
    theirs = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    config = dict(LAYERS, head_dim=HEAD, rope_theta=1e6, rope_local_base_freq=1e4,
                  sliding_window=8, sliding_window_pattern=3, rope_scaling=scaling)  # fmt: skip
    parsed = theirs.Gemma3TextConfig(**config)
    tables = theirs.Gemma3RotaryEmbedding(parsed)
    ours = from_hf(config)
    windowed = [any(p.key == "window" for p in ours.layer(i).parts) for i in range(6)]
    assert windowed == [one == "sliding_attention" for one in parsed.layer_types]
    for layer, kind in enumerate(parsed.layer_types):
        want = getattr(tables, f"{kind}_inv_freq").numpy()
        np.testing.assert_allclose(frequencies(ours.layer(layer), 64), want, rtol=1e-6)
    again = from_hf(parsed.to_dict())  # As version 5 saves it.
    assert again.name == ours.name


# A value of each setting that some type reads, other than its default.
SETTINGS = {
    "factor": 3.0,
    "original_max_position_embeddings": 64,
    "attention_factor": 1.7,
    "beta_fast": 20.0,
    "beta_slow": 2.0,
    "mscale": 0.5,
    "mscale_all_dim": 0.7,
    "truncate": False,
    "low_freq_factor": 2.0,
    "high_freq_factor": 3.0,
    "short_factor": LONG,
    "long_factor": SHORT,
    "alpha": 1000.0,
    "llama_4_scaling_beta": 0.1,
    "mrope_section": [8, 12, 12],
    "mrope_interleaved": True,
}


def their_tables(llama, settings, length):
    """Frequencies and scale of a Llama; the error for settings that transformers cannot read."""
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    default = llama.LlamaRotaryEmbedding.compute_default_rope_parameters
    function = utils.ROPE_INIT_FUNCTIONS.get(settings.get("rope_type"), default)
    try:
        config = llama.LlamaConfig(**{**SIZES, "rope_parameters": dict(settings)})
        tables, factor = function(config, device="cpu", seq_len=length)
    except Exception as error:  # Of several classes, some of them not transformers'.
        return error
    return tables.numpy(), factor


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "partial"])
@pytest.mark.parametrize("change", ["null", "value"])
def test_settings_of_other_types(torch, llama, kind, change):
    """A setting that changes nothing in a Llama is ignored; one that changes something is read."""
    read = []
    for key, value in SETTINGS.items():
        settings = {
            **TYPES[kind],
            "rope_theta": 5e4,
            key: value if change == "value" else None,
        }
        for length in (64, 4096):
            theirs = their_tables(llama, settings, length)
            if isinstance(theirs, Exception):
                continue
            ours = from_hf(
                {**SIZES, "model_type": "llama", "rope_parameters": settings}
            )
            np.testing.assert_allclose(
                frequencies(ours, length), theirs[0], rtol=2e-6, err_msg=key
            )
            np.testing.assert_allclose(scale(ours), theirs[1], rtol=1e-6, err_msg=key)
            read.append(key)
    assert len(read) > len(SETTINGS)


def scale(encoding):
    """The length of a rotated pair (1, 0)."""
    x = np.zeros((1, 1, 1, HEAD), np.float32)
    x[..., : HEAD // 2] = 1
    rotated = encoding.parts[0].map_qkv(
        {}, x, x, x, HookContext(positions_q=np.arange(1), positions_k=np.arange(1))
    )[0]
    return np.hypot(rotated[..., 0], rotated[..., HEAD // 2]).item()


def test_a_length_next_to_the_settings_wins(torch, llama):
    """`original_max_position_embeddings` of the config itself, in any family."""
    parameters = {**TYPES["yarn"], "rope_theta": 5e4}
    config = {
        **SIZES,
        "original_max_position_embeddings": 32,
        "rope_parameters": dict(parameters),
    }
    want = llama.LlamaRotaryEmbedding(llama.LlamaConfig(**config)).inv_freq.numpy()
    config["rope_parameters"] = parameters
    ours = from_hf({**config, "model_type": "llama"})
    np.testing.assert_allclose(frequencies(ours, 64), want, rtol=1e-6)


@pytest.mark.parametrize("inside", [{}, {"truncate": False}])
@pytest.mark.parametrize("outside", [{}, {"truncate": False}])
def test_settings_next_to_those_by_layer_type(torch, inside, outside):
    """`truncate` is read there and nowhere else; other settings are not read there."""
    theirs = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    types = ["full_attention", "sliding_attention"]
    full = {**TYPES["yarn"], "rope_theta": 5e4, **inside}
    sliding = {"rope_type": "default", "rope_theta": 1e4, "factor": 3.0}
    parameters = {types[0]: full, types[1]: sliding, "factor": 3.0, **outside}
    config = dict(
        SIZES, head_dim=HEAD, num_hidden_layers=2, layer_types=types, sliding_window=8
    )
    ours = from_hf(
        {**config, "model_type": "gemma3_text", "rope_parameters": parameters}
    )
    parsed = theirs.Gemma3TextConfig(
        **config, rope_parameters=copy.deepcopy(parameters)
    )
    tables = theirs.Gemma3RotaryEmbedding(parsed)
    for layer, kind in enumerate(types):
        want = getattr(tables, f"{kind}_inv_freq").numpy()
        np.testing.assert_allclose(frequencies(ours.layer(layer), 64), want, rtol=1e-6)
