"""Selective RoPE, GRAPE, STRING, LieRE, PaTH and others of 2025 and 2026, by hand.

The suite in pe_jax.testing does the rest, against tests/references."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits

from pe_jax import encodings
from pe_jax.attention import attention as plain_attention
from pe_jax.encodings import Context
from pe_jax.encodings.content.short_convolution import short_convolution
from pe_jax.encodings.rotary import liere
from pe_jax.encodings.rotary.skew import rotation_of, skew_matrix

SIZES = dict(hidden_size=16, head_size=8, num_heads=2, max_length=12)


def build(name, **sizes):
    return encodings.from_name(name, **{**SIZES, **sizes})


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def qk(length=6):
    return draw(2, length, 2, 8), draw(2, length, 2, 8, seed=1)


def mapped_queries(part, params, q, at):
    """Queries as the part maps them at positions `at`."""
    return np.asarray(jax.jit(lambda q: part.heads(params, q, q, q, Context(at, at))[0])(q))


# --- the convolution ------------------------------------------------------------------------------


def test_a_convolution_starts_again_where_positions_do():
    x = np.array([1.0, 10, 100, 1000, 10000])[None, :, None].astype(np.float32)
    kernel = np.array([[3.0], [2.0], [1.0]], np.float32)

    def run(x, positions, document_ids=None):
        context = Context(positions_k=positions, document_ids=document_ids)
        return np.asarray(jax.jit(lambda x: short_convolution(x, kernel, context))(x))[0, :, 0]

    np.testing.assert_array_equal(run(x, range(7, 12)), [1, 12, 123, 1230, 12300])
    documents = run(x, np.array([[0, 1, 0, 1, 2]]))
    np.testing.assert_array_equal(documents, [1, 12, 100, 1200, 12300])
    padded = run(x, np.array([0, 0, 0, 1, 2]))
    np.testing.assert_array_equal(padded, [1, 10, 100, 1200, 12300])
    np.testing.assert_array_equal(run(x[:, :1], range(1)), x[0, :1, 0])
    packed = run(x, np.array([[0, 1, 2, 7, 8]]), np.array([[1, 1, 2, 2, 2]]))
    np.testing.assert_array_equal(packed, [1, 12, 100, 1200, 12300])


# --- selective_rope -------------------------------------------------------------------------------


def test_selective_rope_of_tokens_that_add_one_angle_is_rope():
    """Each half of the hidden state has length 1: its share of the angle is what U and V say."""
    encoding = build("selective_rope(rank=1, width=1, base=10000)")
    x, down = np.zeros((2, 6, 16), np.float32), np.zeros((16, 1), np.float32)
    x[..., [0, 8]], down[0], down[8] = 5.0, 0.25, 0.5
    up, convolution = (np.full((1, 2, 4), value, np.float32) for value in (4.0, 0.5))
    params = {"down": down, "up": up, "convolution": convolution}
    q, k = qk()
    context = Context(range(6), x_q=x, x_k=x)
    found = attention_logits(q, k, encoding, {"selective_rope": params}, context)
    stretched = Context(1.5 * np.arange(6, dtype=np.float32))
    expected = attention_logits(q, k, build("rope"), {}, stretched)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_selective_rope_turns_by_what_is_between_query_and_key():
    encoding = build("selective_rope(stddev=0.7)")
    params = jax.jit(encoding.init)(jax.random.key(0))
    q, k = qk()
    x = draw(2, 6, 16, seed=2)
    # The convolution of tokens 4 and 5 sees token 1 no more.
    other = x.copy()
    other[:, 0] += 1.0
    logits = jax.jit(lambda x: attention_logits(q, k, encoding, params, Context(range(6), x_k=x)))
    found, changed = np.asarray(logits(x)), np.asarray(logits(other))
    np.testing.assert_allclose(changed[..., 4:, 4:], found[..., 4:, 4:], atol=1e-5)
    assert np.abs(changed[..., 0, 1] - found[..., 0, 1]).max() > 1e-3


def test_selective_rope_says_what_it_needs():
    encoding = build("selective_rope")
    params = encoding.init(jax.random.key(0))
    q, k = qk()
    with pytest.raises(ValueError, match=r"selective_rope computes .* x_k=x"):
        attention(q, k, k, encoding, params)
    with pytest.raises(ValueError, match="rank=0 and width=4"):
        build("selective_rope(rank=0)")
    with pytest.raises(ValueError, match="multiple of num_heads .* got 16 and 3"):
        build("selective_rope", num_heads=3)


# --- GRAPE ----------------------------------------------------------------------------------------


def test_grape_m_rotates_the_plane_of_two_vectors():
    """a and b that are not orthogonal, of length 2 and 3 at 30 degrees: they span an area of 3."""
    encoding = build("grape_m")
    a, b = np.zeros((2, 2, 8), np.float32)
    a[:, 3], b[:, 3], b[:, 5] = 2.0, 3 * np.sqrt(3) / 2, 1.5
    params = {"a": a, "b": b, "frequencies": np.array([0.1, 0.02], np.float32)}
    (part,) = encoding.parts
    frequencies = jax.jit(part.metadata.frequencies)(params)
    np.testing.assert_allclose(frequencies, [[0.3], [0.06]], rtol=1e-6)
    q, _ = qk()
    at = np.array([0, 1, 4, 9, 11, 2**17])
    moved = mapped_queries(part, params, q, at)
    for head, frequency in enumerate((0.3, 0.06)):
        cos, sin = np.cos(frequency * at[:5]), np.sin(frequency * at[:5])
        x, y = q[:, :5, head, 3], q[:, :5, head, 5]
        found = moved[:, :5, head]
        np.testing.assert_allclose(found[..., 3], x * cos + y * sin, atol=1e-5)
        np.testing.assert_allclose(found[..., 5], y * cos - x * sin, atol=1e-5)
    rest = [0, 1, 2, 4, 6, 7]
    np.testing.assert_allclose(moved[..., rest], q[..., rest], atol=1e-6)
    np.testing.assert_allclose((moved**2).sum(-1), (q**2).sum(-1), rtol=1e-5)


def test_grape_m_starts_with_orthonormal_vectors_and_ropes_frequencies():
    params = build("grape_m(base=16)", num_heads=4).init(jax.random.key(0))["grape_m"]
    vectors = np.stack([params["a"], params["b"]], 1)
    gram = vectors @ vectors.swapaxes(1, 2)
    np.testing.assert_allclose(gram, np.tile(np.eye(2), (4, 1, 1)), atol=1e-6)
    np.testing.assert_allclose(params["frequencies"], [1, 0.5, 0.25, 0.125], rtol=1e-6)
    with pytest.raises(ValueError, match="head_size of at least 2 and a positive base, got 1"):
        build("grape_m", head_size=1)


@pytest.mark.parametrize("gate", ["query", "key", "both"])
def test_grape_a_of_equal_slopes_is_alibi(gate):
    """Queries and keys without a part along v and u: softplus(0) = log 2 each."""
    encoding = build(f"grape_a(gate={gate!r})")
    q, k = (x * np.array([0.0] + [1.0] * 7, np.float32) for x in qk())
    along = np.eye(1, 8, dtype=np.float32).repeat(2, 0) * 5.0
    slopes = np.log(2) * (2 if gate == "both" else 1)
    raw = np.log(np.expm1(1 / slopes))  # softplus of it is 1 / slopes.
    params = {"scale": np.full(2, raw, np.float32), "query": along, "key": along}
    found = attention_logits(q, k, encoding, {"grape_a": params})
    expected = attention_logits(q, k, build("alibi"), {})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_grape_a_has_a_slope_for_each_query_and_key():
    encoding = build("grape_a", num_heads=1)
    q, k = np.zeros((2, 1, 2, 1, 8), np.float32)
    q[0, 1, 0, 0], k[0, 0, 0, 1] = np.sqrt(8) * 3.0, np.sqrt(8) * 2.0
    query, key = np.eye(2, 8, dtype=np.float32)[:, None] * np.float32([7, 9])[:, None, None]
    params = {"scale": np.zeros(1, np.float32), "query": query, "key": key}
    found = attention_logits(q, k, encoding, {"grape_a": params}, Context(np.array([2, 12])))
    softplus = lambda x: np.log1p(np.exp(x))
    slope = np.array(
        [[0, softplus(0) + softplus(0)], [softplus(3) + softplus(2), 0]]
    )  # By query and key.
    np.testing.assert_allclose(found[0, 0], -10 * np.log(2) * 2.0**-8 * slope, rtol=1e-5)


# --- STRING, LieRE --------------------------------------------------------------------------------


def grid(rows, columns):
    index = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    return np.stack(index, -1).reshape(-1, 2)


def test_exponentials_of_skew_matrices():
    rng = np.random.default_rng(0)

    @partial(jax.jit, static_argnums=1)
    def exponential(upper, size):
        skew = skew_matrix(upper, size)
        return skew, rotation_of(skew)

    for size, scale in ((2, 1e-4), (5, 1.0), (5, 20.0), (5, 300.0)):
        upper = scale * rng.normal(size=(4, size * (size - 1) // 2))
        skew, found = exponential(upper.astype(np.float32), size)
        np.testing.assert_array_equal(skew, -np.swapaxes(skew, 1, 2))
        np.testing.assert_array_equal(skew[:, 0, 1:], upper[:, : size - 1].astype(np.float32))
        # By eigenvectors: i times a skew-symmetric matrix is Hermitian.
        values, vectors = np.linalg.eigh(1j * np.asarray(skew, np.float64))
        conjugate = vectors.conj().swapaxes(1, 2)
        expected = (vectors * np.exp(-1j * values)[:, None]) @ conjugate
        np.testing.assert_allclose(found, expected.real, atol=2e-6 * max(1, scale * size))
    np.testing.assert_array_equal(exponential(np.zeros((1, 3), np.float32), 3)[1][0], np.eye(3))


def test_string_starts_as_rope():
    q, k = qk()
    at = np.arange(6) + 2**17
    encoding = build("string")
    params = encoding.init(jax.random.key(0))
    found = attention_logits(q, k, encoding, params, Context(at))
    np.testing.assert_allclose(found, attention_logits(q, k, build("rope"), {}), atol=2e-3)
    axial = build("string(axes=2, base=100)")
    w = axial.init(jax.random.key(0))["string"]["frequencies"]
    np.testing.assert_allclose(w, [[1, 0.1, 0, 0], [0, 0, 1, 0.1]], rtol=1e-6)


def test_string_rotates_in_another_basis_that_shifts_leave_alone():
    """Generators Pᵀ L_a P commute: exp of their sum depends on differences alone."""
    encoding = build("string(axes=2, per_head=True)")
    params = {
        "skew": draw(2, 28, seed=3),
        "frequencies": draw(2, 2, 4, seed=4),
    }
    q, k = qk()
    found = attention_logits(q, k, encoding, {"string": params}, Context(grid(2, 3)))
    shifted = Context(grid(2, 3) + np.array([1000, -300]))
    far = attention_logits(q, k, encoding, {"string": params}, shifted)
    np.testing.assert_allclose(far, found, atol=2e-3)
    plain = {**params, "skew": np.zeros_like(params["skew"])}
    other = attention_logits(q, k, encoding, {"string": plain}, Context(grid(2, 3)))
    np.testing.assert_allclose(
        np.diagonal(other, axis1=2, axis2=3), np.diagonal(found, axis1=2, axis2=3), atol=1e-5
    )  # P is orthogonal.
    assert np.abs(other - found).max() > 0.1


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        pytest.param("liere(width=3)", np.arange(7), marks=pytest.mark.slow),
        ("liere(block=3)", np.random.default_rng(1).integers(0, 9, (2, 7, 2))),
    ],
)
def test_liere_for_some_positions_at_a_time(name, positions, monkeypatch):
    """Blocks of two positions, the last one padded: the same logits and gradients."""
    encoding = build(name)
    params = encoding.init(jax.random.key(0))
    q, k = (draw(2, 7, 2, 8, seed=seed) for seed in (1, 2))

    def loss(params, q, k):
        return (attention_logits(q, k, encoding, params, Context(positions)) ** 2).sum()

    run = lambda: jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(params, q, k)
    whole = run()
    monkeypatch.setattr(liere, "_WHOLE", 0)
    monkeypatch.setattr(liere, "numbers_at_once", lambda: 300)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), whole, run())


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
    monkeypatch.setattr(liere, "cut_axis", lambda *args: cuts.append(0) or cut_axis(*args))
    monkeypatch.setattr(liere, "_WHOLE", 7 * 2 * 8**2)  # Matrices of 7 positions and 2 heads.
    encoding = build("liere")
    params, q = encoding.init(jax.random.key(0)), draw(2, 7, 2, 8)
    for positions, cut in ((np.ones((7, 2)), False), (np.ones((2, 7, 2)), True)):
        jax.eval_shape(
            lambda positions: plain_attention(q, q, q, encoding, params, Context(positions)),
            positions,
        )
        assert bool(cuts) == cut


def test_liere_rotates_default_positions_once(monkeypatch):
    calls = []
    counted = lambda matrices: calls.append(0) or rotation_of(matrices)
    monkeypatch.setattr(liere, "rotation_of", counted)
    encoding = build("liere(width=3)")
    q = draw(1, 7, 2, 8)
    plain_attention(q, q, q, encoding, encoding.init(jax.random.key(0)))
    assert len(calls) == 1


def test_liere_in_blocks_of_two_is_mixed_rope():
    liere, mixed = build("liere(block=2, side=1)"), build("rope_mixed")
    generators = draw(2, 2, 4, 1)
    q, k = qk()
    found = attention_logits(
        q, k, liere, {"liere": {"generators": generators}}, Context(grid(2, 3))
    )
    frequencies = {"rope_mixed": {"frequencies": -generators[..., 0]}}
    expected = attention_logits(q, k, mixed, frequencies, Context(grid(2, 3)))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_liere_counts_patches_and_divides_by_the_side():
    q, k = qk()
    by_pair, counted = build("liere(side=2)"), build("liere(side=2, width=3)")
    params = by_pair.init(jax.random.key(0))
    assert params["liere"]["generators"].shape == (2, 2, 1, 28)
    found = attention_logits(q, k, counted, params)
    np.testing.assert_allclose(
        found, attention_logits(q, k, by_pair, params, Context(grid(2, 3))), atol=1e-5
    )
    whole = attention_logits(q, k, build("liere(side=1)"), params, Context(grid(2, 3) / 2))
    np.testing.assert_allclose(found, whole, atol=1e-5)
    with pytest.raises(ValueError, match=r"axes must be at least 2, got 1.*string\(axes=1\)"):
        build("liere(axes=1)")
    with pytest.raises(ValueError, match="multiple of 6 for pairs of 3 axes, got 8"):
        build("string(axes=3)")


# --- path_attention -------------------------------------------------------------------------------


def reflections(beta, **changes):
    """Parameters with which a token whose hidden state is e_n (n < 8) has w = e_n in each head."""
    return {
        "down": np.eye(16, 8, dtype=np.float32),
        "up": np.stack([np.eye(8, dtype=np.float32)] * 2, 1) * np.float32(1e3),
        "convolution": np.ones((1, 2, 8), np.float32),
        "beta": {
            "kernel": np.zeros((16, 2), np.float32),
            "bias": np.full(2, np.log(beta / (2 - beta)), np.float32),
        },
        **changes,
    }


def test_path_attention_reflects_keys_at_every_token_on_the_way():
    encoding = build("path_attention(rank=8, width=1)+causal")
    x = np.eye(16, dtype=np.float32)[[0, 1, 0, 2]][None]
    q, k = np.ones((1, 4, 2, 8), np.float32), np.ones((1, 4, 2, 8), np.float32)
    params = {"path_attention": reflections(1.5)}
    logits = jax.jit(lambda x: attention_logits(q, k, encoding, params, Context(range(4), x_k=x)))
    found = np.asarray(logits(x))[0, 0]
    # A coordinate is multiplied by 1 - 1.5 at each token that has it as w.
    expected = np.array([[8, 8, 8, 8], [6.5, 8, 8, 8], [5, 6.5, 8, 8], [3.5, 5, 6.5, 8]])
    np.testing.assert_allclose(found * np.sqrt(8), expected, rtol=1e-5)
    found = np.asarray(logits(x[:, [0, 0, 0, 2]]))[0, 0]
    np.testing.assert_allclose(found[2, 0] * np.sqrt(8), 7 + 0.25, rtol=1e-5)


def test_path_attention_is_refused_without_causal_attention():
    encoding = build("path_attention")
    q, k = qk()
    params = encoding.init(jax.random.key(0))
    with pytest.raises(ValueError, match=r"it multiplies .*'path_attention\+causal'"):
        attention(q, k, k, encoding, params, Context(range(6), x_k=draw(2, 6, 16)))
    with pytest.raises(ValueError, match="rank=32 and width=0"):
        build("path_attention(width=0)")


# --- rope_slice, decoupled_rope -------------------------------------------------------------------


def test_a_slice_is_rope_by_itself_and_the_rest_has_no_position():
    encoding, q = build("rope_slice(size=4, layout='half')"), draw(1, 5, 2, 8)
    at = np.array([0, 3, 2**17, 7, 1])
    found = mapped_queries(encoding.parts[0], {}, q, at)
    rope = build("rope", head_size=4)
    expected = mapped_queries(rope.parts[0], {}, q[..., 4:], at)
    np.testing.assert_array_equal(found[..., :4], q[..., :4])
    np.testing.assert_allclose(found[..., 4:], expected, atol=1e-6)
    still = encodings.with_factors(encoding, jnp.zeros_like)
    np.testing.assert_allclose(mapped_queries(still.parts[0], {}, q, at), q, atol=1e-6)
    assert encoding.parts[0].metadata.pairs == ((4, 6), (5, 7))
    with pytest.raises(ValueError, match="must be 2 to head_size=8, got 10"):
        build("rope_slice(size=10)")


def test_decoupled_rope_is_a_slice_of_heads_that_are_built_outside():
    """The same logits from heads of d + r dimensions, rotated in the last r."""
    encoding = build("decoupled_rope(size=4, stddev=1)")
    params = encoding.init(jax.random.key(0))
    q, k = qk()
    x = draw(2, 6, 16, seed=2)
    context = Context(range(6), x_q=x, x_k=x)
    found = attention_logits(q, k, encoding, params, context)
    more_q = np.einsum("blD,Dhr->blhr", x, params["decoupled_rope"]["query"])
    more_k = np.einsum("blD,Dr->blr", x, params["decoupled_rope"]["key"])[:, :, None]
    more_k = np.broadcast_to(more_k, more_q.shape)
    whole = build("rope_slice(size=4)", head_size=12)
    expected = attention_logits(np.append(q, more_q, -1), np.append(k, more_k, -1), whole, {})
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"decoupled_rope computes .* queries .* x_q=x"):
        attention(q, k, k, encoding, params, Context(range(6), x_k=x))


# --- patches of an image --------------------------------------------------------------------------


def test_sinusoids_of_an_image_count_columns_first():
    encoding = build("sinusoidal_2d(width=3, cls=True)")
    (part,) = encoding.parts
    found = np.asarray(part.metadata.vectors({}, np.arange(7)))
    assert found.shape == (7, 16) and not found[0].any()
    w = np.array([1, 0.1, 0.01, 0.001])
    column, row = 2, 1  # Patch 5 of three columns is the sixth token after [CLS].
    expected = [np.sin(w * column), np.cos(w * column), np.sin(w * row), np.cos(w * row)]
    np.testing.assert_allclose(found[6], np.concatenate(expected), atol=1e-6)
    pairs = build("sinusoidal_2d(cls=True)").parts[0].metadata.vectors
    with_cls = np.concatenate([[[-1, -1]], grid(2, 3)])
    np.testing.assert_allclose(pairs({}, with_cls), found, atol=1e-6)
    end = build("sinusoidal_2d(width=3, end=True)").parts[0].metadata.vectors({}, np.arange(3))
    w = 10_000.0 ** (-np.arange(4) / 3)
    np.testing.assert_allclose(end[1, :4], np.sin(w), atol=1e-6)
    with pytest.raises(ValueError, match="multiple of 4 .* got 18"):
        build("sinusoidal_2d", hidden_size=18)
    with pytest.raises(ValueError, match="at least 1.*got 0"):
        build("sinusoidal_2d(width=0)")


def test_learned_tables_of_an_image():
    encoding = build("learned_2d(height=2, width=3, cls=True)")
    params = jax.jit(encoding.init)(jax.random.key(0))["learned_2d"]
    params = jax.tree.map(np.asarray, params)
    assert params["table"].shape == (2, 3, 16) and encoding.max_length == 7
    vectors = encoding.parts[0].metadata.vectors
    np.testing.assert_array_equal(vectors(params, np.array([0, 6])),
                                  [params["cls"], params["table"][1, 2]])  # fmt: skip
    with pytest.raises(ValueError, match="table of length 7"):
        encodings.embed(encoding, {"learned_2d": params}, np.zeros((1, 8, 16), np.float32))
    # Of another size: what the docstring says.
    larger = build("learned_2d(height=4, width=6, cls=True)")
    resized = {**params, "table": jax.image.resize(params["table"], (4, 6, 16), "bilinear")}
    x = encodings.embed(larger, {"learned_2d": resized}, np.zeros((1, 25, 16), np.float32))
    np.testing.assert_array_equal(x[0, 0], params["cls"])


def test_factorised_tables_of_an_image():
    encoding = build("learned_2d(height=2, width=3, factorised=True)")
    params = jax.jit(encoding.init)(jax.random.key(0))["learned_2d"]
    params = jax.tree.map(np.asarray, params)
    assert {name: leaf.shape for name, leaf in params.items()} == {
        "columns": (3, 8),
        "rows": (2, 8),
    }
    found = np.asarray(encoding.parts[0].metadata.vectors(params, np.arange(6))).reshape(2, 3, 16)
    for row in range(2):
        for column in range(3):
            expected = np.append(params["columns"][column], params["rows"][row])
            np.testing.assert_array_equal(found[row, column], expected)
    with pytest.raises(
        ValueError, match="with factorised=True hidden_size must be even; got 2, 3 and 15"
    ):
        build("learned_2d(height=2, width=3, factorised=True)", hidden_size=15)


# --- inkling --------------------------------------------------------------------------------------


def test_inkling_weighs_distances_by_a_projection_of_the_query():
    encoding = build("inkling(extent=2, rank=1)")
    params = {
        "projection": np.zeros((16, 2, 1), np.float32),
        "table": np.array([[2.0], [3.0], [5.0]], np.float32),  # Of offsets -1, 0, 1.
    }
    params["projection"][0, :, 0] = 1.0, 10.0
    x = np.zeros((1, 4, 16), np.float32)
    x[0, :, 0] = 1.0, 2.0, 3.0, 4.0
    zero = np.zeros((1, 4, 2, 8), np.float32)
    context = Context(range(4), x_q=x)
    found = attention_logits(zero, zero, encoding, {"inkling": params}, context)[0]
    expected = np.array([[3, 5, 0, 0], [4, 6, 10, 0], [0, 6, 9, 15], [0, 0, 8, 12]])
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], 10 * expected)
    left = build("inkling(extent=2, rank=1, bidirectional=False)")
    params["table"] = params["table"][:2]
    found = attention_logits(zero, zero, left, {"inkling": params}, context)[0, 0]
    np.testing.assert_array_equal(found, np.tril(expected))


def test_inkling_says_what_it_needs():
    encoding = build("inkling(extent=4)")
    params = encoding.init(jax.random.key(0))
    q, k = qk()
    with pytest.raises(ValueError, match=r"inkling computes .* queries .* x_q=x"):
        attention(q, k, k, encoding, params)
    real = Context(np.arange(6) / 2, x_q=draw(2, 6, 16))
    with pytest.raises(ValueError, match="integer offsets .* got float"):
        attention(q, k, k, encoding, params, real)
    with pytest.raises(ValueError, match="got 0 and 16"):
        build("inkling(extent=0)")


# --- sink -----------------------------------------------------------------------------------------


def test_a_sink_takes_a_share_of_the_weights():
    """exp(log 3) beside three keys of logit 0, in the first head; exp(0) in the second."""
    q, v = np.zeros((1, 3, 2, 8), np.float32), np.ones((1, 3, 2, 8), np.float32)
    params = {"sink": {"logit": np.array([np.log(3.0), 0.0], np.float32)}}
    out = attention(q, q, v, build("sink"), params)
    np.testing.assert_allclose(out[0, :, 0], 0.5, rtol=1e-6)
    np.testing.assert_allclose(out[0, :, 1], 0.75, rtol=1e-6)
    out = attention(q, q, v, build("sink(learnable=False)"))
    np.testing.assert_allclose(out, 0.75, rtol=1e-6)


# --- dape -----------------------------------------------------------------------------------------


def test_dape_sees_products_and_biases_of_all_heads():
    """A hidden unit that adds up the second head's product and bias, for the first head."""
    encoding, (q, k) = build("alibi+dape(width=1)"), qk()
    plain = attention_logits(q, k, build("alibi"), {})
    params = {
        "hidden": {"kernel": np.float32([[0], [1], [0], [1]]), "bias": np.float32([2])},
        "out": {"kernel": np.float32([[3, 0]]), "bias": np.float32([0, 5])},
    }
    plain = np.asarray(plain)
    found = np.asarray(attention_logits(q, k, encoding, {"dape": params}))
    hidden = plain[:, 1] + 2
    hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
    np.testing.assert_allclose(found[:, 0], plain[:, 0] + 3 * hidden, atol=1e-5)
    np.testing.assert_allclose(found[:, 1], plain[:, 1] + 5, atol=1e-5)


