"""KERPLE, Sandwich, TISA, dynamic bias, relative_key, NEZHA, TENER, CABLE, CoPE, by hand.

The suite in pe_jax.testing does the rest, against tests/references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import attention, attention_logits

from pe_jax import encodings
from pe_jax.encodings import Context

SIZES = dict(hidden_size=8, head_size=4, num_heads=2, max_length=4)


def made(name, **sizes):
    encoding = encodings.from_name(name, **{**SIZES, **sizes})
    return encoding, encoding.init(jax.random.key(0))


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def bias(name, own, offsets, **sizes):
    """What a bias adds at these offsets, [..., H]."""
    (part,) = made(name, **sizes)[0].parts
    return np.asarray(part.offsets.bias(own, np.array(offsets), Context()))


# --- KERPLE ---------------------------------------------------------------------------------------


def test_kerple_by_hand():
    own = {"r1": np.float32([2.0, 1.0]), "r2": np.float32([1.0, 3.0])}
    found = bias("kerple", own, [0, 3, -3, 5])
    expected = [[0, 0], [np.log(4) * 2, np.log(10)], [np.log(4) * 2, np.log(10)]]
    np.testing.assert_allclose(found[:3], -np.array(expected), rtol=1e-6)
    np.testing.assert_allclose(found[3], [-2 * np.log(6), -np.log(16)], rtol=1e-6)
    # A power above 2 counts as 2.
    found = bias("kerple(kernel='power')", own, [0, 3, -3])
    np.testing.assert_allclose(found, [[0, 0], [-6, -9], [-6, -9]], rtol=1e-6)


@pytest.mark.parametrize("kernel", ["log", "power"])
def test_kerple_beyond_a_bound_has_its_value_and_a_gradient(kernel):
    name = f"kerple(kernel={kernel!r})"
    total = lambda own: jnp.sum(made(name)[0].parts[0].offsets.bias(own, np.arange(4), Context()))
    low = {"r1": np.float32([-1.0, 0.01]), "r2": np.float32([-1.0, 0.01])}
    np.testing.assert_array_equal(*np.moveaxis(bias(name, low, range(4)), -1, 0))
    grads = jax.jit(jax.grad(total))(low)
    assert all(grad[0] == grad[1] != 0 for grad in grads.values())


def test_kerple_starts_as_the_authors_do():
    many = dict(num_heads=4000)
    for kernel, widths in (("log", (2, 1)), ("power", (1, 2))):
        own = made(f"kerple(kernel={kernel!r})", **many)[1]["kerple"]
        for r, width in zip((own["r1"], own["r2"]), widths):
            assert r.min() >= 0 and 0.99 * width < r.max() <= width
            assert abs(r.mean() - width / 2) < 0.05


# --- Sandwich, TISA -------------------------------------------------------------------------------


def test_sandwich_by_hand():
    found = bias("sandwich(dim=4, base=100)", {}, [0, 2, -2])  # w = 1/10 and 1/100, c = 4 and 8.
    drop = np.cos(0.2) + np.cos(0.02) - 2
    np.testing.assert_allclose(
        found, [[0, 0], [drop / 4, drop / 8], [drop / 4, drop / 8]], atol=1e-7
    )


def test_sandwich_decreases_up_to_an_offset_of_thirteen():
    found = bias("sandwich", {}, np.arange(200))[:, 0]
    assert np.argmax(np.diff(found) > 0) == 13
    assert found[50] > found[100] > found[199]


def test_sandwich_is_the_product_of_its_position_vectors():
    """Up to what does not depend on the key, and far out."""
    x = np.arange(2**17, 2**17 + 50)
    w = 1e4 ** (-2 * np.arange(1, 65) / 128)
    p = np.concatenate([np.sin(np.outer(x, w)), np.cos(np.outer(x, w))], axis=1)
    found = bias("sandwich", {}, x[None] - x[:, None], num_heads=8)
    for h in (0, 7):
        np.testing.assert_allclose(found[..., h], (p @ p.T - 64) / (h + 1), atol=1e-3)


def test_tisa_by_hand():
    own = {"amplitude": [[2.0, 0.0]], "sharpness": [[-0.5, 1.0]], "centre": [[1.0, 0.0]]}
    found = bias(
        "tisa(kernels=1)",
        jax.tree.map(np.float32, own, is_leaf=lambda x: type(x) is list),
        [1, 3, -1],
    )
    np.testing.assert_allclose(found[:, 0], [2, 2 * np.exp(-2), 2 * np.exp(-2)], rtol=1e-6)
    np.testing.assert_array_equal(found[:, 1], 0)


# --- dynamic position bias ------------------------------------------------------------------------


def test_dynamic_position_bias_of_one_unit_by_hand():
    name = "dynamic_position_bias(width=1, depth=1, activation='relu', bound=4)"
    own = {
        "hidden_0": {"kernel": np.float32([[2.0]]), "bias": np.float32([0.5])},
        "out": {"kernel": np.float32([[1.0, -1.0]]), "bias": np.float32([0.0, 3.0])},
    }
    hidden = np.maximum(2 * np.array([0, np.log(4), -np.log(4)]) + 0.5, 0)
    out = hidden[:, None] * [1, -1] + [0, 3]
    np.testing.assert_allclose(bias(name, own, [0, 3, -3]), 4 / (1 + np.exp(-out)), rtol=1e-6)


def test_dynamic_position_bias_has_a_quarter_of_the_hidden_size():
    _, params = made("dynamic_position_bias", hidden_size=768, num_heads=12)
    assert {name: own["kernel"].shape for name, own in params["dynamic_position_bias"].items()} == {
        "hidden_0": (1, 192),
        "hidden_1": (192, 192),
        "out": (192, 12),
    }


# --- relative_key, NEZHA --------------------------------------------------------------------------


def test_relative_key_rows_count_query_minus_key():
    """Of max_length 4: rows 0 .. 6 are i - j = -3 .. 3, and of farther offsets the last ones."""
    part = made("relative_key")[0].parts[0]
    table = {"table": np.arange(7, dtype=np.float32)[:, None]}
    rows = part.metadata.vectors(table, np.array([3, 1, 0, -1, -3, 9, -9]))[:, 0]
    np.testing.assert_array_equal(rows, [0, 2, 3, 4, 6, 0, 6])


def test_a_relative_key_resized_has_the_same_vector_at_each_offset():
    encoding, params = made("relative_key")
    longer, _ = made("relative_key", max_length=9)
    table = encoding.resize(params, 9, "")["relative_key"]
    offsets = np.arange(-8, 9)
    vectors = [e.parts[0].metadata.vectors for e in (encoding, longer)]
    np.testing.assert_array_equal(
        vectors[0](params["relative_key"], offsets), vectors[1](table, offsets)
    )
    back = longer.resize({"relative_key": table}, 4, "repeat")
    np.testing.assert_array_equal(back["relative_key"]["table"], params["relative_key"]["table"])
    with pytest.raises(ValueError, match="has shape"):
        longer.split(params)  # Its rows would be those of other offsets.


def test_relative_key_query_meets_the_key_as_well():
    q, k = draw(1, 3, 2, 4), draw(1, 3, 2, 4, seed=1)
    params = {"table": draw(7, 4, seed=2)}
    p = params["table"][np.arange(3)[:, None] - np.arange(3) + 3]
    content = np.einsum("bqhd,bkhd->bhqk", q, k) + np.einsum("bqhd,qkd->bhqk", q, p)
    for name, more in (
        ("relative_key", 0),
        ("relative_key_query", np.einsum("bkhd,qkd->bhqk", k, p)),
    ):
        found = attention_logits(q, k, made(name)[0], {name: params})
        np.testing.assert_allclose(found, (content + more) / 2, atol=1e-6)


def test_nezha_is_the_papers_sinusoid_with_rotated_projections():
    """S(m + clip) = R S(m): R undone at queries and keys, and at values and outputs."""
    nezha, paper = made("nezha(clip=3)")[0], made("sinusoidal_relative(clip=3)")[0]
    w = encodings.default_frequencies(4)
    rotate = lambda x, by: encodings.rotate_pairs(x, np.array(by), w)
    q, k, v = (draw(2, 9, 2, 4, seed=n) for n in range(3))
    expected = attention(q, k, v, nezha)
    back = attention(rotate(q, -3), rotate(k, -3), rotate(v, -3), paper)
    np.testing.assert_allclose(rotate(back, 3), expected, atol=1e-5)
    assert np.abs(attention(q, k, v, paper) - expected).max() > 0.1


# --- TENER ----------------------------------------------------------------------------------------


def test_tener_by_hand():
    """Two dimensions, so that R_x = (sin x, cos x) with x = i - j; one head; real positions."""
    plain, scaled = (
        made(name, head_size=2, num_heads=1)[0] for name in ("tener", "tener(scale=True)")
    )
    params = {"tener": {"u": np.float32([[7.0, 0.0]]), "v": np.float32([[0.0, 11.0]])}}
    q = np.array([[2.0, 0.0], [0.0, 4.0]]).reshape(1, 2, 1, 2)
    k = np.array([[6.0, 1.0], [8.0, 1.0]]).reshape(1, 2, 1, 2)
    q, k = q.astype(np.float32), k.astype(np.float32)
    at = np.array([0.0, 0.7])
    found = attention_logits(q, k, plain, params, Context(at))[0, 0]
    s, c = np.sin(0.7), np.cos(0.7)
    expected = [[9 * 6 + 11, 9 * 8 - 2 * s + 11 * c], [7 * 6 + 4 + 15 * c, 7 * 8 + 4 + 15]]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    scaled = attention_logits(
        q, k, made("tener(scale=True)", head_size=2, num_heads=1)[0], params, Context(at)
    )
    np.testing.assert_allclose(scaled[0, 0], found / np.sqrt(2), rtol=1e-5)


# --- CABLE ----------------------------------------------------------------------------------------


def lengths(*of_tokens):
    """Hidden states whose first coordinate is the length of the token."""
    return jnp.zeros((1, len(of_tokens), 8)).at[0, :, 0].set(jnp.array(of_tokens))


def test_cable_adds_up_the_lengths_between_query_and_key():
    first = jnp.zeros((8, 2)).at[0].set(1.0)
    params = {"cable": {"length": first, "weight": 2 * first}}
    x = lengths(1.0, 3.0, -5.0, 2.0)  # A negative one counts 0.
    zero = np.zeros((1, 4, 2, 4), np.float32)
    context = Context(range(4), x_k=x)
    plain = made("cable(weighted=False)")[0]
    found = attention_logits(zero, zero, plain, params, context)[0, 1]
    s = np.array([1, 4, 4, 6])
    expected = -np.abs(s[:, None] - s)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    weighted = attention_logits(zero, zero, made("cable")[0], params, context)[0, 1]
    g = np.log1p(np.exp(2 * x[0, :, 0]))
    np.testing.assert_allclose(weighted, g[:, None] * expected, rtol=1e-5)


def test_cable_of_tokens_of_one_length_is_alibi():
    first = jnp.zeros((8, 2)).at[0].set(jnp.array([2.0**-4, 2.0**-8]))
    zero = np.zeros((1, 5, 2, 4), np.float32)
    found = attention_logits(
        zero, zero, made("cable(weighted=False)")[0], {"cable": {"length": first}},
        Context(range(5), x_k=lengths(*[1.0] * 5)),
    )  # fmt: skip
    np.testing.assert_allclose(
        found, attention_logits(zero, zero, encodings.alibi(num_heads=2), {}), atol=1e-6
    )


def test_cable_of_the_published_code():
    """Lengths softplus(x·a + b) = -log σ(-x·a - b), without weights: `fox` with other signs."""
    encoding, params = made("cable(weighted=False, gate='softplus')")
    assert set(params["cable"]) == {"length", "bias"}
    a, b, x = draw(8, 2), draw(2), draw(1, 6, 8)
    zero, context = np.zeros((1, 6, 2, 4), np.float32), Context(range(6), x_k=x)
    found = attention_logits(zero, zero, encoding, {"cable": {"length": a, "bias": b}}, context)
    fox = encodings.fox(hidden_size=8, num_heads=2)
    side = {"kernel": -a, "bias": -b}
    expected = attention_logits(zero, zero, fox, {"fox": {"left": side, "right": side}}, context)
    left = np.tri(6, dtype=bool)
    np.testing.assert_allclose(found[..., left], expected[..., left], atol=1e-5)


# --- CoPE -----------------------------------------------------------------------------------------


def test_cope_with_open_gates_counts_keys():
    """Gates of 1: the query's own key is at position 1, the next to the left at 2, and so on."""
    encoding, _ = made("cope(npos_max=4)+causal")
    table = jnp.arange(4.0)[:, None] * np.float32([1.0, 0, 0, 0])
    q = jnp.zeros((1, 5, 2, 4)).at[..., 0].set(100.0)
    found = attention_logits(q, q, encoding, {"cope": {"table": table}})[0, 0]
    expected = np.tril(np.minimum(np.arange(5)[:, None] - np.arange(5) + 1, 3))
    np.testing.assert_allclose((found - 100 * 100 / 2) / 100, expected, atol=1e-5)


