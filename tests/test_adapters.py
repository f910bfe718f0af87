"""Encodings inside the attention of Flax, `jax.nn` and Equinox."""

import functools
import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from helpers import compiled
from scipy.special import softmax

import pe_jax.linen
import pe_jax.nnx
from pe_jax import encodings
from pe_jax.adapters import attention_fn, attention_inputs, dot_product_attention
from pe_jax.attention import (
    attention,
    attention_logits,
    attention_weights,
    cached_attention,
    init_cache,
)
from pe_jax.encodings import Context

B, L, D, H, d = 2, 6, 8, 2, 4
X = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)
Q, K, V = np.random.default_rng(1).normal(size=(3, B, L, H, d)).astype(np.float32)
CAUSAL = np.tril(np.ones((1, 1, L, L), bool))
NONE = encodings.none()


def named(name):
    return encodings.from_name(
        name, hidden_size=D, head_size=d, num_heads=H, max_length=16
    )


def decode(encoding):
    encoding = encoding if encoding.parts else encodings.causal()
    cache = init_cache(encoding, B, L, num_kv_heads=H, head_size=d, hidden_size=D)
    return cached_attention(Q, K, V, cache, encoding)


ENTRIES = {
    "attention": lambda encoding: attention(Q, K, V, encoding),
    "attention_logits": lambda encoding: attention_logits(Q, K, encoding, {}),
    "attention_weights": lambda encoding: attention_weights(Q, K, encoding, {}),
    "cached_attention": decode,
    "attention_inputs": lambda encoding: attention_inputs(Q, K, V, encoding),
    "attention_fn": attention_fn,
    "dot_product_attention": dot_product_attention,
    "Linen": lambda encoding: pe_jax.linen.MultiHeadAttention(H, encoding).init(
        jax.random.key(0), X
    ),
    "NNX": lambda encoding: pe_jax.nnx.MultiHeadAttention(
        H, D, encoding, rngs=nnx.Rngs(0)
    ),
    "AttentionFn": lambda encoding: pe_jax.nnx.AttentionFn(encoding, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", ["learned_absolute", "complex_order+raw_index"])
def test_an_encoding_that_acts_at_the_input_alone(entry, name):
    with pytest.raises(
        ValueError, match="not in attention. Pass encoding.in_attention"
    ):
        ENTRIES[entry](named(name))
    ENTRIES[entry](named(name).in_attention)


class Layer(nn.Module):
    """Flax's own attention, with an encoding."""

    encoding: encodings.PositionEncoding

    @nn.compact
    def __call__(self, x, mask=None, context=None, decode=False):
        params = self.param("position", self.encoding.init)
        return nn.MultiHeadDotProductAttention(
            H,
            attention_fn=attention_fn(self.encoding, params, context),
            decode=decode,
            name="flax",
        )(x, mask=mask)


@functools.cache
def layer_of(name):
    layer = Layer(named(name))
    variables = jax.jit(lambda: layer.init(jax.random.key(0), X, decode=True))()
    return layer, variables["params"], variables["cache"]


NAME = "rope(learnable=True)+learned_relative(max_distance=3)"


def test_flax_linen():
    """The same as our own module, with Flax's masks of 0 and 1, and gradients."""
    layer, params, _ = layer_of(NAME)
    mask = nn.make_causal_mask(X[..., 0])
    assert mask.dtype == jnp.float32

    def loss(params):
        out = layer.apply({"params": params}, X, mask)
        return (out**2).sum(), out

    def ours(params):
        own = {**params["flax"], "position": params["position"]}
        module = pe_jax.linen.MultiHeadAttention(H, named(NAME))
        out = module.apply({"params": own}, X, mask=CAUSAL)
        return (out**2).sum(), out

    grads, out = jax.jit(jax.grad(loss, has_aux=True))(params)
    expected_grads, expected = jax.jit(jax.grad(ours, has_aux=True))(params)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, grads, expected_grads)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads["position"]))


