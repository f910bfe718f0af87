"""ALiBi, T5, FIRE, Transformer-XL and DeBERTa: numbers a reader can check by hand, and long rows.

The suite in pe_jax.testing does the rest, against tests/references/bias.py."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits

from pe_jax import encodings
from pe_jax.encodings import Context
from pe_jax.encodings.bias.alibi import slopes

SIZES = dict(hidden_size=8, head_size=4, num_heads=2, max_length=64)


def bias(encoding, params, positions_q, positions_k=None):
    """What an encoding adds between queries and keys of zeros, [H, Lq, Lk]."""
    positions_k = positions_q if positions_k is None else positions_k
    zeros = (
        np.zeros((1, len(p), SIZES["num_heads"], 4), np.float32) for p in (positions_q, positions_k)
    )
    return attention_logits(*zeros, encoding, params, Context(positions_q, positions_k))[0]


def away(params, seed=1):
    """Parameters that differ in all their entries."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + 0.5 * rng.normal(size=x.shape).astype(np.float32), params)


# --- ALiBi ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "powers"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_slopes(heads, powers):
    np.testing.assert_allclose(slopes(heads), 2.0 ** -np.array(powers), rtol=1e-6)


def test_alibi_by_hand():
    found = bias(encodings.alibi(num_heads=2), {}, range(3))
    expected = -np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    np.testing.assert_allclose(found, [expected / 16, expected / 256])


def test_directed_alibi_shows_each_half_of_the_heads_a_side():
    found = bias(encodings.alibi(num_heads=2, directed=True), {}, range(3))
    to_the_left = -np.array([[0, np.inf, np.inf], [1, 0, np.inf], [2, 1, 0]])
    to_the_right = -np.array([[0, 1, 2], [np.inf, 0, 1], [np.inf, np.inf, 0]])
    np.testing.assert_allclose(found, np.array([to_the_left, to_the_right]) / 256)


@pytest.mark.parametrize("implementation", ["naive", "auto", "fused"])
def test_directed_alibi_of_a_query_without_a_key_on_its_side(implementation):
    """Padding to the right of all tokens, in a head that attends to the right: zeros."""
    q, k, v = (np.random.default_rng(0).normal(size=(1, 4, 2, 4)).astype(np.float32),) * 3
    mask = np.array([True, True, True, False])[None, None, None]
    call = lambda q: attention(
        q,
        k,
        v,
        encodings.alibi(num_heads=2, directed=True),
        mask=mask,
        implementation=implementation,
    )
    out, slope = call(q), jax.jit(jax.grad(lambda q: call(q).sum()))(q)
    assert np.isfinite(out).all() and np.isfinite(slope).all()
    np.testing.assert_array_equal(out[0, 3, 1], 0)
    assert (out[0, 3, 0] != 0).all()


def test_learnable_alibi():
    start = encodings.alibi(num_heads=2, learnable=True)
    params = start.init(jax.random.key(0))
    fixed = bias(encodings.alibi(num_heads=2), {}, range(5))
    np.testing.assert_allclose(bias(start, params, range(5)), fixed, rtol=1e-5)
    raw = [[math.log(2), 0], [-math.log(3), 0]]  # Left 2/3 and 1/2, right 1/4 and 1/2.
    both = encodings.alibi(num_heads=2, directed=True, learnable=True)
    found = bias(both, {"alibi": {"slopes": np.float32(raw)}}, range(2))
    np.testing.assert_allclose(found, [[[0, -1 / 4], [-2 / 3, 0]], [[0, -0.5], [-0.5, 0]]])


# --- T5 -------------------------------------------------------------------------------------------


def buckets_of(encoding, offsets):
    """The bucket of each offset, read off a table that numbers them."""
    (part,) = encoding.parts
    shape = jax.eval_shape(part.init, jax.random.key(0))["table"].shape
    table = np.broadcast_to(np.arange(shape[0], dtype=np.float32)[:, None], shape)
    return (
        part.offsets.bias({"table": table}, np.array(offsets), Context(None))[:, 0]
        .astype(int)
        .tolist()
    )


def test_t5_buckets_by_hand():
    # 8 exact distances, then the edges 8·16^(n/8) = 11.3, 16, 22.6, 32, 45.3, 64, 90.5.
    edges = [0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 128, 5000]
    found = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15]
    assert buckets_of(encodings.t5(num_heads=2), -np.array(edges)) == found
    assert buckets_of(encodings.t5(num_heads=2), edges[1:]) == [16 + one for one in found[1:]]


