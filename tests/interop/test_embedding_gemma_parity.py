"""EmbeddingGemma: hidden states, gradients and exports agree with transformers, which has no head.

Decoders of the same type are refused, as are windows that were halved when they were saved.
"""

import copy
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.byte_level import byte_level_for
from safetensors.numpy import load_file

from pe_jax.interop import load_encoder, save_encoder
from pe_jax.models import Bert, hidden_states

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not (
            importlib.util.find_spec("torch")
            and importlib.util.find_spec("transformers")
        ),
        reason="PyTorch and transformers, the extra parity, are not installed",
    ),
]
# Heads are larger than D / H, as in the published model, and windows shorter than the texts.
THEIRS = dict(
    vocab_size=37, hidden_size=12, num_hidden_layers=4, num_attention_heads=3,
    num_key_value_heads=1, head_dim=6, query_pre_attn_scalar=6, intermediate_size=19,
    max_position_embeddings=64, sliding_window=8, sliding_window_pattern=3, rope_theta=1e6,
    rope_local_base_freq=1e4, use_bidirectional_attention=True, pad_token_id=0,
    initializer_range=0.05,
)  # fmt: skip
VALID = np.arange(17) < np.array([[17], [11], [2]])
TOKENS = np.where(VALID, np.random.default_rng(0).integers(5, 37, VALID.shape), 0)
POSITION = "rope+window(max_distance=4)"


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


@pytest.fixture
def model(torch, transformers):
    torch.manual_seed(0)
    model = transformers.Gemma3TextModel(transformers.Gemma3TextConfig(**THEIRS)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model


def run(torch, model):
    mask = torch.tensor(VALID).long()
    return model(torch.tensor(TOKENS), attention_mask=mask, output_hidden_states=True)


def test_states_and_gradients(torch, model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    encoder = load_encoder(tmp_path / "model")
    assert encoder.unread == () and encoder.params.keys() == {"bert"}
    assert encoder.config.encoding().name == (
        f"cycle({POSITION}, {POSITION}, rope(base=1000000))"
    )
    weights = np.random.default_rng(1).normal(size=(*VALID.shape, 12))
    weights = np.float32(weights * VALID[:, :, None])
    out = run(torch, model)
    (out.last_hidden_state * torch.tensor(weights)).sum().backward()
    want = np.stack([state.detach().numpy() for state in out.hidden_states])
    params, config = encoder.params["bert"], encoder.config
    got = hidden_states(config, params, TOKENS, None, jnp.asarray(VALID))
    np.testing.assert_allclose(np.asarray(got)[:, VALID], want[:, VALID], atol=1e-5)

    def loss(params):
        states = Bert(config).apply(
            {"params": params}, TOKENS, None, jnp.asarray(VALID)
        )
        return (states * weights).sum()

    ours = jax.grad(loss)(params)
    theirs = dict(model.named_parameters())
    # Ours are 1 + theirs in norms, and theirs times sqrt(D) in embeddings.
    pairs = {
        "embed_tokens": ours["token"]["embedding"] * 12**0.5,
        "norm": ours["final_norm"]["scale"],
        "layers.1.self_attn.q_norm": ours["layer_1"]["attention"]["query_norm"]["scale"],
        "layers.1.self_attn.k_norm": ours["layer_1"]["attention"]["key_norm"]["scale"],
        "layers.2.post_attention_layernorm": ours["layer_2"]["attended_norm"]["scale"],
        "layers.2.post_feedforward_layernorm": ours["layer_2"]["mlp_output_norm"]["scale"],
        "layers.3.mlp.down_proj": ours["layer_3"]["down"]["kernel"].T,
    }  # fmt: skip
    gradients = {name: theirs[f"{name}.weight"].grad.numpy() for name in pairs}
    largest = max(np.abs(gradient).max() for gradient in gradients.values())
    for name, gradient in gradients.items():
        np.testing.assert_allclose(
            pairs[name] / largest, gradient / largest, atol=1e-5, err_msg=name
        )


def test_round_trip(torch, transformers, model, tmp_path):
    model.save_pretrained(tmp_path / "in")
    encoder = load_encoder(tmp_path / "in")
    words = byte_level_for({"model_type": "gemma3_text", **THEIRS})
    name = save_encoder(
        tmp_path / "out", encoder.config, encoder.params, words, family="gemma3_text"
    )
    assert name == "Gemma3TextModel"
    before, after = (
        load_file(tmp_path / folder / "model.safetensors") for folder in ("in", "out")
    )
    assert before.keys() == after.keys()
    for path, tensor in before.items():
        np.testing.assert_allclose(after[path], tensor, atol=2e-7, err_msg=path)
    again = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    with torch.inference_mode():
        want = run(torch, model).last_hidden_state.numpy()
        got = run(torch, again).last_hidden_state.numpy()
    np.testing.assert_allclose(got[VALID], want[VALID], atol=1e-5)
    assert load_encoder(tmp_path / "out").config == encoder.config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(use_bidirectional_attention=False),
            "use_bidirectional_attention must be True, got False",
        ),
        (dict(query_pre_attn_scalar=8), "query_pre_attn_scalar must be 6"),
        (
            dict(attn_logit_softcapping=30.0),
            "attn_logit_softcapping must be left out, got 30.0",
        ),
    ],
)
def test_what_is_another_model(model, transformers, tmp_path, changes, message):
    other = copy.deepcopy(model)
    other.config = transformers.Gemma3TextConfig(**THEIRS | changes)
    other.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_encoder(tmp_path)