def test_cope_with_half_open_gates_lies_between_two_positions():
    encoding, _ = made("cope+causal")
    table = jnp.zeros((64, 4)).at[0, 0].set(3.0).at[1, 0].set(5.0)
    q = jnp.zeros((1, 1, 2, 4)).at[..., 0].set(1.0)
    k = jnp.zeros((1, 1, 2, 4)).at[..., 1].set(1.0)  # q·k = 0, a gate of 1/2.
    found = attention_logits(q, k, encoding, {"cope": {"table": table}})
    np.testing.assert_allclose(found, 4.0, rtol=1e-6)


def test_cope_does_not_count_hidden_keys():
    """A key that a mask hides within the row has no part in the positions of those before it."""
    encoding, _ = made("cope(npos_max=8)+causal")
    params = {"cope": {"table": draw(8, 4)}}
    q, k, v = (draw(1, 6, 2, 4, seed=seed) for seed in range(3))
    shown = np.array([0, 1, 3, 4, 5])
    mask = jnp.zeros((1, 1, 1, 6), bool).at[..., shown].set(True)
    hidden = attention(q, k, v, encoding, params, mask=mask)[:, shown]
    alone = attention(q[:, shown], k[:, shown], v[:, shown], encoding, params)
    np.testing.assert_allclose(hidden, alone, atol=1e-5)


