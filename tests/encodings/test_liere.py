"""LieRE: blocks of positions, sides, and as mixed RoPE."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention_logits
from helpers.small_encodings import build, draw, grid, mapped_queries, qk

import pe_jax.attention
from pe_jax.encodings import Context, HookContext
from pe_jax.encodings.rotary import liere
from pe_jax.encodings.rotary.skew import rotation_of


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        pytest.param("liere(width=3)", np.arange(7), marks=pytest.mark.slow),
        ("liere(block=3)", np.random.default_rng(1).integers(0, 9, (2, 7, 2))),
    ],
)
def test_liere_for_some_positions_at_a_time(name, positions, monkeypatch):
    """Blocks of two positions, the last one padded: the same queries and gradients."""
    encoding = build(name)
    params = encoding.init(jax.random.key(0))
    (part,), q, to = encoding.parts, draw(2, 7, 2, 8, seed=1), draw(2, 7, 2, 8, seed=2)

    def loss(params, q):
        rotated, *_ = part.map_qkv(
            params, q, q, q, HookContext(positions_q=positions, positions_k=positions)
        )
        return (rotated * to).sum(), rotated

    run = lambda: jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(
        params["liere"], q
    )
    whole = run()
    monkeypatch.setattr(liere, "_WHOLE", 0)
    monkeypatch.setattr(liere, "numbers_at_once", lambda: 300)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4),
        whole,
        run(),
    )


def test_liere_of_a_side_less_1_has_the_positions_of_the_authors():
    """Patches of an image at positions from 0 to 1 on each axis."""
    side = np.linspace(0, 1, 3, dtype=np.float32)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(9, 2)
    by_rows, by_axes = build("liere(width=3, side=2)"), build("liere(side=1)")
    params = by_rows.init(jax.random.key(0))["liere"]
    q, _ = qk(9)
    expected = mapped_queries(by_axes.parts[0], params, q, grid)
    found = mapped_queries(by_rows.parts[0], params, q, np.arange(9))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_liere_counts_the_rows_of_positions(monkeypatch):
    """Two rows of positions need twice the memory of one that the batch shares."""
    cuts, cut_axis = [], liere.cut_axis
    monkeypatch.setattr(
        liere, "cut_axis", lambda *args: cuts.append(0) or cut_axis(*args)
    )
    monkeypatch.setattr(
        liere, "_WHOLE", 7 * 2 * 8**2
    )  # Matrices of 7 positions and 2 heads.
    encoding = build("liere")
    params, q = encoding.init(jax.random.key(0)), draw(2, 7, 2, 8)
    for positions, cut in ((np.ones((7, 2)), False), (np.ones((2, 7, 2)), True)):
        jax.eval_shape(
            lambda positions: pe_jax.attention.attention(
                q, q, q, encoding, params, Context(positions_q=positions)
            ),
            positions,
        )
        assert bool(cuts) == cut


def test_liere_rotates_default_positions_once(monkeypatch):
    calls = []
    counted = lambda matrices: calls.append(0) or rotation_of(matrices)
    monkeypatch.setattr(liere, "rotation_of", counted)
    encoding = build("liere(width=3)")
    q = draw(1, 7, 2, 8)
    run = lambda q: pe_jax.attention.attention(
        q, q, q, encoding, encoding.init(jax.random.key(0))
    )
    jax.eval_shape(run, q)
    assert len(calls) == 1


def test_liere_in_blocks_of_two_is_mixed_rope():
    liere, mixed = build("liere(block=2, side=1)"), build("rope_mixed")
    generators = draw(2, 2, 4, 1)
    q, k = qk()
    found = attention_logits(
        q,
        k,
        liere,
        {"liere": {"generators": generators}},
        Context(positions_q=grid(2, 3)),
    )
    frequencies = {"rope_mixed": {"frequencies": -generators[..., 0]}}
    expected = attention_logits(
        q, k, mixed, frequencies, Context(positions_q=grid(2, 3))
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_liere_counts_patches_and_divides_by_the_side():
    q, k = qk()
    by_pair, counted = build("liere(side=2)"), build("liere(side=2, width=3)")
    params = by_pair.init(jax.random.key(0))
    assert params["liere"]["generators"].shape == (2, 2, 1, 28)
    found = attention_logits(q, k, counted, params)
    np.testing.assert_allclose(
        found,
        attention_logits(q, k, by_pair, params, Context(positions_q=grid(2, 3))),
        atol=1e-5,
    )
    whole = attention_logits(
        q, k, build("liere(side=1)"), params, Context(positions_q=grid(2, 3) / 2)
    )
    np.testing.assert_allclose(found, whole, atol=1e-5)
    with pytest.raises(
        ValueError, match=r"axes must be at least 2, got 1.*string\(axes=1\)"
    ):
        build("liere(axes=1)")
    with pytest.raises(ValueError, match="multiple of 6 for pairs of 3 axes, got 8"):
        build("string(axes=3)")
