"""The mean of a teacher's table in its student, and the share of logits that offsets explain."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from helpers.random_params import random_params

from pe_jax.models import Bert, BertConfig, hidden_states
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report.logits import offset_share
from pe_jax.trainer.reports.property_report.subjects import from_name
from pe_jax.trainer.tasks.student_model import keep_table_mean

CONFIG = BertConfig(
    vocab_size=60, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24, max_length=16,
    initializer_stddev=0.2,
)  # fmt: skip
TOKENS = np.random.default_rng(5).integers(5, 60, (48, 16))


@functools.cache
def model(position, seed=0):
    """A model of random parameters, of which those of positions are as they are drawn for a run."""
    config = dataclasses.replace(CONFIG, position=position)
    shapes = jax.eval_shape(Bert(config).init, jax.random.key(0), TOKENS[:1])["params"]
    params = random_params(shapes, CONFIG.initializer_stddev, seed)
    if "position" in params:
        init = jax.jit(config.encoding().init, static_argnums=1)
        params["position"] = init(jax.random.key(seed), CONFIG.num_layers)
    return config, params


def states(config, params):
    return np.asarray(jitted_states(config, params, TOKENS))


jitted_states = jax.jit(hidden_states, static_argnums=0)


def test_the_mean_of_a_table_is_kept():
    """Without its table, but with its mean, the model reads the mean position everywhere."""
    config, params = model("learned_absolute")
    moved = keep_table_mean(config, params, params, 10)
    bare = dataclasses.replace(CONFIG, position="none")
    table = params["position"]["learned_absolute"]["table"]
    mean = {
        "learned_absolute": {"table": np.broadcast_to(table[:10].mean(0), table.shape)}
    }
    np.testing.assert_allclose(
        states(
            bare, {name: value for name, value in moved.items() if name != "position"}
        ),
        states(config, {**params, "position": mean}),
        atol=1e-5,
    )


@pytest.mark.parametrize("position", ["alibi", "complex_order"])
def test_encodings_that_add_nothing_to_zeros_have_no_mean(position):
    """Biases add nothing at the input, complex order multiplies it and needs the tokens."""
    config, params = model(position)
    same = keep_table_mean(config, params, params, 10)["token_type"]["embedding"]
    np.testing.assert_array_equal(same, params["token_type"]["embedding"])


def test_the_report_tells_biases_from_tables():
    config = dataclasses.replace(PropertiesConfig(), size="tiny", length=16, texts=64)
    shares = {}
    for name in ("alibi", "learned_absolute"):
        findings = offset_share.measure(from_name(name, config, 0), config)
        (numbers,) = findings.numbers.values()
        shares[name] = numbers["layers"][0]["share"]
    assert shares["alibi"] > 0.95 and shares["learned_absolute"] < 0.6