def test_flax_linen_decodes_with_its_cache():
    layer, params, cache = layer_of(NAME)

    @jax.jit
    def step(cache, x, index):
        context = Context(
            positions_q=index[None]
        )  # Keys are at their index in the cache.
        variables = {"params": params, "cache": cache}
        out, changed = layer.apply(
            variables, x, context=context, decode=True, mutable=["cache"]
        )
        return out, changed["cache"]

    found = []
    for at in range(L):
        out, cache = step(cache, X[:, at : at + 1], jnp.asarray(at))
        found.append(out)
    full = jax.jit(lambda: layer.apply({"params": params}, X, CAUSAL))()
    np.testing.assert_allclose(np.concatenate(found, axis=1), full, atol=1e-5)
    with pytest.raises(
        ValueError, match="1 queries to 6 keys needs the positions of both"
    ):
        layer.apply(
            {"params": params, "cache": cache}, X[:, :1], decode=True, mutable=["cache"]
        )


def test_flax_linen_hands_over_no_hidden_states():
    layer = Layer(named("fox"))
    run = lambda context: jax.eval_shape(
        layer.init, jax.random.key(0), X, None, context
    )
    with pytest.raises(
        ValueError, match="queries, keys and values only. Hidden states"
    ):
        run(None)
    assert run(Context(x_q=X, x_k=X))["params"]["position"]["fox"]
    layer = Layer(named("deberta"))
    with pytest.raises(ValueError, match=r"attention_fn\(encoding, params, Context\("):
        run(None)


def test_flax_linen_dropout_and_what_it_refuses():
    run, key = attention_fn(NONE), jax.random.key(0)

    @jax.jit
    def outputs(q):
        drop = functools.partial(
            run, q, K, V, mask=None, dropout_rate=0.5, dropout_rng=key
        )
        dropped = drop(), attention(q, K, V, dropout_rate=0.5, dropout_rng=key)
        return dropped, (drop(deterministic=True), run(q, K, V, mask=None))

    dropped, whole = outputs(Q)
    np.testing.assert_array_equal(*dropped)
    np.testing.assert_array_equal(*whole)
    assert not np.allclose(dropped[0], whole[0])
    rounded = jax.eval_shape(lambda q: run(q, K, V, mask=None, dtype=jnp.bfloat16), Q)
    assert rounded.dtype == jnp.bfloat16
    for refused in (
        {"precision": "highest"},
        {"module": nn.Module()},
        {"qk_attn_weights_einsum": jnp.einsum},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(refused))} is not supported"):
            run(Q, K, V, mask=None, **refused)


def test_any_number_of_batch_axes():
    """None and two, with a mask and a bias for each."""
    run = jax.jit(attention_fn(named("alibi")))
    bias = np.linspace(-1, 1, L * L, dtype=np.float32).reshape(1, 1, L, L)
    expected = run(Q, K, V, bias, CAUSAL)
    one = run(Q[0], K[0], V[0], bias[0], CAUSAL[0])
    np.testing.assert_allclose(one, expected[0], atol=1e-6)
    mask = np.broadcast_to(CAUSAL, (B, 1, L, L))[None]
    two = run(Q[None], K[None], V[None], bias, mask)
    np.testing.assert_allclose(two, expected[None], atol=1e-6)


def flax_nnx(encoding, **options):
    rngs = nnx.Rngs(0)
    fn = pe_jax.nnx.AttentionFn(encoding, rngs=rngs)
    return nnx.MultiHeadAttention(
        H, D, attention_fn=fn, decode=False, rngs=rngs, **options
    )


def test_flax_nnx():
    """Our own module's numbers; parameters of the encoding are the module's, and have gradients."""
    layer = flax_nnx(named("rope(learnable=True)"))
    own = pe_jax.nnx.MultiHeadAttention(
        H, D, named("rope(learnable=True)+causal"), rngs=nnx.Rngs(1)
    )
    state = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
    state["position"] = state.pop("attention_fn")["position"]
    nnx.update(own, nnx.State(state))
    ours = nnx.jit(own)(X)
    theirs = nnx.jit(lambda layer: layer(X, is_causal=True))(layer)
    np.testing.assert_allclose(theirs, ours, atol=1e-6)
    grads = nnx.jit(nnx.grad(lambda layer: (layer(X, is_causal=True) ** 2).sum()))(
        layer
    )
    frequencies = grads["attention_fn"]["position"]["rope"]["frequencies"]
    assert np.abs(frequencies[...]).max() > 0


