"""Settings in which encoders differ: padding, packed documents and loops change nothing."""

import functools

import jax
import numpy as np
import pytest
from helpers.initial_params import shapes_of

from pe_jax.models import Bert, BertConfig, attention_map, hidden_states

SIZES = dict(
    vocab_size=11, hidden_size=12, num_layers=3, num_heads=3, intermediate_size=8, max_length=16,
    dropout_rate=0.0, attention_dropout_rate=0.0,
)  # fmt: skip
SETTINGS = {
    "narrow and shared": dict(embedding_size=6, shared_layers=True),
    "convolution": dict(conv_kernel=3, position="alibi"),
    "head size": dict(attention_head_size=6, scale_logits=False, position="t5"),
    "rescaled": dict(rescaled_token=3, position="rope"),
    "four norms": dict(
        pre_norm=True,
        sublayer_norm=True,
        query_key_norm=True,
        norm="rms_norm",
        norm_bias=False,
        num_key_heads=1,
        position="rope",
    ),
}
TOKENS = np.arange(14).reshape(2, 7) % 11


@functools.cache
def model(name):
    config = BertConfig(**SIZES, **SETTINGS[name])
    rng = np.random.default_rng(0)
    shapes = shapes_of(Bert(config))
    return config, jax.tree.map(
        lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_padding_and_loops_change_nothing(name):
    config, params = model(name)
    want = hidden_states(config, params, TOKENS)[-1]
    padded = np.pad(TOKENS, [(0, 0), (0, 3)], constant_values=3)
    mask = np.arange(10) < np.array([[7], [7]])
    looped = BertConfig(**SIZES, **SETTINGS[name], scan_layers=True, remat="full")
    for kind in (config, looped):
        got = hidden_states(kind, params, padded, None, mask)[-1][:, :7]
        np.testing.assert_allclose(got, want, atol=2e-6)
    assert attention_map(config, layer=2)(params, TOKENS).shape == (2, 3, 7, 7)


@pytest.mark.parametrize("name", ["convolution", "rescaled"])
def test_documents_do_not_mix(name):
    config, params = model(name)
    packed = TOKENS.reshape(1, 14)
    ids = np.repeat([[1, 2]], 7, axis=1)
    got = Bert(config).apply({"params": params}, packed, document_ids=ids)
    want = Bert(config).apply({"params": params}, TOKENS)
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(sublayer_norm=True), "sublayer_norm is True, but pre_norm is False"),
        (dict(conv_kernel=2), "conv_kernel must be odd or 0, got 2"),
        (dict(shared_layers=True, first_norm=False), "first_norm is False, but shared"),
        (dict(shared_layers=True, position="cycle(rope, none)"), "differs between lay"),
    ],
)
def test_settings_that_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BertConfig(**{**SIZES, **changes})