def test_dape_v2_with_a_kernel_of_one_is_dape():
    params = jax.jit(build("dape").init)(jax.random.key(0))
    one = jax.tree.map(lambda x: np.asarray(x)[None] if x.ndim == 2 else x, params["dape"])
    (q, k), v2 = qk(), build("alibi+dape_v2(kernel_size=1)")
    expected = attention_logits(q, k, build("alibi+dape"), params)
    np.testing.assert_allclose(
        attention_logits(q, k, v2, {"dape_v2": one}), expected, rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ValueError, match="kernel_size must be odd and at least 1, got 4"):
        build("dape_v2(kernel_size=4)")


def test_dape_v2_meets_neighbours_on_the_side_that_its_kernel_says():
    """Only the first rows of the kernels: the product two keys to the left."""
    (q, k), heads = qk(), 2
    hidden = np.zeros((3, 2 * heads, 1), np.float32)
    out = np.zeros((3, 1, heads), np.float32)
    hidden[0, 1], out[0, 0, 0] = 1.0, 1.0
    params = {
        "hidden": {"kernel": hidden, "bias": np.zeros(1, np.float32)},
        "out": {"kernel": out, "bias": np.zeros(heads, np.float32)},
    }
    plain = np.asarray(attention_logits(q, k, build("none"), {}))
    found = np.asarray(attention_logits(q, k, build("dape_v2(width=1)"), {"dape_v2": params}))
    leaky = np.where(plain[:, 1] > 0, plain[:, 1], 0.01 * plain[:, 1])
    moved = np.pad(leaky, ((0, 0), (0, 0), (2, 0)))[..., :-2]
    np.testing.assert_allclose(found[:, 0], plain[:, 0] + moved, atol=1e-5)
    np.testing.assert_allclose(found[:, 1], plain[:, 1], atol=1e-6)


@pytest.mark.parametrize("name", ["dape", "dape_v2"])
def test_networks_of_logits_do_not_see_forbidden_keys(name):
    """Biases of -inf, from heads that look to one side and from chunks, and masks."""
    encoding = build(f"alibi(directed=True)+chunks(size=4)+{name}")
    params = jax.jit(encoding.init)(jax.random.key(0))
    (q, k), mask = qk(), (np.arange(6) < 5)[None, None, None]

    def loss(q, k, params):
        out = attention(q, k, k, encoding, params, mask=mask)
        return (out[:, :2] ** 2).sum()

    value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, k, params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, grads)))
    seen = np.abs(np.asarray(grads[1])).max(axis=(0, 2, 3)) > 0
    np.testing.assert_array_equal(seen, np.arange(6) < 4)