@pytest.mark.parametrize("is_causal", [False, True])
def test_flax_nnx_decodes_with_its_cache(is_causal):
    """Two heads share keys and values. With `is_causal`, which goes by positions, as well: Flax's
    own attention would have a single query attend to the first key only (flax#5591)."""
    layer = flax_nnx(named("rope+alibi"), num_kv_heads=1)
    full = nnx.jit(lambda layer: layer(X, is_causal=True))(layer)
    layer.init_cache(X.shape)
    traced = []

    @nnx.jit
    def step(layer, x):
        traced.append(x.shape)
        with layer.attention_fn.at_positions(layer.cache_index[None]):
            return layer(x, is_causal=is_causal, decode=True)

    with pytest.raises(ValueError, match="1 queries to 6 keys needs the positions"):
        nnx.clone(layer)(X[:, :1], decode=True)
    found = [step(layer, X[:, at : at + 1]) for at in range(L)]
    np.testing.assert_allclose(np.concatenate(found, axis=1), full, atol=1e-5)
    assert len(traced) == 1
    again = nnx.jit(lambda layer: layer(X, is_causal=True))(layer)
    np.testing.assert_allclose(again, full, atol=1e-5)


def test_positions_end_with_the_statement():
    """Of one call, in `jit` as well: a later one has its own."""
    fn = pe_jax.nnx.AttentionFn(named("t5"), rngs=nnx.Rngs(0))
    expected, far = fn(Q, K, V, mask=None), range(100, 100 + L)
    with fn.at_positions(range(L), far):
        shifted = nnx.jit(lambda fn: fn(Q, K, V, mask=None))(fn)
        other = fn(Q, K, V, mask=None)
    np.testing.assert_allclose(other, shifted, atol=1e-6)
    assert np.abs(shifted - expected).max() > 1e-3
    np.testing.assert_array_equal(fn(Q, K, V, mask=None), expected)
    with pytest.raises(ZeroDivisionError), fn.at_positions(far):
        1 / 0  # noqa: B018
    np.testing.assert_array_equal(fn(Q, K, V, mask=None), expected)


def test_a_function_around_it_that_loses_the_mask():
    """Flax passes the arguments that a function names, its causal mask among them."""
    encoding = named("rope")
    mask = nn.make_causal_mask(X[..., 0])

    class Around(nn.Module):
        wrap: object

        @nn.compact
        def __call__(self, x):
            attend = self.wrap(attention_fn(encoding))
            return nn.MultiHeadDotProductAttention(H, attention_fn=attend)(x, mask=mask)

    def loses(attend):
        return lambda *args, **arguments: attend(*args, **arguments)

    def keeps(attend):
        return functools.wraps(attend)(loses(attend))

    with pytest.raises(ValueError, match="without mask. .* with functools.wraps"):
        Around(loses).init(jax.random.key(0), X)
    out, variables = Around(keeps).init_with_output(jax.random.key(0), X)
    np.testing.assert_array_equal(
        out, Around(lambda attend: attend).apply(variables, X)
    )


def test_flax_nnx_input_positions():
    """An argument that Flax's module is to hand over; it is the queries' and, in self-attention,
    the keys'."""
    fn = pe_jax.nnx.AttentionFn(named("rope"), rngs=nnx.Rngs(0))
    at = np.array([[0, 1, 2, 3, 4, 5], [3, 7, 8, 9, 20, 30]])
    expected = attention(Q, K, V, named("rope"), context=Context(positions_q=at))
    np.testing.assert_allclose(
        fn(Q, K, V, mask=None, input_positions=at), expected, atol=1e-6
    )


BIAS = np.random.default_rng(0).normal(size=(1, H, L, L)).astype(np.float32)