def test_t5_in_one_direction():
    encoding = encodings.t5(num_heads=2, buckets=8, max_distance=64, bidirectional=False)
    # 4 exact distances, then 4·16^(n/4) = 8, 16, 32.
    offsets = [9, 1, 0, -1, -3, -4, -7, -8, -15, -16, -31, -32, -900]
    assert buckets_of(encoding, offsets) == [0, 0, 0, 1, 3, 4, 4, 5, 5, 6, 6, 7, 7]


# --- FIRE -----------------------------------------------------------------------------------------


def listing(params, i, j, threshold):
    """The paper's listing, for one pair, in NumPy."""
    psi = lambda x: np.log(np.abs(params["c"] * x) + 1)
    x = psi(i - j) / (psi(np.maximum(i, np.abs(params["scale"] * threshold))) + 1e-6)
    hidden = np.maximum(x * params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


@pytest.mark.parametrize("directed", [False, True])
def test_fire_is_the_papers_for_keys_to_the_left(directed):
    """Positions below and above the threshold."""
    encoding = encodings.fire(num_heads=2, threshold=6.0, directed=directed)
    params = encoding.init(jax.random.key(0))
    found = np.asarray(bias(encoding, params, range(20)))
    for i, j in ((0, 0), (5, 5), (5, 0), (6, 2), (19, 3), (19, 18)):
        np.testing.assert_allclose(found[:, i, j], listing(params["fire"], i, j, 6.0), atol=1e-5)
    assert np.allclose(found, found.swapaxes(1, 2)) != directed


def test_fire_depends_on_the_offset_alone_below_its_threshold():
    encoding = encodings.fire(num_heads=2, threshold=100.0)
    params = encoding.init(jax.random.key(0))
    near, far = (bias(encoding, params, range(n, n + 4)) for n in (0, 90))
    np.testing.assert_allclose(near, far, atol=1e-6)
    assert np.abs(near - bias(encoding, params, range(900, 904))).max() > 1e-3


# --- Transformer-XL -------------------------------------------------------------------------------


def test_transformer_xl_by_hand():
    """D = 2, so that R_x = (sin x, cos x) with x = i - j; one head of size 1."""
    encoding = encodings.transformer_xl(head_size=1, num_heads=1, hidden_size=2)
    own = {
        "kernel": np.float32([[[3.0]], [[5.0]]]),
        "u": np.float32([[7.0]]),
        "v": np.float32([[11.0]]),
    }
    q, k = np.float32([2.0, 4.0]).reshape(1, 2, 1, 1), np.float32([6.0, 8.0]).reshape(1, 2, 1, 1)
    found = attention_logits(q, k, encoding, {"transformer_xl": own})[0, 0]
    r = lambda x: 3 * math.sin(x) + 5 * math.cos(x)
    expected = [
        [(2 + 7) * 6 + (2 + 11) * r(0), (2 + 7) * 8 + (2 + 11) * r(-1)],
        [(4 + 7) * 6 + (4 + 11) * r(1), (4 + 7) * 8 + (4 + 11) * r(0)],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# --- DeBERTa --------------------------------------------------------------------------------------


def rows_of(encoding, offsets):
    (part,) = encoding.parts
    shape = jax.eval_shape(part.init, jax.random.key(0))["table"].shape
    table = np.broadcast_to(np.arange(shape[0], dtype=np.float32)[:, None], shape)
    return part.metadata.vectors({"table": table}, np.array(offsets))[:, 0].astype(int).tolist()


def test_deberta_rows_by_hand():
    # k = 3 without buckets: i - j = -3 .. 2, so j - i = 3 .. -2, have the rows 0 .. 5.
    plain = encodings.deberta(hidden_size=2, buckets=None, max_relative_positions=3)
    assert rows_of(plain, [9, 3, 2, 1, 0, -1, -2, -3, -9]) == [0, 0, 1, 2, 3, 4, 5, 5, 5]
    # k = 8: up to 4 a row each; then ceil(3·log(x/4)/log(64/4)) more, edges at 4·16^(1/3) = 10.1,
    # 25.4 and 64.
    log = encodings.deberta(hidden_size=2, buckets=8, max_relative_positions=65)
    left = [0, 1, 4, 5, 10, 11, 25, 26, 64, 65, 500]
    found = [8, 9, 12, 13, 13, 14, 14, 15, 15, 15, 15]
    assert rows_of(log, -np.array(left)) == found
    # To the right one row more, number 0, which all beyond 64 share.
    assert rows_of(log, left) == [16 - row for row in found[:-2]] + [0, 0]


def test_deberta_divides_all_three_terms_by_sqrt_3d():
    encoding = encodings.deberta(hidden_size=2, buckets=None, max_relative_positions=1)
    table = {"deberta": {"table": np.float32([[1.0, 0.0], [0.0, 1.0]])}}  # To the right; the rest.
    double = tuple(lambda x, by=by: by * x[..., None, :1] for by in (10.0, 100.0))
    q, k = (np.full((1, 2, 1, 1), value, np.float32) for value in (2, 3))
    found = attention_logits(q, k, encoding, table, Context(None, projections=double))[0, 0]
    right = 2 * 3 + 2 * 100 + 10 * 3
    np.testing.assert_allclose(found, np.array([[6, right], [6, 6]]) / math.sqrt(3), rtol=1e-6)


def test_deberta_says_how_to_pass_projections():
    encoding = encodings.deberta(hidden_size=8)
    q = np.zeros((1, 3, 2, 4), np.float32)
    with pytest.raises(ValueError, match=r"context=Context\(projections=\(to_queries, to_keys\)"):
        attention(q, q, q, encoding, encoding.init(jax.random.key(0)))


# --- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("t5(buckets=2)", "at least 4"),
        ("t5(buckets=7)", "even with bidirectional=True"),
        ("t5(max_distance=8)", "max_distance=8 must be greater than 8"),
        ("fire(width=0)", "width=0"),
        ("fire(threshold=0)", "threshold=0"),
        ("transformer_xl(clip=0)", "clip .* must be >= 1, got 0"),
        ("deberta(buckets=2)", "at least 4.*got 2"),
        ("deberta(buckets=7)", "even.*got 7"),
        ("deberta(buckets=64, max_relative_positions=33)", "below max_relative_positions - 1 = 32"),
        ("deberta(buckets=None, max_relative_positions=0)", "must be >= 1, got 0"),
    ],
)
def test_options_that_do_not_fit(name, message):
    with pytest.raises(ValueError, match=message):
        encodings.from_name(name, **SIZES)


