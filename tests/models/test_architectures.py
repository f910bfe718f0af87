"""Settings of the encoder: which parameters they make, and outputs against a NumPy encoder."""

import dataclasses
import functools
import math

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax.models import (
    Bert,
    BertConfig,
    BertForMaskedLM,
    hidden_states,
    preset,
    projections,
)
from pe_jax.models.config import MODERNBERT
from pe_jax.models.flops import forward_flops
from pe_jax.models.heads import Pooler

SIZES = dict(
    vocab_size=23, hidden_size=12, num_layers=2, num_heads=6, intermediate_size=20
)
BERT = dataclasses.replace(BertConfig(**SIZES, initializer_stddev=0.4), position="none")
MODERN = {key: value for key, value in MODERNBERT.items() if key != "position"}
LLAMA = dict(
    pre_norm=True,
    norm="rms_norm",
    norm_bias=False,
    layer_norm_epsilon=1e-6,
    embedding_norm=False,
    final_norm=True,
    activation="silu",
    gated_mlp=True,
    attention_bias=False,
    up_bias=False,
    down_bias=False,
    num_token_types=0,
    num_key_heads=2,
    head_dense=False,
    tied_decoder=False,
    decoder_bias=False,
)
VARIANTS = {
    "bert": {},
    "modernbert": MODERN,
    "llama": LLAMA,
    "one key head": dict(num_key_heads=1, num_token_types=1, activation="gelu_tanh"),
    "relu": dict(
        activation="relu", head_activation="silu", head_norm=False, down_bias=False
    ),
    "post-norm, gated": dict(gated_mlp=True, activation="silu", first_norm=False),
}


def variant(name, **changes):
    return dataclasses.replace(BERT, **{**VARIANTS[name], **changes})


def arguments(config):
    rng = np.random.default_rng(0)
    tokens = rng.integers(config.vocab_size, size=(2, 7))
    token_type_ids = rng.integers(2, size=tokens.shape)
    at = np.tile(np.arange(7), (2, 1))
    valid = np.array([[True] * 7, [True] * 4 + [False] * 3])
    return tokens, at, token_type_ids, valid


def random_params(config):
    """Parameters of the encoder and the masked-LM head, biases and scales drawn too."""
    tokens, at, *_ = arguments(config)
    model = BertForMaskedLM(config)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, masked_positions=at)[
        "params"
    ]
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: rng.normal(0, 0.4, x.shape).astype(np.float32), params
    )


# --- The encoder in NumPy, float64 ---


def activation(name, x):
    erf = np.vectorize(math.erf)
    return {
        "gelu": lambda: x * (1 + erf(x / np.sqrt(2))) / 2,
        "gelu_tanh": lambda: (
            x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
        ),
        "silu": lambda: x / (1 + np.exp(-x)),
        "relu": lambda: np.maximum(x, 0),
    }[name]()


def norm(config, params, x):
    if config.norm == "layer_norm":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.layer_norm_epsilon)
    return x * params["scale"] + params.get("bias", 0)


def dense(params, x, axes=1):
    out = np.tensordot(x, params["kernel"], axes)
    return out + params.get("bias", 0)


