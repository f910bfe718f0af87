"""Encodings that were made for images or for slices of heads, and networks of logits, in a BERT."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pe_jax.models import Bert, BertConfig, with_position

CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    intermediate_size=12,
    max_length=16,
    initializer_stddev=0.5,
)
TOKENS = jnp.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 1, 2, 3]])
GRID = np.stack(np.divmod(np.arange(6), 3), axis=-1)  # Two rows of three patches.


def stepped(name, positions=None):
    """Parameters, their gradients, and the loss before and after a step along these."""
    model = Bert(with_position(CONFIG, name))
    variables = jax.jit(model.init)(jax.random.key(0), TOKENS, positions=positions)
    out = jax.random.normal(jax.random.key(1), (*TOKENS.shape, CONFIG.hidden_size))

    @jax.jit
    def step(params):
        loss = lambda p: (model.apply({"params": p}, TOKENS, positions=positions) * out).mean()
        before, grads = jax.value_and_grad(loss)(params)
        moved = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        return grads, before, loss(moved)

    return variables["params"], *step(variables["params"])


@pytest.mark.parametrize(
    ("name", "positions", "learned"),
    [
        ("liere(width=3)", None, ["liere/generators"]),
        ("own(liere(block=2))", GRID, ["layer_0/liere/generators", "layer_1/liere/generators"]),
        ("decoupled_rope(size=2)", None, ["decoupled_rope/key", "decoupled_rope/query"]),
        ("sinusoidal_2d(width=3)", None, []),
        ("sinusoidal_2d", GRID, []),
        ("learned_2d(height=2, width=3)", None, ["learned_2d/table"]),
        (
            "learned_2d(height=2, width=3, cls=True, factorised=True)",
            None,
            ["learned_2d/cls", "learned_2d/columns", "learned_2d/rows"],
        ),
        (
            "own(alibi+dape_v2(width=4))",
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
        Bert(with_position(CONFIG, name)).init(jax.random.key(0), TOKENS)


def test_a_text_longer_than_an_image():
    model = Bert(with_position(CONFIG, "learned_2d(height=1, width=3)"))
    with pytest.raises(ValueError, match="3"):
        model.init(jax.random.key(0), TOKENS)


def test_layers_that_are_scanned_do_the_same():
    config = dataclasses.replace(with_position(CONFIG, "own(dape_v2(width=4))"), scan_layers=True)
    params = jax.jit(Bert(config).init)(jax.random.key(0), TOKENS)
    loop = Bert(dataclasses.replace(config, scan_layers=False))
    expected = jax.jit(loop.apply)(params, TOKENS)
    np.testing.assert_allclose(jax.jit(Bert(config).apply)(params, TOKENS), expected, atol=1e-5)