def test_halves_of_an_odd_number_of_heads():
    with pytest.raises(ValueError, match="num_heads must be even; got 3"):
        encodings.alibi(num_heads=3, directed=True)
    encodings.alibi(num_heads=3, directed=True, learnable=True)


@pytest.mark.parametrize("name", ["t5", "deberta"])
def test_real_positions_are_an_error_where_buckets_are_of_integers(name):
    encoding = encodings.from_name(name, **SIZES)
    q = np.zeros((1, 2, 2, 4), np.float32)
    context = Context(np.array([0.0, 0.5]), projections=(lambda x: x.reshape(-1, 2, 4),) * 2)
    with pytest.raises(ValueError, match="must be integers for a learned table, got float"):
        attention(q, q, q, encoding, encoding.init(jax.random.key(0)), context)


@pytest.mark.parametrize(
    "name",
    [
        "alibi",
        "alibi(directed=True)",
        pytest.param("t5", marks=pytest.mark.slow),
        pytest.param("fire(threshold=40)", marks=pytest.mark.slow),
        pytest.param("transformer_xl", marks=pytest.mark.slow),
        "transformer_xl(clip=20)",
        "deberta(buckets=16, max_relative_positions=48)",
    ],
)
def test_long_rows_in_every_layout(name):
    """Past every clip: ranges, arrays, two packed documents, left padding."""
    encoding = encodings.from_name(name, **SIZES)
    params = away(encoding.init(jax.random.key(0)))
    rng = np.random.default_rng(0)
    half = 100
    q, k, v = rng.normal(size=(3, 1, half, 2, 4)).astype(np.float32)
    maps = rng.normal(size=(2, 8, 2, 4)).astype(np.float32)
    through = tuple(lambda x, w=w: jnp.einsum("...D,Dhd->...hd", x, w) for w in maps)

    def run(qkv, positions, mask=None, implementation="auto"):
        call = lambda *qkv: attention(
            *qkv,
            encoding,
            params,
            Context(positions, projections=through),
            mask=mask,
            implementation=implementation,
        )
        return jax.jit(call)(*qkv)

    expected = run((q, k, v), range(half), implementation="naive")
    close = dict(atol=2e-5)
    for implementation in ("auto", "fused"):
        np.testing.assert_allclose(
            run((q, k, v), range(half), implementation=implementation), expected, **close
        )
    twice = [np.concatenate([x, x], axis=1) for x in (q, k, v)]
    apart = np.repeat([0, 1], half)
    packed = run(twice, np.tile(np.arange(half), 2), (apart[:, None] == apart)[None, None])
    np.testing.assert_allclose(packed, np.concatenate([expected] * 2, axis=1), **close)
    left = [np.pad(x, [(0, 0), (7, 0), (0, 0), (0, 0)]) for x in (q, k, v)]
    at = np.maximum(np.arange(half + 7) - 7, 0)
    padded = run(left, at[None], (np.arange(half + 7) >= 7)[None, None, None])
    np.testing.assert_allclose(padded[:, 7:], expected, **close)
