"""Randomized positions: which ones, and who sees them."""

import jax
import numpy as np
import pytest
from helpers.compiled import attention
from helpers.small_encodings import draw, made
from scipy.special import softmax

from pe_jax import encodings
from pe_jax.encodings import Context
from pe_jax.encodings.part import HookContext, apply_positions


def qkv(length=6, seed=0):
    return [draw(2, length, 2, 8, seed=seed + i) for i in range(3)]


def softmax_of(logits, v):
    return np.einsum("bhqk,bkhd->bqhd", softmax(logits, axis=-1), v)


def seen(name, positions, keys, rng=None):
    """The positions that a randomized part sees, of queries and of keys."""
    (part,) = made(name)[0].parts
    run = lambda rng: apply_positions(
        part,
        HookContext(positions_q=positions, positions_k=range(keys), position_rng=rng),
        1,
    )
    here = run(rng) if rng is None else jax.jit(run)(rng)
    return np.asarray(here.positions_q), np.asarray(here.positions_k)


def test_randomized_positions_are_sorted_different_and_the_same_everywhere():
    key = jax.random.key(3)
    last, all_of_them = seen(
        "randomized(pope, num_positions=30)", range(9, 10), 10, key
    )
    assert (
        (np.diff(all_of_them) > 0).all()
        and all_of_them[0] >= 0
        and all_of_them[-1] < 30
    )
    assert last == all_of_them[9:]
    (part,) = made("randomized(sinusoidal_absolute, num_positions=30)")[0].parts
    packed = np.array([[0, 1, 0, 1] + [0] * 6])
    at_input = apply_positions(
        part, HookContext(positions_q=packed, positions_k=packed, position_rng=key), 1
    ).positions_q
    np.testing.assert_array_equal(at_input[0, :4], all_of_them[[0, 1, 0, 1]])
    again = seen(
        "randomized(pope, num_positions=30)", range(10), 10, jax.random.key(4)
    )[0]
    assert (again != all_of_them).any()


def test_randomized_positions_are_spread_evenly_without_a_key():
    np.testing.assert_array_equal(
        seen("randomized(pope, num_positions=10)", range(4), 4)[0], [0, 3, 6, 9]
    )
    np.testing.assert_array_equal(
        seen("randomized(pope, num_positions=4)", range(4), 4)[0], range(4)
    )
    even = seen("randomized(pope, num_positions=10, real=True)", range(3), 3)[0]
    np.testing.assert_array_equal(even, [0, 4.5, 9])
    real = seen(
        "randomized(pope, num_positions=2, real=True)", range(9), 9, jax.random.key(0)
    )[0]
    assert (np.diff(real) > 0).all() and real.min() >= 0 and real.max() <= 1


@pytest.mark.parametrize("implementation", ["naive", "auto"])
def test_a_randomized_part_and_a_plain_one_each_see_their_own_positions(implementation):
    name = "randomized({}, num_positions=40)+sinusoidal_relative(max_distance=4)"
    both, params = made(name.format("learned_relative(max_distance=8)"))
    q, k, v = qkv()
    key = jax.random.key(1)
    found = attention(
        q,
        k,
        v,
        both,
        params,
        Context(positions_q=range(6), position_rng=key),
        implementation=implementation,
    )
    drawn = seen("randomized(pope, num_positions=40)", range(6), 6, key)[0]
    table = params["learned_relative"]["table"]
    row = lambda at, clip: np.clip(at[None] - at[:, None], -clip, clip)
    p = table[row(drawn, 8) + 8] + encodings.sinusoid(
        row(np.arange(6), 4), encodings.default_frequencies(8)
    )
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) + np.einsum("bqhd,qkd->bhqk", q, p)
    weights = jax.nn.softmax(logits / np.sqrt(8), axis=-1)
    expected = softmax_of(logits / np.sqrt(8), v) + np.einsum(
        "bhqk,qkd->bqhd", weights, p
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(
        ValueError, match="implementation='fused' needs vectors at integer positions"
    ):
        attention(
            q,
            k,
            v,
            both,
            params,
            Context(positions_q=range(6), position_rng=key),
            implementation="fused",
        )


@pytest.mark.parametrize(("real", "outside"), [(False, 30), (True, np.nan)])
def test_traced_positions_outside_of_randomized_are_unlike_all_others(real, outside):
    """Positions below 0 too, which padding on the left may have."""
    (part,) = made(f"randomized(pope, num_positions=30, real={real})")[0].parts
    at = lambda x: (
        apply_positions(part, HookContext(positions_q=x, positions_k=x), 1).positions_q
    )
    found = np.asarray(jax.jit(at)(np.array([-1, 0, 1, 2, 5])))
    even = np.array([0, 29 / 4, 29 / 2])
    np.testing.assert_allclose(
        found, [outside, *(even if real else even // 1), outside]
    )


def test_randomized_keeps_the_family_and_says_its_limits():
    both, params = made("randomized(learned_absolute, num_positions=12)+pope")
    assert set(params) == {"learned_absolute", "pope"} and both.max_length == 12
    q, k, v = qkv(length=13)
    with pytest.raises(ValueError, match=r"13 tokens.* num_positions=13"):
        encodings.embed(draw(1, 13, 16), both, params)
    with pytest.raises(ValueError, match="12 positions, fewer than num_positions=20"):
        made("randomized(learned_absolute, num_positions=20)")
    with pytest.raises(ValueError, match="one axis"):
        made("randomized(rope_axial)")
    wrapped, params = made("randomized(pope)")
    with pytest.raises(
        ValueError, match="13 keys must count from 0 for randomized, got 5 to 17"
    ):
        attention(q, k, v, wrapped, params, Context(positions_q=range(5, 18)))
    with pytest.raises(ValueError, match="float"):
        attention(q, k, v, wrapped, params, Context(positions_q=np.arange(13.0)))
