"""Inputs that make no sense are errors that name the argument, in every entry and implementation.

jaxtyping's checks are switched off here: without them, the library has to refuse these by itself.
"""

import functools
import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx
from helpers.small_encodings import build, draw

import pe_jax.linen
import pe_jax.nnx
from pe_jax import adapters, encodings
from pe_jax.attention import (
    attention,
    attention_logits,
    attention_weights,
    cached_attention,
    document_mask,
    document_positions,
    dropout,
    init_cache,
    masked_softmax,
    with_index,
)
from pe_jax.attention.tpu_kernel import flash_attention
from pe_jax.encodings import Context

B, L, H, d, D = 2, 6, 2, 8, 16
Q, K, V = draw(B, L, H, d), draw(B, L, H, d, seed=1), draw(B, L, H, d, seed=2)
X = draw(B, L, D, seed=3)
IMPLEMENTATIONS = ["auto", "naive", "table", "fused", "kernel"]


@pytest.fixture(autouse=True)
def without_shape_checks():
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def run(name="none", q=Q, k=K, v=V, implementation="auto", **context):
    encoding = build(name)
    params = encoding.init(jax.random.key(0))
    return attention(
        q, k, v, encoding, params, Context(**context), implementation=implementation
    )


def cached(q, k, v):
    encoding = build("rope+causal")
    cache = init_cache(encoding, B, L, num_kv_heads=H, head_size=d, hidden_size=D)
    return cached_attention(q, k, v, cache, encoding)


def logits(q, k, v):
    return attention_logits(q, k, build("rope"), {})


def weights(q, k, v):
    return attention_weights(q, k, build("rope"), {})


def inputs(q, k, v):
    return adapters.attention_inputs(q, k, v, build("rope"))


def flash(q, k, v):
    return flash_attention(q, k, v, interpret=True)


def attention_fn(q, k, v):
    fn = adapters.attention_fn(build("rope"))
    return fn(q, k, v, mask=None, dtype=jnp.float32)


def dot_product_attention(q, k, v):
    return adapters.dot_product_attention(build("rope"))(q, k, v)


FLAX_NAMES = "query", "key", "value"
# Each takes three arrays of heads, which it calls by these names.
ENTRIES = {
    "attention": (lambda q, k, v: run(q=q, k=k, v=v), "qkv"),
    "attention_logits": (logits, "qk"),
    "attention_weights": (weights, "qk"),
    "attention_inputs": (inputs, "qkv"),
    "cached_attention": (cached, "qkv"),
    "flash_attention": (flash, "qkv"),
    "attention_fn": (attention_fn, FLAX_NAMES),
    "dot_product_attention": (dot_product_attention, FLAX_NAMES),
}
WRONG = {
    "int32": r"got int32\. Convert it, such as \w+\.astype\(jnp\.float32\)",
    "int8": "got int8",
    "uint32": "got uint32",
    "bool": "got bool",
    "complex64": r"got complex64\. Pass real numbers, such as \w+\.real",
    "float8_e4m3fn": "got float8_e4m3fn",
}


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_heads_are_floats(entry, jit):
    call, names = ENTRIES[entry]
    call = jax.jit(call) if jit else call
    for index, name in enumerate(names):
        for dtype, message in WRONG.items():
            heads = [jnp.asarray(x) for x in (Q, K, V)]
            heads[index] = heads[index].astype(dtype)
            expected = (
                f"^{name} must be float16, bfloat16, float32 or float64, {message}"
            )
            with pytest.raises(ValueError, match=expected):
                call(*heads)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_implementation_refuses_the_same(implementation):
    for wrong in (Q.astype(int), Q.astype(complex), Q > 0):
        with pytest.raises(ValueError, match="^v must be float16"):
            run(v=wrong, implementation=implementation)
    nan = np.full(L, np.nan, np.float32)
    with pytest.raises(
        ValueError, match="^positions of q must be numbers, got nan at index"
    ):
        run(
            "alibi+causal",
            positions_q=nan,
            positions_k=range(L),
            implementation=implementation,
        )
    with pytest.raises(ValueError, match="^Context.document_ids must be from 0"):
        run(document_ids=-np.ones((B, L), int), implementation=implementation)