def self_attention(config, params, x, valid):
    if "qkv" in params:
        q, k, v = np.moveaxis(dense(params["qkv"], x), 2, 0)
    else:
        q = dense(params["query"], x)
        k, v = np.moveaxis(dense(params["key_value"], x), 2, 0)
        k, v = (
            np.repeat(y, config.num_heads // config.key_heads, axis=2) for y in (k, v)
        )
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(np.where(valid[:, None, None], logits, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    return dense(params["out"], np.einsum("bhqk,bkhd->bqhd", weights, v), axes=2)


def mlp(config, params, x):
    y = dense(params["up"], x)
    if config.gated_mlp:
        y = activation(config.activation, y[:, :, 0]) * y[:, :, 1]
    else:
        y = activation(config.activation, y)
    return dense(params["down"], y)


def numpy_encoder(config, params, tokens, token_type_ids, valid):
    """Embeddings and the outputs of all layers."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = params["token"]["embedding"][tokens]
    if config.num_token_types:
        x = (
            x
            + params["token_type"]["embedding"][
                token_type_ids * (config.num_token_types > 1)
            ]
        )
    if config.embedding_norm:
        x = norm(config, params["embedding_norm"], x)
    states = [x]
    for i in range(config.num_layers):
        layer = params[f"layer_{i}"]
        sublayers = {
            "attention_norm": lambda x, p=layer: self_attention(
                config, p["attention"], x, valid
            ),
            "mlp_norm": lambda x, p=layer: mlp(config, p, x),
        }
        for name, sublayer in sublayers.items():
            scales = layer.get(name)
            normalise = lambda x, p=scales: x if p is None else norm(config, p, x)
            x = (
                x + sublayer(normalise(x))
                if config.pre_norm
                else normalise(x + sublayer(x))
            )
        states.append(x)
    if config.final_norm:
        states[-1] = norm(config, params["final_norm"], x)
    return np.stack(states)


def numpy_head(config, params, x, embedding):
    if config.head_dense:
        x = activation(config.head_activation, dense(params["dense"], x))
        x = norm(config, params["norm"], x) if config.head_norm else x
    decoder = params["decoder"] if not config.tied_decoder else embedding
    return x @ np.asarray(decoder, np.float64).T + params.get("bias", 0)


@pytest.mark.parametrize("name", VARIANTS)
def test_hidden_states_and_logits_against_numpy(name):
    config = variant(name)
    tokens, at, token_type_ids, valid = arguments(config)
    params = random_params(config)
    want = numpy_encoder(config, params["bert"], tokens, token_type_ids, valid)

    @jax.jit
    def run(params):
        states = hidden_states(config, params["bert"], tokens, token_type_ids, valid)
        model = BertForMaskedLM(config)
        return states, model.apply(
            {"params": params}, tokens, token_type_ids, valid, masked_positions=at
        )

    got, logits = run(params)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    head = numpy_head(
        config, params["masked_lm"], want[-1], params["bert"]["token"]["embedding"]
    )
    np.testing.assert_allclose(logits, head, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_pooled_states_against_numpy(name, pooling):
    """Of rows of 7 and 4 tokens; what is at padding has no effect."""
    config = variant(name, classifier_pooling=pooling)
    hidden = np.random.default_rng(2).normal(size=(2, 7, 12)).astype(np.float32)
    valid = np.arange(7) < np.array([[7], [4]])
    pooler = Pooler(config)
    shapes = jax.eval_shape(pooler.init, jax.random.key(0), hidden)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda x: rng.normal(0, 0.4, x.shape).astype(np.float32), shapes
    )
    rows = [hidden[0], hidden[1, :4]]
    x = np.stack([row[0] if pooling == "cls" else row.mean(0) for row in rows])
    if name == "modernbert":
        x = norm(config, params["norm"], activation("gelu", dense(params["dense"], x)))
    else:
        x = np.tanh(dense(params["dense"], x))
    for mask in (valid, valid.astype(np.int32)):
        got = jax.jit(pooler.apply)({"params": params}, hidden, mask)
        np.testing.assert_allclose(got, x, atol=1e-5)


# --- Parameters ---


def shapes(config):
    params = random_params(config)
    return {
        path: x.shape
        for path, x in flax.traverse_util.flatten_dict(params, sep="/").items()
    }


@pytest.mark.parametrize(
    ("settings", "gone", "new"),
    [
        (dict(attention_bias=False), {"qkv/bias", "out/bias"}, {}),
        (dict(up_bias=False), {"up/bias"}, {}),
        (dict(down_bias=False), {"down/bias"}, {}),
        (dict(gated_mlp=True), {"up/kernel", "up/bias"}, {"up/kernel": (12, 2, 20)}),
        (
            dict(embedding_norm=False),
            {"embedding_norm/scale", "embedding_norm/bias"},
            {},
        ),
        (
            dict(final_norm=True),
            {},
            {"final_norm/scale": (12,), "final_norm/bias": (12,)},
        ),
        (dict(num_token_types=0), {"token_type/embedding"}, {}),
        (dict(tied_decoder=False), {}, {"masked_lm/decoder": (23, 12)}),
        (dict(decoder_bias=False), {"masked_lm/bias"}, {}),
        (dict(head_bias=False), {"masked_lm/dense/bias"}, {}),
        (dict(head_norm=False), {"masked_lm/norm/scale", "masked_lm/norm/bias"}, {}),
        (
            dict(num_key_heads=3),
            {"qkv/kernel", "qkv/bias"},
            {"query/kernel": (12, 6, 2), "key_value/kernel": (12, 2, 3, 2)},
        ),
        (
            dict(first_norm=False),
            {f"layer_0/attention_norm/{x}" for x in ("scale", "bias")},
            {},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_parameters_of_a_setting(settings, gone, new):
    before, after = shapes(BERT), shapes(dataclasses.replace(BERT, **settings))
    removed = {path for path in before if after.get(path) != before[path]}
    added = {path for path in after if after[path] != before.get(path)}
    assert all(any(path.endswith(end) for path in removed) for end in gone)
    assert all(path.endswith(tuple(gone)) for path in removed)
    for end, shape in new.items():
        assert {after[path] for path in added if path.endswith(end)} == {shape}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(norm="rms_norm"), "rms_norm has no bias: give norm_bias=False"),
        (
            dict(norm="batch_norm"),
            "norm must be one of layer_norm, rms_norm, got 'batch_norm'",
        ),
        (
            dict(activation="swish"),
            "activation must be one of gelu, gelu_tanh, relu, silu",
        ),
        (dict(num_key_heads=4), "num_key_heads 4 does not divide num_heads 6"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(BERT, **settings)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("ettin_17m", 16.9), ("ettin_32m", 32.1), ("modernbert_base", 149.7)],
)
def test_published_sizes(name, millions):
    """ModernBERT's 149 million parameters and Ettin's 17 and 32, the masked-LM head included."""
    config = preset(name, vocab_size=50_368)
    one = np.zeros((1, 1), np.int32)
    model = BertForMaskedLM(config)
    tree = jax.eval_shape(model.init, jax.random.key(0), one, masked_positions=one)[
        "params"
    ]
    assert sum(x.size for x in jax.tree.leaves(tree)) / 1e6 == pytest.approx(
        millions, abs=0.06
    )
    assert config.encoding().name == MODERNBERT["position"]


# --- Loops over layers ---


@functools.cache
def summed(layers, transform, **how):
    """A sum of outputs with a cycle of two encodings, transformed by `jax.value_and_grad` or not.

    The first layer has other parameters than the rest.
    """
    config = variant("modernbert", num_layers=layers, num_token_types=2, **how)
    config = dataclasses.replace(
        config, position="cycle(rope, rope(base=100)+window(max_distance=2))"
    )
    tokens, _, token_type_ids, valid = arguments(config)

    def loss(params):
        out = Bert(config).apply({"params": params}, tokens, token_type_ids, valid)
        return jnp.sin(out).sum()

    return jax.jit(transform(loss))(random_params(config)["bert"])


def value(loss):
    return loss


@pytest.mark.parametrize(
    ("how", "layers", "transform"),
    [
        # No loop: the first turn of the cycle is apart.
        pytest.param(dict(scan_layers=True), 2, value, marks=pytest.mark.slow),
        pytest.param(dict(scan_layers=True), 4, value, marks=pytest.mark.slow),
        (
            dict(scan_layers=True),
            5,
            jax.value_and_grad,
        ),  # The cycle leaves one layer over.
        (dict(remat="full"), 5, jax.value_and_grad),
    ],
    ids=["scan-2", "scan-4", "scan-5", "remat-5"],
)
def test_layers_in_a_loop_change_nothing(how, layers, transform):
    want, got = summed(layers, transform), summed(layers, transform, **how)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)


# --- Around the encoder ---


def test_flops_count_gates_and_heads():
    """Matrices are as many FLOPs as parameters, twice, for each token; attention is the same."""

    def matrices(config):
        return sum(
            math.prod(shape)
            for path, shape in shapes(config).items()
            if path.startswith("bert/layer") and path.endswith("kernel")
        )

    bert, llama = BERT, variant("llama", head_dense=True)
    difference = forward_flops(llama, 1, 10, 0) - forward_flops(bert, 1, 10, 0)
    assert difference == 2 * 10 * (matrices(llama) - matrices(bert))


def test_projections_of_fewer_key_heads():
    config = variant("llama")
    params = random_params(config)["bert"]
    q, k = projections(params, 1)
    kernels = params["layer_1"]["attention"]
    np.testing.assert_array_equal(q, kernels["query"]["kernel"])
    np.testing.assert_array_equal(k[:, 5], kernels["key_value"]["kernel"][:, 0, 1])