@pytest.mark.parametrize(
    "arguments",
    [
        {"bias": BIAS, "scale": 0.3},
        {"mask": CAUSAL, "bias": BIAS[:, :1]},
        {"is_causal": True, "local_window_size": 2},
        {
            "local_window_size": (1, 3),
            "key_value_seq_lengths": np.array([6, 5], np.int32),
        },
        {"query_seq_lengths": np.array([2, 6], np.int32)},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_jax_nn(arguments):
    run = lambda attend: jax.jit(lambda q: attend(q, K, V, **arguments))(Q)
    expected = run(jax.nn.dot_product_attention)
    np.testing.assert_allclose(run(dot_product_attention(NONE)), expected, atol=1e-5)


def test_jax_nn_groups_of_heads_and_no_batch():
    one = K[:, :, :1], V[:, :, :1]
    run = dot_product_attention(NONE)

    @jax.jit
    def outputs(q, k, v):
        expected = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return (
            expected,
            run(q, k, v, is_causal=True),
            run(q[0], k[0], v[0], is_causal=True),
        )

    expected, found, alone = outputs(Q, *one)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(alone, expected[0], atol=1e-5)
    with pytest.raises(ValueError, match="heads of keys divide those of queries"):
        run(np.concatenate([Q, Q[:, :, :1]], axis=2), K, V)


def test_jax_nn_with_an_encoding():
    """Gradients flow to parameters and to a bias; `causal` is not joined twice."""
    encoding = named("t5+causal")
    params = encoding.init(jax.random.key(0))

    def loss(params, bias):
        return (
            dot_product_attention(encoding, params)(Q, K, V, bias, is_causal=True) ** 2
        ).sum()

    for leaf in jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1)))(params, BIAS)):
        assert np.abs(leaf).max() > 0
    axial = encodings.rope_axial(head_size=d)
    grid = Context(positions_q=np.stack(np.divmod(np.arange(L), 3), axis=-1))
    on_grid = functools.partial(dot_product_attention(axial, None, grid), scale=1.0)
    assert jax.eval_shape(on_grid, Q, K, V, BIAS).shape == Q.shape
    with pytest.raises(
        ValueError, match="6 queries to 3 keys needs the positions of both"
    ):
        dot_product_attention(encoding, params)(Q, K[:, :3], V[:, :3])
    for refused, match in (
        ({"implementation": "cudnn"}, "implementation is not supported"),
        ({"return_residual": True}, "return_residual is not supported"),
        ({"mask": BIAS}, "Pass an additive mask as a bias"),
    ):
        with pytest.raises(ValueError, match=match):
            dot_product_attention(NONE)(Q, K, V, **refused)


@pytest.mark.parametrize("implementation", ["flash", None, 5, jax.nn.softmax])
def test_implementations_are_names(implementation):
    """Whatever takes one refuses others when it is made, not in its first call."""
    makers = (
        attention_fn,
        dot_product_attention,
        functools.partial(pe_jax.nnx.AttentionFn, rngs=nnx.Rngs(0)),
        lambda encoding, **more: pe_jax.nnx.MultiHeadAttention(
            2, 8, encoding, rngs=nnx.Rngs(0), **more
        ),
    )
    for make in makers:
        with pytest.raises(
            ValueError, match="^implementation must be one of auto, naive"
        ):
            make(NONE, implementation=implementation)


def test_heads_of_rotary_encodings():
    """Such as Equinox takes: mapped, without a bias or a mask."""
    encoding = named("rope(learnable=True)")
    params = encoding.init(jax.random.key(0))
    *heads, bias, mask = attention_inputs(Q, K, V, encoding, params)
    assert bias is None and mask is None
    np.testing.assert_allclose(
        attention(*heads), attention(Q, K, V, encoding, params), atol=1e-6
    )


@pytest.fixture(scope="module")
def page():
    """What docs/modules.md defines, its blocks run one after the other."""
    page = Path(__file__).parents[1] / "docs/modules.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    found = {}
    for block in blocks:
        if "equinox" not in block or importlib.util.find_spec("equinox"):
            exec(block, found)
    return found


def test_the_page_of_modules(page):
    assert page["out"].shape == (2, 1, 32) and not np.isnan(page["out"]).any()