def test_no_array_and_no_token():
    with pytest.raises(
        ValueError, match=r"^q must be .*, got list\. Pass an array, such as jnp"
    ):
        run(q=Q.tolist())
    with pytest.raises(ValueError, match="^k must be .*, got int64"):
        run(q=Q[:, :0], k=K[:, :0].astype(int), v=V[:, :0])


def test_dtypes_that_are_accepted_may_differ():
    expected = run("rope")
    for dtypes in (
        ("bfloat16", "float32", "float16"),
        ("float64", "float32", "bfloat16"),
    ):
        heads = [
            np.asarray(jnp.asarray(x), dtype) for x, dtype in zip((Q, K, V), dtypes)
        ]
        out = run("rope", *heads)
        assert out.dtype == dtypes[2]
        np.testing.assert_allclose(out.astype(jnp.float32), expected, atol=0.05)
    with pytest.raises(ValueError, match=r"^q must be .*, got >f4\. Convert it"):
        run("rope", q=Q.astype(">f4"))  # JAX has no arrays of the other byte order.


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_modules_and_embeddings_take_floats(dtype):
    wrong = jnp.asarray(X).astype(dtype)
    linen = pe_jax.linen.MultiHeadAttention(H, build("rope"))
    in_nnx = pe_jax.nnx.MultiHeadAttention(H, D, build("rope"), rngs=nnx.Rngs(0))
    variables = linen.init(jax.random.key(0), X)
    for call in (lambda *x: linen.apply(variables, *x), in_nnx, nnx.jit(in_nnx)):
        for name, inputs in (("q", [wrong]), ("k", [X, wrong]), ("v", [X, X, wrong])):
            with pytest.raises(
                ValueError, match=f"^inputs_{name} must be .*, got {dtype}"
            ):
                call(*inputs)
    with pytest.raises(ValueError, match=f"^x must be .*, got {dtype}"):
        encodings.embed(wrong, build("sinusoidal_absolute"), {})


@pytest.mark.parametrize(
    "name", ["window(max_distance=2)", "causal", "rope", "alibi+causal", "t5"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_positions_are_finite(name, value):
    positions = np.arange(L, dtype=np.float32)
    positions[3] = value
    expected = r"got nan at index .*3\]" if np.isnan(value) else "got .*inf"
    for side, context in (
        ("q", {"positions_q": positions}),
        ("k", {"positions_k": positions}),
        ("k", {"positions_q": range(L), "positions_k": jnp.asarray(positions)}),
        ("q", {"positions_q": positions.astype(np.float64), "positions_k": range(L)}),
    ):
        with pytest.raises(
            ValueError, match=f"^positions of {side} must be .*{expected}"
        ):
            run(name, **context)
    rows = np.tile(positions, (B, 1))
    with pytest.raises(ValueError, match="^positions of q must be"):
        run(name, positions_q=rows)


def test_positions_of_an_embedding_are_finite():
    positions = np.array([0, 1, np.nan, 3, 4, 5], np.float32)
    with pytest.raises(
        ValueError, match=r"^positions of x must be numbers, got nan at index \[2\]"
    ):
        encodings.embed(
            X, build("sinusoidal_absolute"), {}, Context(positions_q=positions)
        )


ONE_TO_TWO = np.array([[1, 1, 1, 2, 2, 2]] * B)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (-ONE_TO_TWO, r"from 0 to 2,147,483,646, got -2 \(int64\)"),
        (jnp.asarray(-ONE_TO_TWO, jnp.int8), r"got -2 \(int8\)"),
        (np.where(ONE_TO_TWO == 2, 2**32 + 1, 1), r"got 4,294,967,297 \(int64\)"),
        (np.where(ONE_TO_TWO == 2, 2**32, 7), r"got 4,294,967,296 \(int64\)"),
        (np.where(ONE_TO_TWO == 2, 2**31 - 1, 7), r"got 2,147,483,647 \(int64\)"),
        (
            ONE_TO_TWO.astype(np.uint64) * 2**62,
            r"got 9,223,372,036,854,775,808 \(uint64\)",
        ),
        (ONE_TO_TWO.astype(np.float32), r"integers \[B, L\].*got float32 \[2, 6\]"),
        (np.full((B, L), np.nan), "integers .*got float64"),
        (ONE_TO_TWO > 1, "integers .*got bool"),
    ],
)
def test_document_ids(ids, message):
    for name, call in (
        ("Context.document_ids", lambda: run("rope", document_ids=ids)),
        ("document_ids_q", lambda: document_mask(ids, ONE_TO_TWO)),
        ("document_ids_k", lambda: document_mask(ONE_TO_TWO, ids)),
        ("document_ids", lambda: document_positions(ids)),
        (
            "document_ids",
            lambda: flash_attention(Q, K, V, document_ids=ids, interpret=True),
        ),
    ):
        with pytest.raises(ValueError, match=f"^{name} must be .*{message}"):
            call()