def test_cope_is_refused_without_causal_attention():
    encoding, params = made("cope")
    q = draw(1, 3, 2, 4)
    with pytest.raises(
        ValueError, match=r"cope needs causal attention: it counts .*'cope\+causal'"
    ):
        attention(q, q, q, encoding, params)
    attention(q, q, q, *made("cope+causal"))


# --- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kerple(kernel='exp')", "kernel"),
        ("sandwich(dim=3)", "must be even and positive, got 3"),
        ("tisa(kernels=0)", "kernels must be at least 1, got 0"),
        ("dynamic_position_bias(depth=0)", "depth=0"),
        ("dynamic_position_bias(bound=0)", "bound=0"),
        ("nezha(clip=0)", "clip .* must be >= 1, got 0"),
        ("cope(npos_max=1)", "npos_max must be at least 2, got 1"),
        ("rope_slice(size=3)", r"size \(default .*\) must be even and positive, got 3"),
        ("decoupled_rope(size=0)", r"size \(default .*\) must be even and positive, got 0"),
    ],
)
def test_options_that_do_not_fit(name, message):
    with pytest.raises(ValueError, match=message):
        made(name)


def test_cable_says_what_it_needs():
    encoding, params = made("cable")
    q = draw(1, 3, 2, 4)
    with pytest.raises(ValueError, match=r"cable computes its terms .* x_k=x"):
        attention(q, q, q, encoding, params)
    with pytest.raises(ValueError, match="cable needs .* every query must be among the keys"):
        attention(q, q, q, encoding, params, Context(range(3, 6), range(3), x_k=draw(1, 3, 8)))
