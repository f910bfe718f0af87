"""Position parameters fitted to a model's attention, and the share that offsets explain."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from helpers.random_params import random_params

from pe_jax.configs.properties import PropertiesConfig
from pe_jax.models import Bert, BertConfig, hidden_states
from pe_jax.reports.property_report.logits import offset_share
from pe_jax.reports.property_report.subjects import from_name
from pe_jax.tasks.position_fit import fit_positions, keep_table_mean, mean_logits

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


def student_of(teacher_params, position):
    config, params = model(position, seed=1)
    kept = {name: value for name, value in teacher_params.items() if name != "position"}
    return config, {**kept, **({"position": params["position"]} if "position" in params else {})}


def test_a_bias_of_the_same_kind_is_recovered():
    """The student's states become the teacher's."""
    config, params = model("per_layer(t5(buckets=8,max_distance=6))")
    student, student_params = student_of(params, "per_layer(t5(buckets=8,max_distance=6))")
    before = states(student, student_params)
    fit = fit_positions(config, params, student, student_params, TOKENS)
    np.testing.assert_allclose(fit.explained, 1, atol=0.005)
    after = states(student, {**student_params, "position": fit.params})
    expected = states(config, params)
    assert np.abs(after - expected).max() < 0.1 * np.abs(before - expected).max()


def states(config, params):
    return np.asarray(jitted_states(config, params, TOKENS))


jitted_states = jax.jit(hidden_states, static_argnums=0)


def test_vectors_reproduce_the_mean_logits_of_alibi():
    config, params = model("alibi")
    student, student_params = student_of(
        params, "per_layer(learned_relative(clip=15,separate=True))"
    )
    fit = fit_positions(config, params, student, student_params, TOKENS)
    assert (fit.explained > 0.99).all()
    fitted = mean_logits(student, {**student_params, "position": fit.params}, TOKENS).mean
    target = mean_logits(config, params, TOKENS).mean
    fitted, target = np.array(fitted), np.array(target)
    apart, target = (x - x.mean(-1, keepdims=True) for x in (fitted - target, target))
    inside = (0, slice(None), slice(1, -1), slice(1, -1))
    assert apart[inside].std() < 0.3 * target[inside].std()


def test_encodings_without_parameters_are_refused():
    config, params = model("alibi")
    student, student_params = student_of(params, "rope")
    with pytest.raises(ValueError, match="'rope' cannot be fitted: it has no parameters"):
        fit_positions(config, params, student, student_params, TOKENS)


def test_the_mean_of_a_table_is_kept():
    """Without its table, but with its mean, the model reads the mean position everywhere."""
    config, params = model("learned_absolute")
    moved = keep_table_mean(config, params, params, 10)
    bare = dataclasses.replace(CONFIG, position="none")
    table = params["position"]["learned_absolute"]["table"]
    mean = {"learned_absolute": {"table": np.broadcast_to(table[:10].mean(0), table.shape)}}
    np.testing.assert_allclose(
        states(bare, {name: value for name, value in moved.items() if name != "position"}),
        states(config, {**params, "position": mean}),
        atol=1e-5,
    )


@pytest.mark.parametrize("position", ["alibi", "complex_order"])
def test_encodings_that_add_nothing_to_zeros_have_no_mean(position):
    """Biases add nothing at the input, complex order multiplies it and needs the tokens."""
    config, params = model(position)
    same = keep_table_mean(config, params, params, 10)["segment"]["embedding"]
    np.testing.assert_array_equal(same, params["segment"]["embedding"])


def test_the_report_tells_biases_from_tables():
    config = dataclasses.replace(PropertiesConfig(), size="tiny", length=16, texts=64)
    shares = {}
    for name in ("alibi", "learned_absolute"):
        findings = offset_share.measure(from_name(name, config, 0), config)
        (numbers,) = findings.numbers.values()
        shares[name] = numbers["layers"][0]["share"]
    assert shares["alibi"] > 0.95 and shares["learned_absolute"] < 0.6