def test_types_of_document_ids_are_refused_when_traced():
    for ids in (ONE_TO_TWO.astype(np.float32), ONE_TO_TWO > 1):
        with pytest.raises(ValueError, match="^Context.document_ids must be integers"):
            jax.jit(lambda ids: run("rope", document_ids=ids))(ids)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"]
)
def test_the_highest_document_of_each_dtype(dtype, jit):
    """One more than it, the number of zeros that begin a row, fits into 32 bits."""
    highest = min(np.iinfo(dtype).max, 2**31 - 2)
    ids = np.array([[0, 0, highest, highest, 0, 0]] * B, dtype)
    call = lambda ids: run("rope", document_ids=ids)
    out = (jax.jit(call) if jit else call)(ids)
    expected = run("rope", document_ids=np.array([[2, 2, 1, 1, 0, 0]] * B))
    np.testing.assert_allclose(out, expected, atol=1e-6)
    assert np.abs(out[:, :4]).min() > 0


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", ["fox+causal", "rope"])
def test_hidden_states_of_other_tokens(name, jit):
    """Of another batch, length, rank or dtype, whether the encoding reads them or not."""
    for side in "qk":
        for wrong, got in (
            (X[:1], r"\[1, 6, 16\]"),
            (X[:, :5], r"\[2, 5, 16\]"),
            (X[0], r"\[6, 16\]"),
            (np.concatenate([X, X]), r"\[4, 6, 16\]"),
            (X.astype(int), "int64|int32"),
            (X.astype(np.complex64), "complex64"),
        ):
            states = {"x_q": X, "x_k": X, f"x_{side}": wrong}
            call = lambda states: run(name, **states)
            with pytest.raises(
                ValueError, match=f"^Context.x_{side} must be .*got ({got})"
            ):
                (jax.jit(call) if jit else call)(states)


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("fox+causal", "k"),
        ("cable+causal", "k"),
        ("wall+causal", "k"),
        ("path_attention+causal", "k"),
        ("selective_rope+causal", "k"),
        ("per_row_alibi+causal", "qk"),
        ("repo", "qk"),
        ("decoupled_rope", "qk"),
        ("inkling", "q"),
    ],
)
def test_hidden_states_of_another_size(name, sides):
    """Only of the side that an encoding reads: the other may have another width."""
    for side in sides:
        states = {"x_q": X, "x_k": X, f"x_{side}": X[..., :12]}
        expected = rf"^Context.x_{side} must be \[B, L, 16\] for \w+, got \[2, 6, 12\]"
        with pytest.raises(ValueError, match=expected):
            run(name, **states)
    for side in {"q", "k"} - set(sides):
        run(name, **{"x_q": X, "x_k": X, f"x_{side}": X[..., :12]})


