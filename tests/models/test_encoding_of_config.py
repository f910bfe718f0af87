"""A model has the encoding of its config and no other: inspected, counted, exported, fine-tuned."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits, attention_weights
from helpers.initial_params import initial_params
from tokenizers import Tokenizer, models

from pe_jax import encodings
from pe_jax.encodings import Metadata, OffsetTerms, Part
from pe_jax.interop import load_encoder, save_encoder
from pe_jax.models import (
    Bert,
    BertConfig,
    BertForClassification,
    attention_map,
    hidden_states,
)
from pe_jax.models.flops import forward_flops
from pe_jax.trainer.configs.training import OptimizerConfig
from pe_jax.trainer.tasks.glue import classification_task
from pe_jax.trainer.training import optimizer as optimizers
from pe_jax.trainer.training.step import init_state, make_train_step
from pe_jax.trainer.training.transplant import transplant

CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=8,
    num_layers=3,
    num_heads=2,
    intermediate_size=12,
    max_length=16,
    initializer_stddev=0.5,
)
TOKENS = np.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 1, 2, 3]])


@encodings.define_encoding
def ripple(*, hidden_size: int) -> Part:
    """A learned multiple of one cosine for each coordinate."""
    vectors = lambda params, x: (
        params["size"] * jnp.cos(0.3 * jnp.asarray(x)[..., None])
    )
    return Part(
        init=lambda rng: {"size": jax.random.normal(rng, (hidden_size,))},
        embed=lambda params, x, context: (
            x + vectors(params, np.asarray(context.positions_q))
        ),
        metadata=Metadata(
            formula="a·cos(0.3 x)",
            source="here",
            parameters="D",
            kind="absolute",
            vectors=vectors,
        ),
    )


def decay(rate=1.0, vectors=False):
    """A bias of one's own, and on request vectors that join the keys."""
    bias = lambda params, x, _: -params["rate"] * jnp.abs(x)[..., None]
    keys = (lambda params, x, _: jnp.ones((*x.shape, 4))) if vectors else None
    part = Part(
        name="decay",
        init=lambda key: {"rate": jnp.full(2, rate)},
        offsets=OffsetTerms(key_vectors=keys, bias=bias),
    )
    return encodings.PositionEncoding(parts=(part,))


def configured(position, **changes):
    """By an encoding or its name."""
    config = dataclasses.replace(CONFIG, **changes)
    if isinstance(position, str):
        return dataclasses.replace(config, position=position)
    return dataclasses.replace(config, position=position)


def made(position, module=Bert, **changes):
    config = configured(position, **changes)
    model = module(config)
    return config, model, initial_params(model, TOKENS)


def test_the_probe_sees_what_the_model_has():
    """A strong decay: each query attends to itself, in the model's own weights."""
    config, _, params = made(decay(50.0))
    probe = jax.jit(attention_map(config, layer=1, what="weights"))
    weights = probe(params, TOKENS)
    np.testing.assert_allclose(
        weights, np.broadcast_to(np.eye(6), weights.shape), atol=1e-4
    )
    changed = jax.tree.map(np.zeros_like, params["position"])
    even = probe({**params, "position": changed}, TOKENS)
    assert float(even[0, 0, 0, 0]) < 0.9


@pytest.mark.parametrize(
    "name",
    [
        "alibi",
        "t5",
        "rope",
        "rope_yarn(factor=4, original_length=8)",
        "rope+window(max_distance=2)",
    ],
)
def test_the_probe_is_the_model_exactly(name):
    """Weights times values are what attention gives; biases are biases, not divided by sqrt(d)."""
    encoding = encodings.from_name(
        name, hidden_size=8, head_size=4, num_heads=2, max_length=16
    )
    params = jax.jit(encoding.init)(jax.random.key(0))
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 9, 2, 4)).astype(np.float32)
    weights = attention_weights(q, k, encoding, params)
    out = np.einsum("bhqk,bkhd->bqhd", weights, v)
    np.testing.assert_allclose(attention(q, k, v, encoding, params), out, atol=2e-6)
    zero = np.zeros_like(q)
    if name == "alibi":
        logits = attention_logits(zero, zero, encoding, params)[0]
        np.testing.assert_allclose(logits[:, 0, 3], [-3 * 2**-4, -3 * 2**-8], rtol=1e-6)


