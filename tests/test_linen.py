"""The modules for Linen and NNX: the same numbers, and decoding with a cache is the full pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx, serialization
from helpers import compiled

import pe_jax.linen
import pe_jax.nnx
from pe_jax import encodings
from pe_jax.attention import (
    Cache,
    attention,
    cached_attention,
    document_positions,
    init_cache,
    padding_mask,
    with_index,
)

B, L, D, H = 2, 7, 8, 2
X = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)
X_K = (
    np.random.default_rng(2).normal(size=(B, 5, 6)).astype(np.float32)
)  # Of another width.
SIZES = dict(hidden_size=D, head_size=D // H, num_heads=H, max_length=16)

DECODED = [
    "rope(learnable=True)+causal",
    "alibi+causal",
    "learned_relative(max_distance=3)+causal",
    "t5+causal",
    "sinusoidal_absolute+causal",
    "fox+causal",
]


class Model(nn.Module):
    """The embedding and a layer of attention, in Linen."""

    encoding: encodings.PositionEncoding

    @nn.compact
    def __call__(self, x, positions=None, mask=None, document_ids=None, decode=False):
        embedding = pe_jax.linen.PositionEmbedding(self.encoding, name="embedding")
        x = embedding(x, positions, decode=decode)
        layer = pe_jax.linen.MultiHeadAttention(H, self.encoding, name="attention")
        return layer(
            x,
            positions_q=positions,
            mask=mask,
            document_ids=document_ids,
            decode=decode,
        )


class NnxModel(nnx.Module):
    """The same in NNX."""

    def __init__(self, encoding):
        rngs = nnx.Rngs(1)
        self.embedding = pe_jax.nnx.PositionEmbedding(encoding, rngs=rngs)
        self.attention = pe_jax.nnx.MultiHeadAttention(H, D, encoding, rngs=rngs)

    def __call__(self, x, positions=None, mask=None, document_ids=None, decode=False):
        x = self.embedding(x, positions, decode=decode)
        options = {"positions_q": positions, "mask": mask, "document_ids": document_ids}
        return self.attention(x, **options, decode=decode)


def named(name):
    return encodings.from_name(name, **SIZES)


@functools.cache
def made(name):
    """Parameters that are nowhere 0, drawn with NumPy; and the cache that `init` makes, None for an
    encoding that does not decode."""
    decode = named(name).is_causal
    init = lambda: Model(named(name)).init(jax.random.key(0), X, decode=decode)
    rng = np.random.default_rng(0)
    draw = lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32)
    params = jax.tree.map(draw, jax.eval_shape(init)["params"])
    return params, jax.jit(lambda: init().get("cache"))()


def in_nnx(name, params):
    """The NNX model with these parameters."""
    model = nnx.eval_shape(lambda: NnxModel(named(name)))
    state = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    filled = {part: {**own, **params.get(part, {})} for part, own in state.items()}
    assert jax.tree.map(np.shape, filled) == jax.tree.map(
        np.shape, state
    )  # And nothing more.
    nnx.update(model, nnx.State(filled))
    return model


def linen_step(name, params):
    """`step(cache, x)`: the outputs of new tokens, and the cache with them."""

    @jax.jit
    def step(cache, x):
        variables = {"params": params, "cache": cache}
        out, changed = Model(named(name)).apply(
            variables, x, decode=True, mutable=["cache"]
        )
        return out, changed["cache"]

    return step


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("rope(learnable=True)+causal", marks=pytest.mark.slow),
        pytest.param("fox", marks=pytest.mark.slow),
        "deberta",
        "learned_absolute+learned_relative(max_distance=3)",
    ],
)
def test_linen_is_nnx(name):
    """Parameters of the same names and shapes give the same outputs and gradients."""
    params, _ = made(name)
    model = in_nnx(name, params)
    graph, state = nnx.split(model, nnx.Param)

    def linen_loss(params):
        out = Model(named(name)).apply({"params": params}, X)
        return (out**2).sum(), out

    def nnx_loss(state):
        out = nnx.merge(graph, state)(X)
        return (out**2).sum(), out

    grads, out = jax.jit(jax.grad(linen_loss, has_aux=True))(params)
    others, again = jax.jit(jax.grad(nnx_loss, has_aux=True))(state)
    np.testing.assert_allclose(again, out, rtol=1e-6, atol=1e-6)
    for part, own in grads.items():
        theirs = nnx.to_pure_dict(others)[part]
        compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        jax.tree.map(compare, own, {key: theirs[key] for key in own})
    assert np.abs(jax.tree.leaves(own["position"])[0]).max() > 0


PACKED = np.array([[1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1]])


@pytest.mark.parametrize(
    "framework", [pytest.param("linen", marks=pytest.mark.slow), "nnx"]
)
@pytest.mark.parametrize(
    "name",
    [
        "rope(learnable=True)+window(max_distance=2)",
        "learned_absolute+learned_relative(max_distance=3)",
        "fox",
    ],
)
def test_packed_documents_are_each_alone(name, framework):
    """In both modules; the positions of `learned_absolute` go to the embedding."""
    params, _ = made(name)
    if framework == "nnx":
        model = in_nnx(name, params)
    else:
        model = functools.partial(Model(named(name)).apply, {"params": params})
    documents = [(0, slice(0, 2)), (0, slice(2, 6)), (1, slice(0, 7))]

    @jax.jit
    def run(x):
        positions = document_positions(PACKED)
        alone = [model(x[row : row + 1, where])[0] for row, where in documents]
        packed = model(x, positions, document_ids=PACKED)
        return alone, packed, model(x, document_ids=PACKED), model(x, positions)

    alone, packed, default, mixed = run(X)
    for (row, where), expected in zip(documents, alone, strict=True):
        np.testing.assert_allclose(packed[row, where], expected, atol=1e-5)
    if (
        "absolute" not in name
    ):  # In attention, positions start again in each document by default.
        np.testing.assert_allclose(default, packed, atol=1e-6)
    # Not the same without `document_ids`: NaN of `fox`, whose keys must be in order.
    assert not np.allclose(mixed[0, :2], packed[0, :2], atol=1e-3)


@pytest.mark.parametrize("name", DECODED)
def test_token_by_token_is_the_full_pass(name):
    """With padding of another length on the left of each row, and so other positions in each."""
    params, cache = made(name)
    padding = np.array([0, 3])
    index = np.arange(L) - padding[:, None]
    rows = np.stack([np.roll(x, pad, axis=0) for x, pad in zip(X, padding)])
    mask = padding_mask(index >= 0)

    @jax.jit
    def step(cache, x, positions):
        variables = {"params": params, "cache": cache}
        out, changed = Model(named(name)).apply(
            variables, x, positions, mask, decode=True, mutable=["cache"]
        )
        return out, changed["cache"]

    found = []
    for at in range(L):
        out, cache = step(
            cache, rows[:, at : at + 1], np.maximum(index, 0)[:, at : at + 1]
        )
        found.append(out)
    assert step._cache_size() == 1  # Compiled once for all tokens.
    full = jax.jit(lambda: Model(named(name)).apply({"params": params}, X))()
    for pad, out, expected in zip(padding, np.concatenate(found, axis=1), full):
        np.testing.assert_allclose(out[pad:], expected[: L - pad], atol=1e-5)


def test_a_prompt_at_once_then_token_by_token():
    """In NNX, where the positions are the index in the cache; compiled once for each length."""
    name, traced = "rope(learnable=True)+causal", []
    params, _ = made(name)
    model = in_nnx(name, params)
    full = nnx.jit(model)(X)
    model.attention.init_cache(B, L)

    @nnx.jit
    def step(model, x):
        traced.append(x.shape)
        return model(x, decode=True)

    found = [
        step(model, X[:, :4]),
        *(step(model, X[:, at : at + 1]) for at in range(4, L)),
    ]
    np.testing.assert_allclose(np.concatenate(found, axis=1), full, atol=1e-5)
    assert traced == [(B, 4, D), (B, 1, D)]
    assert np.isnan(
        step(model, X[:, :1])
    ).all()  # Past the end, where that is not known.
    with pytest.raises(
        ValueError, match="room for 7 tokens, but 8 are written and 1 more"
    ):
        model(X[:, :1], decode=True)
    model.attention.init_cache(B, 3)
    with pytest.raises(ValueError, match="room for 3 tokens, but 0 are written and 7"):
        step(model, X)


@pytest.mark.parametrize("framework", ["linen", "nnx"])
def test_an_embedding_counts_while_decoding(framework):
    """Without positions, each token is at its index in the sequence."""
    name = "learned_absolute+causal"
    params, cache = made(name)
    full = jax.jit(Model(named(name)).apply)({"params": params}, X)
    if framework == "nnx":
        model = in_nnx(name, params)
        model.attention.init_cache(B, L)
        with pytest.raises(
            ValueError, match=r"Call init_cache\(batch_size\), or pass positions"
        ):
            model(X[:, :1], decode=True)
        model.embedding.init_cache(B)
        step = nnx.jit(lambda model, x: model(x, decode=True))
        outputs = [step(model, x) for x in (X[:, :4], X[:, 4:5], X[:, 5:])]
    else:
        outputs, step = [], linen_step(name, params)
        for x in (X[:, :4], X[:, 4:5], X[:, 5:]):
            out, cache = step(cache, x)
            outputs.append(out)
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), full, atol=1e-5)


def test_no_documents_while_decoding():
    layer = pe_jax.nnx.MultiHeadAttention(H, D, named("rope+causal"), rngs=nnx.Rngs(0))
    layer.init_cache(B, L)
    with pytest.raises(
        ValueError, match=r"Context.document_ids must be \[B, L\] of self-attention"
    ):
        layer(X[:, :1], document_ids=PACKED[:, :1], decode=True)


def test_an_embedding_that_decodes_without_saying_so():
    module = pe_jax.linen.PositionEmbedding(named("sinusoidal_absolute"))
    with pytest.raises(ValueError, match="Pass positions or decode=True"):
        module.apply({"cache": {"other": 0}}, X[:, :1], mutable=["cache"])
    module.apply({"cache": {"other": 0}}, X[:, :1], np.array([3]), mutable=["cache"])


def test_different_lengths_need_positions():
    layer = pe_jax.nnx.MultiHeadAttention(H, D, named("rope"), rngs=nnx.Rngs(0))
    for positions in ({}, {"positions_q": range(2)}, {"positions_k": range(L)}):
        with pytest.raises(
            ValueError, match="2 queries to 7 keys needs the positions of both"
        ):
            layer(X[:, :2], X, **positions)


def test_a_cache_in_plain_jax():
    """Positions of two axes, and a cache in bfloat16."""
    encoding = encodings.rope_axial(head_size=4)
    grid = np.stack(np.divmod(np.arange(L), 3), axis=-1)
    q = k = v = X.reshape(B, L, H, 4)
    mask = np.tril(np.ones((1, 1, L, L), bool))
    full = attention(
        q, k, v, encoding, context=encodings.Context(positions_q=grid), mask=mask
    )
    cache = init_cache(
        encoding,
        B,
        L + 2,
        num_kv_heads=H,
        head_size=4,
        hidden_size=D,
        dtype=jnp.bfloat16,
    )
    assert cache.positions.shape == (B, L + 2, 2) and cache.hidden is None

    @jax.jit
    def step(cache, x, at):
        return cached_attention(
            x, x, x, cache, encoding, context=encodings.Context(positions_q=at)
        )

    for i in range(L):
        out, cache = step(cache, q[:, i : i + 1], grid[i : i + 1])
        np.testing.assert_allclose(out[:, 0], full[:, i], atol=0.03)
    assert cache.keys.dtype == jnp.bfloat16 and (cache.index == L).all()


@pytest.mark.parametrize("name", ["rope+alibi+causal", "learned_absolute+fox+causal"])
def test_rows_at_indices_of_their_own(name):
    """Prompts of other lengths, padded on the right; then tokens; then a row starts anew."""
    params, cache = made(name)
    model, step = Model(named(name)), linen_step(name, params)
    full = np.asarray(jax.jit(model.apply)({"params": params}, X))
    out, cache = step(cache, X[:, :4])
    np.testing.assert_allclose(out, full[:, :4], atol=1e-5)
    index = np.array([4, 2])
    cache = with_index(cache, index)
    rows = np.arange(B)
    for _ in range(3):
        out, cache = step(cache, X[rows, index][:, None])
        np.testing.assert_allclose(out[:, 0], full[rows, index], atol=1e-5)
        index += 1
    out, cache = step(
        with_index(cache, np.array([0, index[1]])), X[rows, [0, index[1]]][:, None]
    )
    np.testing.assert_allclose(out[:, 0], full[rows, [0, index[1]]], atol=1e-5)
    assert cache["attention"]["tokens"].index.tolist() == [1, index[1] + 1]
    out, _ = step(
        with_index(cache, np.array([L, 1])), X[:, 1:2]
    )  # The first row is full.
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()


def test_a_cache_is_serialized_by_flax():
    layer = pe_jax.linen.MultiHeadAttention(
        H, encodings.rope(head_size=D // H) + encodings.causal()
    )
    empty = jax.jit(functools.partial(layer.init, decode=True))(jax.random.key(0), X)
    append = functools.partial(layer.apply, decode=True, mutable=["cache"])
    _, changed = jax.jit(append)(empty, X[:, :3])
    data = serialization.to_bytes(changed)
    restored = serialization.from_bytes({"cache": empty["cache"]}, data)
    assert isinstance(restored["cache"]["tokens"], Cache)
    jax.tree.map(np.testing.assert_array_equal, restored, changed)


def test_rows_at_indices_of_their_own_in_nnx():
    name = "learned_absolute+rope+causal"
    model = in_nnx(name, made(name)[0])
    full = nnx.jit(model)(X)
    model.attention.init_cache(B, L)
    model.embedding.init_cache(B)
    step = nnx.jit(lambda model, x: model(x, decode=True))
    step(model, X[:, :4])
    nnx.update(model, with_index(nnx.state(model, nnx.Cache), np.array([4, 2])))
    out = step(model, np.stack([X[0, 4:6], X[1, 2:4]]))
    np.testing.assert_allclose(out, np.stack([full[0, 4:6], full[1, 2:4]]), atol=1e-5)


@pytest.mark.parametrize(
    ("message", "sizes"),
    [
        (r"k must be \[2, T, 1, 4\]", {"num_kv_heads": 1}),
        (r"k must be \[2, T, 2, 8\]", {"head_size": 8}),
        (r"k must be \[3, T, 2, 4\]", {"batch_size": 3}),
        (r"cache.hidden must have the shape \(2, 7, 8\)", {"hidden_size": 6}),
        (
            "cache.hidden must have",
            {"encoding": encodings.rope(head_size=4) + encodings.causal()},
        ),
        ("cache.positions must have", {"encoding": encodings.rope_axial(head_size=4)}),
    ],
)
def test_a_cache_that_does_not_fit(message, sizes):
    fox = named("fox+causal")
    fitting = dict(
        encoding=fox, batch_size=B, length=L, num_kv_heads=H, head_size=4, hidden_size=D
    )
    cache = init_cache(**fitting | sizes)
    heads = [X.reshape(B, L, H, 4)] * 3
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*$"):
        cached_attention(*heads, cache, fox, {}, encodings.Context(x_q=X))


def test_what_decoding_refuses():
    layer = pe_jax.nnx.MultiHeadAttention(H, D, named("rope+causal"), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"Call init_cache\(batch_size, length\)"):
        layer(X, decode=True)
    layer.init_cache(B, L)
    for message, arguments in (
        ("inputs_k without decode", {"inputs_k": X}),
        ("those of the new tokens", {"positions_k": range(L)}),
        (
            r"here \[2, 2, 7, 7\]; got \[1, 1, 7, 6\]",
            {"mask": np.ones((1, 1, 7, 6), bool)},
        ),
        (
            "must be integers when a cache is used, got float32",
            {"positions_q": np.arange(L, dtype=np.float32)},
        ),
    ):
        with pytest.raises(ValueError, match=message):
            layer(X, **arguments, decode=True)
    params, _ = made("rope+causal")
    with pytest.raises(ValueError, match="There is no cache"):
        Model(named("rope+causal")).apply(
            {"params": params}, X, decode=True, mutable=["cache"]
        )
    sizes = dict(num_kv_heads=H, head_size=4, hidden_size=D)
    for name in ("randomized(alibi)", "rope_dynamic_ntk(factor=2, original_length=4)"):
        with pytest.raises(ValueError, match="cannot decode with a cache"):
            init_cache(encodings.from_name(name, **SIZES), B, L, **sizes)
    layer = pe_jax.nnx.MultiHeadAttention(
        H, D, named("normalized_index+rope+causal"), rngs=nnx.Rngs(0)
    )
    with pytest.raises(ValueError, match="normalized_index cannot decode"):
        layer.init_cache(B, L)
    fox = encodings.from_name("fox+causal", **SIZES)
    heads = [X.reshape(B, L, H, 4)] * 3
    with pytest.raises(
        ValueError, match="reads hidden states of keys, which come from the cache"
    ):
        cached_attention(
            *heads, init_cache(fox, B, L, **sizes), fox, fox.init(jax.random.key(0))
        )


def test_attention_refuses_hidden_states_of_another_length():
    fox = encodings.from_name("fox", **SIZES)
    heads = [X.reshape(B, L, H, 4)] * 3
    with pytest.raises(
        ValueError, match=r"x_k must be .* of 7 tokens in 2 rows.*\[2, 1, 8\]"
    ):
        attention(
            *heads, fox, fox.init(jax.random.key(0)), encodings.Context(x_k=X[:, :1])
        )


def test_cross_attention():
    """Keys of another length and width, at positions of their own."""
    layer, x_k = pe_jax.linen.MultiHeadAttention(H, named("rope")), X_K
    at = dict(positions_q=np.arange(L) + 20, positions_k=np.arange(5) * 3)
    variables = jax.jit(lambda: layer.init(jax.random.key(0), X, x_k, **at))()
    found = jax.jit(lambda: layer.apply(variables, X, x_k, **at))()
    params = variables["params"]
    q, k, v = (
        np.einsum("bld,dhe->blhe", x, params[name]["kernel"])
        for x, name in ((X, "query"), (x_k, "key"), (x_k, "value"))
    )
    context = encodings.Context(**at)
    out = compiled.attention(q, k, v, encodings.rope(head_size=4), context=context)
    expected = np.einsum("blhe,hed->bld", out, params["out"]["kernel"])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="inputs_v was given without inputs_k"):
        layer.apply(variables, X, inputs_v=x_k)


def test_cross_attention_decodes_with_keys_projected_once():
    x_k, encoding = X_K, named("rope+alibi")
    mask = (np.arange(5) < np.array([[5], [3]]))[:, None, None]
    layer = pe_jax.nnx.MultiHeadAttention(
        H, D, encoding, in_kv_features=6, rngs=nnx.Rngs(0)
    )
    full = jax.jit(
        lambda: layer(X, x_k, mask=mask, positions_q=range(L), positions_k=range(5))
    )()
    k, v = layer.key(x_k), layer.value(x_k)

    @jax.jit
    def step(x, positions):
        at = encodings.Context(positions_q=positions, positions_k=range(5))
        return layer.out(
            attention(layer.query(x), k, v, encoding, context=at, mask=mask)
        )

    steps = [step(X[:, i : i + 1], np.arange(i, i + 1)) for i in range(L)]
    np.testing.assert_allclose(np.concatenate(steps, axis=1), full, atol=1e-5)


def test_parameters_are_those_of_flax():
    """Without an encoding: Flax's own modules, with the same parameters, give the same."""
    flax = nn.MultiHeadDotProductAttention(H)
    expected, variables = jax.jit(lambda: flax.init_with_output(jax.random.key(0), X))()
    ours = jax.jit(pe_jax.linen.MultiHeadAttention(H).apply)(variables, X)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    theirs = nnx.state(nnx.MultiHeadAttention(H, D, decode=False, rngs=nnx.Rngs(0)))
    own = nnx.state(pe_jax.nnx.MultiHeadAttention(H, D, rngs=nnx.Rngs(0)))
    shapes = lambda state: jax.tree.map(np.shape, nnx.to_pure_dict(state))
    assert shapes(own) == shapes(theirs)


