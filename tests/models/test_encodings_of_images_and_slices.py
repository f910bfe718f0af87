"""Encodings that were made for images or for slices of heads, and networks of logits, in a BERT."""

import dataclasses

import jax
import numpy as np
import pytest

from pe_jax.models import Bert, BertConfig

CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    intermediate_size=12,
    max_length=16,
    initializer_stddev=0.5,
)
TOKENS = np.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 1, 2, 3]])
GRID = np.stack(np.divmod(np.arange(6), 3), axis=-1)  # Two rows of three patches.


def stepped(name, positions=None):
    """Parameters, their gradients, and the loss before and after a step along these."""
    config = dataclasses.replace(
        CONFIG, num_layers=2 if name.startswith("per_layer") else 1
    )
    model = Bert(dataclasses.replace(config, position=name))
    params = random_params(model, positions=positions)
    out = np.random.default_rng(1).normal(size=(*TOKENS.shape, CONFIG.hidden_size))
    loss = lambda p: (
        model.apply({"params": p}, TOKENS, positions=positions) * out
    ).mean()
    loss_and_gradients = jax.jit(jax.value_and_grad(loss))
    before, grads = loss_and_gradients(params)
    after, _ = loss_and_gradients(
        jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    )
    return params, grads, before, after


def random_params(model, **inputs):
    """Drawn with NumPy: nothing is compiled."""
    params = jax.eval_shape(model.init, jax.random.key(0), TOKENS, **inputs)["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype(x.dtype), params)


@pytest.mark.parametrize(
    ("name", "positions", "learned"),
    [
        pytest.param("liere(width=3)", None, ["liere/generators"], marks=pytest.mark.slow),
        (
            "per_layer(liere(block=2))",
            GRID,
            ["layer_0/liere/generators", "layer_1/liere/generators"],
        ),
        pytest.param(
            "decoupled_rope(size=2)",
            None,
            ["decoupled_rope/key", "decoupled_rope/query"],
            marks=pytest.mark.slow,
        ),
        pytest.param("sinusoidal_2d(width=3)", None, [], marks=pytest.mark.slow),
        pytest.param("sinusoidal_2d", GRID, [], marks=pytest.mark.slow),
        pytest.param(
            "learned_2d(height=2, width=3)", None, ["learned_2d/table"], marks=pytest.mark.slow
        ),
        (
            "learned_2d(height=2, width=3, cls=True, factorized=True)",
            None,
            ["learned_2d/cls", "learned_2d/columns", "learned_2d/rows"],
        ),
        (
            "per_layer(alibi+dape_v2(width=4))",
            None,
            [f"layer_{i}/dape_v2/{x}/{y}" for i in (0, 1) for x in ("hidden", "out")
             for y in ("bias", "kernel")],
        ),
    ],
)  # fmt: skip
def test_a_gradient_step(name, positions, learned):
    """Every parameter of the encoding has a gradient, and the loss falls."""
    params, grads, before, after = stepped(name, positions)
    assert np.isfinite(before) and after < before
    found = jax.tree_util.tree_leaves_with_path(grads.get("position", {}))
    named = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in found}
    assert sorted(named) == sorted(learned)
    for path, grad in named.items():
        # The other layers' logits may saturate one entry, not all of them.
        assert np.isfinite(grad).all() and np.abs(grad).max() > 0, path
    assert "position" in params if learned else "position" not in params


@pytest.mark.parametrize("name", ["liere", "sinusoidal_2d"])
def test_pairs_of_coordinates_have_to_be_given(name):
    """A text has no rows and columns: the message says what to pass."""
    with pytest.raises(
        ValueError, match=r"Positions of 2 axes have no default. Pass an array \[L, 2\]"
    ):
        Bert(dataclasses.replace(CONFIG, position=name)).init(jax.random.key(0), TOKENS)


def test_a_text_longer_than_an_image():
    model = Bert(dataclasses.replace(CONFIG, position="learned_2d(height=1, width=3)"))
    with pytest.raises(ValueError, match="3"):
        model.init(jax.random.key(0), TOKENS)


def test_layers_that_are_scanned_do_the_same():
    config = dataclasses.replace(CONFIG, num_layers=2)
    model = Bert(dataclasses.replace(config, position="per_layer(dape_v2(width=4))"))
    scanned = Bert(dataclasses.replace(model.config, scan_layers=True))
    variables = {"params": random_params(model)}
    expected = jax.jit(model.apply)(variables, TOKENS)
    np.testing.assert_allclose(
        jax.jit(scanned.apply)(variables, TOKENS), expected, atol=1e-5
    )
