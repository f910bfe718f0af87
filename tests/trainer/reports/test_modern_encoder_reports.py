"""Reports on encoders without biases of attention and with fewer heads of keys (docs/modern.md)."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from helpers import tiny_subject

from pe_jax.models import (
    BertConfig,
    BertForMaskedLM,
    queries_keys_values,
    with_constants,
)
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report.report import measure_properties
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.property_report.texts import token_scores

TEXTS = tiny_subject.texts()


@pytest.fixture(
    scope="module",
    params=[pytest.param(None, marks=pytest.mark.slow), 1],
    ids=["all key heads", "one key head"],
)
def model(request):
    config = BertConfig(
        vocab_size=tiny_subject.VOCABULARY, hidden_size=16, num_layers=2, num_heads=2,
        intermediate_size=16, initializer_stddev=0.5, max_length=tiny_subject.LENGTH,
        pre_norm=True, first_norm=False, final_norm=True, norm_bias=False, embedding_norm=True,
        gated_mlp=True, up_bias=False, down_bias=False, attention_bias=False, num_token_types=0,
        num_key_heads=request.param,
    )  # fmt: skip
    return dataclasses.replace(
        config, position="cycle(rope(base=160000), rope+window(max_distance=4))"
    )


@pytest.fixture(scope="module")
def params(model):
    init = jax.jit(BertForMaskedLM(model).init)
    return init(jax.random.key(0), TEXTS.tokens, masked_positions=TEXTS.tokens)[
        "params"
    ]


def test_constants_are_biases_of_a_model_with_as_many_heads(model, params):
    """Without any constant it is the same model; constants are as they are asked for."""
    full = dataclasses.replace(model, attention_bias=True, num_key_heads=None)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 2, 2, 8)).astype(np.float32)
    scores = jax.jit(token_scores, static_argnums=0)
    none = with_constants(params["bert"], np.zeros(values.shape, bool), values)
    changed = scores(full, {**params, "bert": none}, TEXTS.masked, TEXTS.tokens)[0]
    expected = scores(model, params, TEXTS.masked, TEXTS.tokens)[0]
    np.testing.assert_allclose(changed, expected, rtol=1e-5, atol=1e-5)

    which = rng.random(values.shape) < 0.3
    bert = with_constants(params["bert"], which, values)
    inside = jax.jit(queries_keys_values, static_argnums=0)
    after = np.asarray(inside(full, bert, TEXTS.tokens))
    before = np.asarray(inside(model, params["bert"], TEXTS.tokens))
    assert after.shape == before.shape == (3, 2, *TEXTS.tokens.shape, 2, 8)
    spread = lambda x: np.broadcast_to(x[:, :, None, None], after[:2].shape)
    np.testing.assert_allclose(
        after[:2][spread(which)], spread(values)[spread(which)], rtol=1e-6
    )
    kept = ~spread(which)[:, 0]  # Of the first layer: those above read another input.
    np.testing.assert_allclose(after[:2, 0][kept], before[:2, 0][kept], atol=1e-5)


def test_parts_that_read_the_projections(model, params, tmp_path):
    config = PropertiesConfig(
        parts="words,offset_kernel,heads,rotary_frequencies,massive_values",
        length=tiny_subject.LENGTH, words=4, windows=(3,), bands=2, massive=1.5,
    )  # fmt: skip
    subject = MeasuredModel(
        "modern", model.encoding(), {}, tiny_subject.LENGTH, model, params
    )
    tiny_subject.give(config, subject)
    measure_properties([subject], config, tmp_path)

    def numbers(part):
        return json.loads((tmp_path / f"{part}.json").read_text())["modern"]

    bands = numbers("rotary_frequencies")
    scores = jax.jit(token_scores, static_argnums=0)
    losses, _ = scores(model, params, TEXTS.masked, TEXTS.tokens)
    expected = np.asarray(losses)[TEXTS.where].mean()
    assert bands["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert np.abs(bands["dropped"]["change"]).min() > 1e-4
    massive = numbers("massive_values")
    assert massive["loss"] == pytest.approx(bands["loss"], rel=1e-6)
    assert np.shape(massive["keys"][0]["largest"]) == (2,)
    assert len(numbers("offset_kernel")["layers"]) == 2