def test_flops_count_the_terms_of_ones_own():
    flops = lambda position: forward_flops(
        configured(position), rows=2, length=6, predictions=1
    )
    assert flops(decay()) == flops("none")
    more = flops(decay(vectors=True)) - flops("none")
    assert more == 2 * CONFIG.num_layers * 2 * 6 * 6 * CONFIG.hidden_size
    # A window of 3 keys: 2 + 4 · 3 + 2 pairs of 36.
    fewer = flops("none") - flops("window(max_distance=1)")
    assert fewer == 2 * CONFIG.num_layers * 2 * 2 * (36 - 16) * CONFIG.hidden_size
    fewer = flops("none") - flops("causal")
    assert fewer == 2 * CONFIG.num_layers * 2 * 2 * (36 - 21) * CONFIG.hidden_size


def test_an_encoding_of_ones_own_is_exported(tmp_path):
    """As the table that it amounts to; the model that comes back gives the same hidden states."""
    config, _, params = made(ripple(hidden_size=8), _classifier, num_layers=1)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"]
    tokenizer = Tokenizer(
        models.WordPiece(dict(zip(words, range(11))), unk_token="[UNK]")
    )
    save_encoder(tmp_path / "out", config, params, tokenizer)
    back = load_encoder(tmp_path / "out", heads=())
    states = jax.jit(hidden_states, static_argnums=0)
    there = states(back.config, back.params["bert"], TOKENS)
    np.testing.assert_allclose(there, states(config, params["bert"], TOKENS), atol=1e-5)
    config, _, params = made(decay(), _classifier, num_layers=1)
    with pytest.raises(ValueError, match="decay adds terms to the attention logits"):
        save_encoder(tmp_path / "other", config, params, tokenizer)


def _classifier(config):
    return BertForClassification(config, outputs=2)


def test_an_encoding_of_ones_own_is_fine_tuned():
    """From a model that was trained with it: its parameters are taken over, and learn."""
    _, _, old = made(decay(0.3), _classifier, num_layers=1)
    config = configured(decay(1.0), num_layers=1)
    task = classification_task(config, outputs=2)
    marked = functools.partial(optimizers.frequencies, config.encoding())
    optimizer = optimizers.update_rule(OptimizerConfig(), lambda _: 1e-2, marked)
    state = jax.jit(functools.partial(init_state, task, optimizer))(jax.random.key(1))
    params, changes = transplant(state.params, old, heads=False)
    assert "bert/position/decay/rate" in changes.kept
    rate = params["bert"]["position"]["decay"]["rate"]
    np.testing.assert_allclose(rate, 0.3)
    batch = {
        "tokens": TOKENS,
        "token_type_ids": np.zeros_like(TOKENS),
        "mask": TOKENS > 0,
        "label": np.array([0, 1]),
    }
    step = jax.jit(make_train_step(task, optimizer))
    state, _ = step(state._replace(params=params), batch)
    assert np.abs(state.params["bert"]["position"]["decay"]["rate"] - rate).min() > 1e-3


@pytest.mark.parametrize(
    "name",
    [
        "cycle(rope, learned_relative(max_distance=2), none)",
        pytest.param(
            "per_layer(learned_relative(max_distance=2))", marks=pytest.mark.slow
        ),
        pytest.param(
            "cycle(rope(base=500, learnable=True), "
            "rope+window(max_distance=1), rope+window(max_distance=1))",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_schedules_over_layers_run_as_loops(name):
    """Layers of two kinds, shared and own parameters: one program for all, the same numbers."""
    config, model, params = made(name)
    loss = lambda model: jax.jit(
        jax.value_and_grad(lambda p: (model.apply({"params": p}, TOKENS) ** 3).sum())
    )
    value, grads = loss(model)(params)
    tables = jax.tree.leaves(grads["position"])
    assert len(tables) == (3 if name.startswith("per_layer") else 1)
    assert all(np.abs(table).max() > 0 for table in tables)
    loop = Bert(dataclasses.replace(config, scan_layers=True, remat="full"))
    again, others = loss(loop)(params)
    np.testing.assert_allclose(again, value, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        grads,
        others,
    )