def test_caches_of_integers_and_indices():
    encoding = build("rope+causal")
    sizes = dict(num_kv_heads=H, head_size=d, hidden_size=D)
    for dtype in (jnp.int32, bool, jnp.complex64):
        with pytest.raises(ValueError, match="^dtype of a cache must be floating.*got"):
            init_cache(encoding, B, L, **sizes, dtype=dtype)
    cache = init_cache(encoding, B, L, **sizes)
    for index, got in (
        (2.7, r"2\.7"),
        (-1, "-1"),
        (np.array([1, -2]), "array"),
        (True, "True"),
    ):
        with pytest.raises(
            ValueError, match=f"^index must be integers from 0, got {got}"
        ):
            with_index(cache, index)
    assert with_index(cache, np.array([1, 2])).index.tolist() == [1, 2]
    context = Context(document_ids=ONE_TO_TWO)
    with pytest.raises(
        ValueError, match=r"^Context.document_ids must be .* with a cache"
    ):
        cached_attention(Q, K, V, cache, encoding, context=context)


def test_caches_and_new_tokens_that_do_not_fit():
    encoding = build("rope+causal")
    sizes = dict(num_kv_heads=H, head_size=d, hidden_size=D)
    for name, given in (("batch_size", (-1, L)), ("length", (B, -1))):
        with pytest.raises(
            ValueError, match=f"^{name} of a cache must be an integer from 0"
        ):
            init_cache(encoding, *given, **sizes)
    cache = init_cache(encoding, B, L, **sizes)
    q = Q[:, :1]
    for wrong, message in (
        (None, "^cache must be a Cache, got NoneType"),
        (
            cache.replace(index=jnp.array([0, -1])),
            r"^cache\.index must be integers from 0",
        ),
        (
            cache.replace(index=jnp.zeros(B)),
            r"^cache\.index must be integer, got float32",
        ),
        (
            cache.replace(keys=cache.keys.astype(int)),
            r"^cache\.keys must be floating, got int32",
        ),
        (
            cache.replace(values=cache.values + 1j),
            r"^cache\.values must be .*, got complex64",
        ),
        (
            cache.replace(positions=cache.positions + 0.5),
            r"^cache\.positions .*, got float32",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            cached_attention(q, q, q, wrong, encoding)
    with pytest.raises(
        ValueError, match="^k and v must have the 1 new tokens of q, got 6"
    ):
        cached_attention(q, K, V, cache, encoding)
    with pytest.raises(ValueError, match="^q, k and v .*they have four axes"):
        cached_attention(q[0], q[0], q[0], cache, encoding)
    fox = build("fox+causal")
    states = Context(x_q=X[:1, :1])
    with pytest.raises(
        ValueError, match=r"^Context.x_q must be \[B, L, D\].*got \[1, 1, 16\]"
    ):
        cached_attention(
            q,
            q,
            q,
            init_cache(fox, B, L, **sizes),
            fox,
            fox.init(jax.random.key(0)),
            states,
        )
    for wrong in (None, "rope"):
        with pytest.raises(ValueError, match="^encoding must be a PositionEncoding"):
            init_cache(wrong, B, L, **sizes)


def test_softmax_dropout_and_embeddings_refuse_the_same():
    logits = np.zeros((B, H, L, L), np.float32)
    mask = np.ones((B, 1, L, L), bool)
    for wrong in (logits.astype(int), logits.astype(complex)):
        with pytest.raises(ValueError, match="^logits must be float16"):
            masked_softmax(wrong, mask)
        with pytest.raises(ValueError, match="^x must be float16"):
            dropout(wrong, 0.5, jax.random.key(0))
    with pytest.raises(ValueError, match="^mask must be bool.*got float32"):
        masked_softmax(logits, mask.astype(np.float32))
    with pytest.raises(ValueError, match="^mask must be .*got .2, 1, 6, 5"):
        masked_softmax(logits, mask[..., :5])
    for wrong in (X[0], X[None]):
        with pytest.raises(ValueError, match=r"^x must be \[B, L, D\], got"):
            encodings.embed(wrong, build("sinusoidal_absolute"), {})


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_parameters_are_floats(dtype):
    encoding = build("rope+learned_relative")
    params = encoding.init(jax.random.key(0))
    wrong = jax.tree.map(lambda x: x.astype(dtype), params)
    expected = rf"^params\['learned_relative/\w+'\] must be floating, got {dtype}"
    for call in (attention, jax.jit(attention, static_argnums=3)):
        with pytest.raises(ValueError, match=expected):
            call(Q, K, V, encoding, wrong)


def test_a_former_name_of_an_implementation():
    with pytest.raises(ValueError, match="got 'buckets'. It is now called 'table'"):
        run(implementation="buckets")


def test_the_former_order_of_embed():
    encoding = build("sinusoidal_absolute")
    with pytest.raises(
        ValueError, match="^x must be an array, got an encoding.*embed.x, encoding"
    ):
        encodings.embed(encoding, {}, X)


def test_masks_and_biases_of_the_adapters():
    attend = adapters.attention_fn(build("rope"))
    causal = np.tril(np.ones((1, 1, L, L), bool))
    expected = attend(Q, K, V, mask=causal)
    for same in (
        causal.astype(np.float32),
        causal.astype(int),
        jnp.asarray(causal, jnp.bfloat16),
    ):
        np.testing.assert_array_equal(attend(Q, K, V, mask=same), expected)
    for additive in (
        np.where(causal, 0.0, -1e9),
        np.where(causal, np.nan, 0),
        causal * 2,
    ):
        with pytest.raises(
            ValueError, match="^mask must be bool, or 1 where .*additive == 0"
        ):
            attend(Q, K, V, mask=additive)
    for call in (attend, adapters.dot_product_attention(build("rope"))):
        for bias in (causal, causal * 1j):
            with pytest.raises(
                ValueError, match="^bias must be real numbers .*got (bool|complex)"
            ):
                call(Q, K, V, bias=bias, mask=None)


class TestDecodingWithoutCausal:
    """Decoding is causal: an encoding that is not would give other numbers in the full pass."""

    NAMES = [
        "rope",
        "none",
        "window(max_distance=2)",
        "t5",
        "fox",
        "learned_absolute+alibi",
    ]

    @staticmethod
    def expected(name):
        joined = "causal" if name == "none" else f"{name}+causal"
        return (
            f"cannot decode with a cache.*Combine it with causal: '{re.escape(joined)}'"
        )

    @pytest.mark.parametrize("name", NAMES)
    def test_linen(self, name):
        encoding = None if name == "none" else build(name)
        layer = pe_jax.linen.MultiHeadAttention(H, encoding)
        with pytest.raises(ValueError, match=self.expected(name)):
            layer.init(jax.random.key(0), X, decode=True)
        joined = (
            encodings.causal() if encoding is None else encoding + encodings.causal()
        )
        causal = pe_jax.linen.MultiHeadAttention(H, joined)
        init = jax.jit(functools.partial(causal.init, decode=True))
        cache = init(jax.random.key(0), X)
        with pytest.raises(ValueError, match="cannot decode with a cache"):
            layer.apply(cache, X, decode=True, mutable=["cache"])

    @pytest.mark.parametrize("name", NAMES)
    def test_nnx(self, name):
        encoding = None if name == "none" else build(name)
        layer = pe_jax.nnx.MultiHeadAttention(H, D, encoding, rngs=nnx.Rngs(0))
        with pytest.raises(ValueError, match=self.expected(name)):
            layer.init_cache(B, L)

    def test_plain_jax(self):
        sizes = dict(num_kv_heads=H, head_size=d, hidden_size=D)
        cache = init_cache(build("rope+causal"), B, L, **sizes)
        with pytest.raises(ValueError, match=self.expected("rope")):
            init_cache(build("rope"), B, L, **sizes)
        with pytest.raises(ValueError, match=self.expected("rope")):
            cached_attention(Q, K, V, cache, build("rope"))