def test_the_pages_cache_with_padding_on_the_left(page):
    """Three tokens of a row alone, and after two of padding."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 1, 3, 2, 8)).astype(np.float32)
    q, alone = q[:, -1:], compiled.attention(q, k, v, page["rotary"])[:, -1:]
    padded = [
        np.concatenate([np.ones((1, 2, 2, 8), np.float32), x], axis=1) for x in (k, v)
    ]
    attend = lambda *heads: page["attend_to_cache"](*heads, 4, np.array([2]))
    out = jax.jit(attend)(q, *padded)
    np.testing.assert_allclose(out, alone, atol=1e-6)


def test_the_pages_decoder_gives_the_same_with_a_cache(page):
    decoder, text = page["decoder"], page["text"]
    full = decoder(text)
    decoder.init_cache(batch_size=1, length=8)
    parts = [decoder(text[:, :5], decode=True)]
    parts += [decoder(text[:, i : i + 1], decode=True) for i in range(5, 8)]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), full, atol=1e-5)
    assert text[0, 5:].tolist() == full[0, 4:7].argmax(-1).tolist()
    assert np.abs(full[0, 1:] - full[0, :-1]).max() > 1e-2  # Tokens differ.


def test_the_pages_t5_has_the_logits_of_t5(page):
    q, k, v = np.random.default_rng(0).normal(size=(3, 1, 4, 2, 8)).astype(np.float32)
    layer = page["T5Attention"](2, nnx.Rngs(0))
    offsets = np.arange(4)[None] - np.arange(4)[:, None]
    buckets = np.abs(offsets) + 16 * (
        offsets > 0
    )  # As near as this, one for each offset.
    bias = np.moveaxis(np.asarray(layer.position["t5"]["table"][...])[buckets], -1, 0)
    weights = softmax(np.einsum("bqhd,bkhd->bhqk", q, k) + bias, axis=-1)
    expected = np.einsum("bhqk,bkhd->bqhd", weights, v)
    np.testing.assert_allclose(jax.jit(layer)(q, k, v), expected, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["learned_absolute", "learned_relative(max_distance=4)", "none"]
)
@pytest.mark.parametrize(
    "module", ["Model", "FlaxLayer", "NnxAttention", "AttentionFn"]
)
def test_the_pages_modules_see_the_order(page, module, name):
    """With an absolute and a relative encoding; NNX's take what acts in attention alone."""
    x = np.random.default_rng(0).normal(size=(1, 6, 32)).astype(np.float32)
    encoding = encodings.from_name(
        name, hidden_size=32, head_size=8, num_heads=4, max_length=64
    )
    if module in ("Model", "FlaxLayer"):
        model = page[module](encoding)
        run = functools.partial(model.apply, jax.jit(model.init)(jax.random.key(1), x))
    else:
        rngs = nnx.Rngs(0)
        if module == "NnxAttention":
            layer = page[module](4, 32, encoding.in_attention, rngs=rngs)
        else:
            fn = page[module](encoding.in_attention, rngs=rngs)
            layer = nnx.MultiHeadAttention(
                4, 32, attention_fn=fn, decode=False, rngs=rngs
            )
        embedding = pe_jax.nnx.PositionEmbedding(encoding, rngs=rngs)
        run = lambda x: layer(embedding(x))
    swapped = x[:, np.array([0, 1, 4, 3, 2, 5])]  # Others than the last token.
    one, other = np.asarray(jax.jit(run)(np.concatenate([x, swapped])))[:, -1]
    change = np.abs(one - other).max()
    assert (change < 1e-5) if name == "none" else (change > 1e-5)


@pytest.mark.parametrize(
    "name",
    ["rope+t5+causal", "relative_key_query", "fox+window(max_distance=2)", "alibi"],
)
@pytest.mark.parametrize("scale", [None, 1.0])
def test_inputs_of_any_attention(name, scale):
    """`jax.nn`'s attention of these inputs is ours, also at other positions and with fewer keys."""
    encoding = encodings.from_name(
        name, hidden_size=8, head_size=Q.shape[-1], num_heads=Q.shape[2], max_length=32
    )
    params = jax.jit(encoding.init)(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(*Q.shape[:2], 8)).astype(np.float32)
    at = encodings.Context(positions_q=np.arange(Q.shape[1])[None] * 2, x_q=x, x_k=x)
    k, v = K[:, :, :1], V[:, :, :1]
    mask = np.ones((1, 1, 1, K.shape[1]), bool)
    mask[..., -1] = False

    @jax.jit
    def outputs(*heads):
        inputs = attention_inputs(*heads, encoding, params, at, mask=mask, scale=scale)
        found = jax.nn.dot_product_attention(*inputs, scale=scale)
        return found, attention(*heads, encoding, params, at, mask=mask)

    np.testing.assert_allclose(*outputs(Q, k, v), atol=2e-5)


def test_inputs_of_any_attention_refuse():
    table = encodings.learned_relative(head_size=Q.shape[-1], max_distance=2)
    with pytest.raises(
        ValueError, match="learned_relative.* adds position vectors to the values"
    ):
        attention_inputs(Q, K, V, table, table.init(jax.random.key(0)))