def test_layers_share_parameters_of_an_encoding():
    rngs = nnx.Rngs(0)
    first = pe_jax.nnx.MultiHeadAttention(H, D, named("t5"), rngs=rngs)
    second = pe_jax.nnx.MultiHeadAttention(
        H, D, named("t5"), position=first.position, rngs=rngs
    )
    both = nnx.List([first, second])
    assert len(jax.tree.leaves(nnx.state(both, nnx.Param))) == 8 + 8 + 1

    layer = pe_jax.linen.MultiHeadAttention(H, named("t5"))
    out, variables = jax.jit(lambda: layer.init_with_output(jax.random.key(0), X))()
    shared = {"params": {**variables["params"]}}
    table = shared["params"].pop("position")
    found = jax.jit(lambda: layer.apply(shared, X, position=table))()
    np.testing.assert_allclose(found, out, atol=1e-6)


def test_dropout_and_dtypes():
    layer = pe_jax.linen.MultiHeadAttention(
        H, named("alibi"), dropout_rate=0.5, dtype=jnp.bfloat16
    )
    variables = jax.jit(lambda: layer.init(jax.random.key(0), X, deterministic=True))()
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}

    @jax.jit
    def run(key):
        return layer.apply(variables, X, deterministic=False, rngs={"dropout": key})

    first, again, other = (run(jax.random.key(seed)) for seed in (1, 1, 2))
    assert first.dtype == jnp.bfloat16
    assert np.array_equal(first, again) and not np.array_equal(first, other)

    rngs = nnx.Rngs(0)
    layer = pe_jax.nnx.MultiHeadAttention(
        H, D, named("alibi"), dropout_rate=0.5, rngs=rngs
    )
    run = nnx.jit(
        lambda layer, **options: layer(X, **options), static_argnames="deterministic"
    )
    twice = lambda **options: [np.asarray(run(layer, **options)) for _ in range(2)]
    np.testing.assert_array_equal(*twice(deterministic=True))
    assert not np.array_equal(*twice(deterministic=False))
    key = lambda: nnx.Rngs(dropout=3)
    calls = [np.asarray(run(layer, deterministic=False, rngs=key())) for _ in range(2)]
    np.testing.assert_array_equal(*calls)
    with pytest.raises(ValueError, match="Dropout needs deterministic"):
        layer(X)


def test_encodings_and_sizes():
    with pytest.raises(
        ValueError, match="qkv_features must be a multiple of num_heads=3, got 8"
    ):
        pe_jax.nnx.MultiHeadAttention(3, D, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"layers of cycle\(rope, none\) differ"):
        pe_jax.nnx.MultiHeadAttention(
            H, D, named("cycle(rope, none)"), rngs=nnx.Rngs(0)
        )
    # What acts at the input has no parameters here, and the other way round.
    layer = pe_jax.nnx.MultiHeadAttention(
        H, D, named("learned_absolute+t5"), rngs=nnx.Rngs(0)
    )
    assert list(layer.position) == ["t5"]
