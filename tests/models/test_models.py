"""BERT: exact parameter trees, what each input does, and what the position encoding changes."""

import dataclasses
import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from helpers import paper_attention
from helpers.compiled import value_and_pullback

from pe_jax import encodings
from pe_jax.models import PRESETS, Bert, BertConfig, BertForPretraining, preset, with_position
from pe_jax.models.layers import Dense, DenseParts, activate, linear
from pe_jax.tasks.losses import cross_entropy

CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    intermediate_size=12,
    max_length=16,
    initializer_stddev=0.5,
)

# Each kind by itself, and one combination.
EACH = [*encodings.PAPER[:7], "learned_absolute+learnable_sinusoidal_relative"]

POSITIONS = {
    "learned_absolute": {"table": (16, 8)},
    "sinusoidal_absolute": {},
    "learnable_sinusoidal_absolute": {"frequencies": (4,)},
    "learned_relative": {"table": (7, 4)},
    "sinusoidal_relative": {},
    "learnable_sinusoidal_relative": {"frequencies": (2,)},
    "none": {},
}

LAYER = {
    "attention/qkv/kernel": (8, 3, 2, 4),
    "attention/qkv/bias": (3, 2, 4),
    "attention/out/kernel": (2, 4, 8),
    "attention/out/bias": (8,),
    "attention_norm/scale": (8,),
    "attention_norm/bias": (8,),
    "up/kernel": (8, 12),
    "up/bias": (12,),
    "down/kernel": (12, 8),
    "down/bias": (8,),
    "mlp_norm/scale": (8,),
    "mlp_norm/bias": (8,),
}

SHARED = {
    "bert/token/embedding": (11, 8),
    "bert/segment/embedding": (2, 8),
    "bert/embedding_norm/scale": (8,),
    "bert/embedding_norm/bias": (8,),
    **{f"bert/layer_{i}/{name}": shape for i in range(2) for name, shape in LAYER.items()},
    "masked_lm/dense/kernel": (8, 8),
    "masked_lm/dense/bias": (8,),
    "masked_lm/norm/scale": (8,),
    "masked_lm/norm/bias": (8,),
    "masked_lm/bias": (11,),  # No kernel: the output embedding is the input's.
    "pooler/dense/kernel": (8, 8),
    "pooler/dense/bias": (8,),
    "next_sentence/kernel": (8, 2),
    "next_sentence/bias": (2,),
}


def build(position, **changes):
    position = paper_attention.clipped(position, 3)
    return BertForPretraining(dataclasses.replace(with_position(CONFIG, position), **changes))


@functools.cache
def shapes(position):
    one = jnp.zeros((1, 4), jnp.int32)
    return jax.eval_shape(build(position).init, jax.random.key(0), one, one[:, :1])


@functools.cache
def make(position="learned_absolute"):
    """A model and random parameters, biases included; nothing is compiled to draw them."""
    rng = np.random.default_rng(0)
    draw = lambda leaf: jnp.asarray(rng.normal(scale=0.5, size=leaf.shape), leaf.dtype)
    return build(position), jax.tree.map(draw, shapes(position))


@functools.cache
def make_encoder(position):
    """`encode(tokens, segments, mask, positions)` of the encoder of `make`, compiled once for each
    shape."""
    model, variables = make(position)
    apply = jax.jit(Bert(model.config).apply)
    return functools.partial(apply, {"params": variables["params"]["bert"]})


def tokens(rows=2, length=6, seed=1):
    return jnp.asarray(np.random.default_rng(seed).integers(0, 11, (rows, length)))


@pytest.mark.parametrize("name", encodings.PAPER)
def test_exact_parameter_tree(name):
    parts = name.split("+")
    position = {f"{p}/{leaf}": s for p in parts for leaf, s in POSITIONS[p].items()}
    expected = {**SHARED, **{f"bert/position/{leaf}": s for leaf, s in position.items()}}
    got = flax.traverse_util.flatten_dict(shapes(name)["params"], sep="/")
    assert {path: leaf.shape for path, leaf in got.items()} == expected
    assert {leaf.dtype for leaf in got.values()} == {jnp.dtype("float32")}


def test_bert_base_has_110_million_parameters():
    model = BertForPretraining(preset("base"))
    one = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), one, one)
    # As published for the original: 109,482,240 in the encoder with its pooler; the heads add
    # 768·768 + 768 + 2·768 + 30,522 (masked LM, tied) and 2·768 + 2 (next sentence).
    heads = 768 * 768 + 768 + 2 * 768 + 30_522 + 2 * 768 + 2
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 109_482_240 + heads


def test_presets():
    assert {name: (p["num_layers"], p["hidden_size"]) for name, p in PRESETS.items()} == {
        "tiny": (2, 128),
        "mini": (4, 256),
        "small": (4, 512),
        "medium": (8, 512),
        "base": (12, 768),
        "large": (24, 1024),
        "ettin_17m": (7, 256),
        "ettin_32m": (10, 384),
        "ettin_68m": (19, 512),
        "modernbert_base": (22, 768),
        "modernbert_large": (28, 1024),
    }
    assert preset("medium").head_size == 64
    assert preset("base") == BertConfig()
    with pytest.raises(ValueError, match=r"'bas'\. Did you mean base"):
        preset("bas")
    with pytest.raises(ValueError, match="not a multiple of num_heads 3"):
        BertConfig(num_heads=3, hidden_size=8)
    with pytest.raises(ValueError, match="got 'float16'"):
        BertConfig(dtype="float16")


@pytest.mark.parametrize("name", EACH)
def test_padding_changes_nothing(name):
    model, variables = make(name)
    short, at = tokens(), jnp.array([[0, 3], [5, 2]])
    long = jnp.pad(short, ((0, 0), (0, 5)), constant_values=7)
    valid = jnp.arange(11) < 6
    apply = jax.jit(model.apply)
    a = apply(variables, short, at)
    b = apply(variables, long, at, mask=jnp.tile(valid, (2, 1)))
    np.testing.assert_allclose(a.masked_lm, b.masked_lm, atol=1e-5)
    np.testing.assert_allclose(a.next_sentence, b.next_sentence, atol=1e-5)


@pytest.mark.parametrize("name", EACH)
def test_order_matters_with_positions_only(name):
    """Swapping two other tokens: a bag of words does not notice, every position encoding does."""
    encode = make_encoder(name)
    a = jnp.array([[1, 2, 3, 4, 5, 6]])
    b = jnp.array([[1, 2, 6, 4, 5, 3]])
    difference = jnp.abs(encode(a)[0, 1] - encode(b)[0, 1]).max()
    assert (difference < 1e-5) if name == "none" else (difference > 1e-3)


@pytest.mark.parametrize("name", EACH)
def test_packed_sequences_do_not_see_each_other(name):
    from pe_jax.attention import segment_mask

    encode = make_encoder(name)
    first, second = jnp.array([[1, 2, 3]]), jnp.array([[4, 5, 6, 7, 8, 9]])
    packed = jnp.concatenate([first, second], axis=1)
    numbers = jnp.array([[1, 1, 1, 2, 2, 2, 2, 2, 2]])
    positions = jnp.array([[0, 1, 2, 0, 1, 2, 3, 4, 5]])
    together = encode(packed, None, segment_mask(numbers, numbers), positions)
    np.testing.assert_allclose(together[:, :3], encode(first), atol=1e-5)
    np.testing.assert_allclose(together[:, 3:], encode(second), atol=1e-5)


def test_the_sum_over_layers_by_hand():
    """With all kernels 0 a block only normalises: hidden states are the normalised embeddings."""
    model, variables = make("none")
    params = flax.traverse_util.flatten_dict(variables["params"]["bert"])
    plain = {"kernel": 0.0, "bias": 0.0, "scale": 1.0}
    params = {k: jnp.full_like(v, plain[k[-1]]) if k[-1] in plain else v for k, v in params.items()}
    params = {"params": flax.traverse_util.unflatten_dict(params)}
    out = jax.jit(Bert(model.config).apply)(params, jnp.array([[3]]))
    x = variables["params"]["bert"]
    x = np.asarray(x["token"]["embedding"][3] + x["segment"]["embedding"][0])
    expected = (x - x.mean()) / x.std()
    np.testing.assert_allclose(out[0, 0], expected, atol=1e-4)


def test_dropout_needs_a_key_and_changes_outputs():
    model, variables = make()
    at = jnp.zeros((2, 1), jnp.int32)
    apply = jax.jit(functools.partial(model.apply, deterministic=False))
    run = lambda seed: apply(variables, tokens(), at, rngs={"dropout": jax.random.key(seed)})
    assert not np.allclose(run(0).masked_lm, run(1).masked_lm)
    np.testing.assert_array_equal(run(0).masked_lm, run(0).masked_lm)
    with pytest.raises(flax.errors.InvalidRngError):
        model.apply(variables, tokens(), at, deterministic=False)


def test_learned_absolute_past_its_length():
    model, variables = make("learned_absolute")
    with pytest.raises(ValueError, match="length 16 "):
        jax.jit(model.apply)(variables, tokens(length=17), jnp.zeros((2, 1), jnp.int32))


@pytest.mark.parametrize("name", [n for n in EACH if "learned_absolute" not in n])
def test_the_others_have_no_length(name):
    model, variables = make(name)
    out = jax.jit(model.apply)(variables, tokens(length=40), jnp.zeros((2, 1), jnp.int32))
    assert np.isfinite(out.masked_lm).all()


@pytest.mark.parametrize("name", EACH)
def test_every_parameter_learns(name):
    """No encoding has a parameter that does not reach the loss; gradients are float32."""
    _, variables = make(name)
    model = build(name, dtype="bfloat16")
    ids = tokens(rows=4, length=16)
    segments = (jnp.arange(16) > 7).astype(jnp.int32)[None].repeat(4, 0)

    def loss(params):
        out = model.apply({"params": params}, ids, ids[:, :3] % 6, segments)
        return (out.masked_lm**2).sum() + (out.next_sentence**2).sum()

    grads = jax.jit(jax.grad(loss))(variables["params"])
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        assert grad.dtype == jnp.float32
        assert np.isfinite(grad).all(), path
        assert np.abs(grad).max() > 0, path


def test_an_encoding_of_ones_own():
    """A PositionEncoding that has no name in this library goes straight into the model."""

    def bias(params, x, context):
        return -params["slopes"] * jnp.abs(x)[..., None]

    part = encodings.Part(
        "my_bias",
        lambda key: {"slopes": jnp.ones(2)},
        offsets=encodings.Offsets(bias=bias),
    )
    own = encodings.PositionEncoding((part,))
    model = Bert(dataclasses.replace(CONFIG, position=own))
    variables = jax.jit(model.init)(jax.random.key(0), tokens())
    slopes = lambda params: params["position"]["my_bias"]["slopes"]
    assert slopes(variables["params"]).shape == (2,)
    grads = jax.jit(jax.grad(lambda v: (model.apply(v, tokens()) ** 3).sum()))(variables)
    assert np.abs(slopes(grads["params"])).min() > 0


@pytest.mark.parametrize("name", EACH)
def test_one_batch_can_be_learned_by_heart_with_positions_only(name):
    """Without positions every [MASK] of a sequence looks the same, so its answers must share one
    distribution: the loss has a floor, known exactly. With positions there is none."""
    config = dataclasses.replace(
        CONFIG, num_layers=1, hidden_size=32, intermediate_size=64, initializer_stddev=0.1
    )
    config = with_position(config, name)
    model = BertForPretraining(config)
    mask = 10
    ids = jnp.array([[1, mask, 3, mask, 5, mask, 7], [mask, 2, mask, 4, mask, 6, 8]])
    at = jnp.array([[1, 3, 5], [0, 2, 4]])
    answers = jnp.array([[2, 4, 6], [2, 2, 5]])
    params = jax.jit(model.init)(jax.random.key(0), ids, at)["params"]
    optimizer = optax.flatten(optax.adam(3e-3))  # One vector: fewer operations to compile.

    def loss(params):
        log_p = jax.nn.log_softmax(model.apply({"params": params}, ids, at).masked_lm)
        return -jnp.take_along_axis(log_p, answers[..., None], axis=-1).mean()

    @jax.jit
    def train(params, state):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params), state)
            return (optax.apply_updates(params, updates), state), None

        (params, _), _ = jax.lax.scan(step, (params, state), length=300)
        return loss(params)

    final = float(train(params, optimizer.init(params)))
    # Row 1: three answers alike, log 3. Row 2: two of one kind and one of another.
    floor = (3 * np.log(3) - 2 * np.log(2 / 3) - np.log(1 / 3)) / 6
    if name == "none":
        assert final == pytest.approx(floor, abs=0.02)
    else:
        assert final < floor / 3


# --- how it is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [{"scan_layers": True}, {"remat": "full"}, {"remat": "dots", "scan_layers": True}],
    ids=["scan", "remat", "both"],
)
@pytest.mark.parametrize("deterministic", [True, False])
def test_scanned_and_recomputed_layers_change_nothing(how, deterministic):
    """The same parameters, outputs, dropped entries and gradients."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        loss_and_gradients(deterministic, **how),
        loss_and_gradients(deterministic),
    )


@functools.cache
def loss_and_gradients(deterministic, **how):
    """Parameters as they are drawn, the loss of a batch and its gradients."""
    position = "learned_absolute+learned_relative"
    model = Bert(dataclasses.replace(with_position(CONFIG, position), dropout_rate=0.3, **how))
    tokens = np.random.default_rng(0).integers(0, 11, (3, 10))
    mask = np.arange(10) < np.array([[10], [7], [4]])
    keys = {"dropout": jax.random.key(1)}
    params = jax.jit(model.init)(jax.random.key(0), tokens)["params"]
    apply = lambda p: model.apply(
        {"params": p}, tokens, None, mask, deterministic=deterministic, rngs=keys
    )
    loss = lambda p: (apply(p) ** 2).sum()
    return params, *jax.jit(jax.value_and_grad(loss))(params)


def test_recomputing_takes_less_memory_and_scanning_compiles_one_layer():
    config = dataclasses.replace(CONFIG, num_layers=6, hidden_size=16, intermediate_size=64)
    tokens = jax.ShapeDtypeStruct((8, 64), jnp.int32)

    def step(**how):
        model = Bert(dataclasses.replace(config, max_length=64, **how))
        params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
        loss = lambda p, tokens: (model.apply({"params": p}, tokens) ** 2).sum()
        return jax.jit(jax.grad(loss)).lower(params, tokens)

    plain, scanned = step(), step(scan_layers=True)
    assert len(scanned.as_text()) < 0.7 * len(plain.as_text())
    recomputed = step(remat="full", scan_layers=True)
    temporaries = lambda program: program.compile().memory_analysis().temp_size_in_bytes
    assert temporaries(recomputed) < 0.7 * temporaries(scanned)


def test_forward_mode_and_hessians_of_the_plain_form():
    """`jax.jvp` is the product with the gradient; `jax.hessian` that of a forward-over-reverse."""
    config = dataclasses.replace(
        with_position(CONFIG, "learned_relative(clip=3)"), attention="naive"
    )
    model, inputs = BertForPretraining(config), tokens(length=4)
    labels, classes = inputs[:, :2], jnp.arange(len(inputs)) % 2
    params = jax.jit(model.init)(jax.random.key(0), inputs, labels)["params"]

    def loss(params):  # That of pretraining, times enough to see more than rounding.
        logits = model.apply({"params": params}, inputs, jnp.zeros_like(labels))
        words = cross_entropy(logits.masked_lm, labels)[0].sum()
        return 100 * (words + cross_entropy(logits.next_sentence, classes)[0].sum())

    direction = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape), params)
    dot = lambda a, b: sum(map(jnp.vdot, jax.tree.leaves(a), jax.tree.leaves(b)))

    def differentiate(params, direction):
        gradient, product = jax.jvp(jax.grad(loss), (params,), (direction,))
        slope = jax.jvp(loss, (params,), (direction,))[1]
        bend = jax.jvp(lambda p: jax.jvp(loss, (p,), (direction,))[1], (params,), (direction,))[1]
        return slope, dot(gradient, direction), bend, dot(product, direction)

    slope, of_gradient, bend, of_product = jax.jit(differentiate)(params, direction)
    np.testing.assert_allclose(slope, of_gradient, rtol=1e-4)
    np.testing.assert_allclose(bend, of_product, rtol=1e-4)

    def of_table(table):
        position = {"learned_relative": {"table": table}}
        return loss({**params, "bert": {**params["bert"], "position": position}})

    table = params["bert"]["position"]["learned_relative"]["table"]
    to = direction["bert"]["position"]["learned_relative"]["table"]
    hessian = jax.jit(jax.hessian(of_table))(table)
    product = jax.jit(lambda t: jax.jvp(jax.grad(of_table), (t,), (to,))[1])(table)
    np.testing.assert_allclose(jnp.tensordot(hessian, to), product, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_linear_against_the_formula(tied, dtype):
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(7, 5)), rng.normal(size=(7, 3))
    kernel, bias = rng.normal(size=(5, 3)), rng.normal(size=3)
    x, kernel = (np.asarray(jnp.asarray(a, dtype), np.float64) for a in (x, kernel))
    given = jnp.asarray(kernel.T if tied else kernel, dtype)
    call = functools.partial(linear, tied=tied)
    args = jnp.asarray(x, dtype), given, jnp.asarray(bias, jnp.float32)
    out, (dx, dkernel, dbias) = value_and_pullback(call, args, jnp.asarray(g, jnp.float32))
    near = dict(rtol=1e-5, atol=1e-5) if dtype == jnp.float32 else dict(rtol=0.02, atol=0.06)
    np.testing.assert_allclose(out, x @ kernel + bias, rtol=1e-5, atol=1e-5)  # Sums in float32.
    np.testing.assert_allclose(dx.astype(jnp.float32), g @ kernel.T, **near)
    dkernel = dkernel.astype(jnp.float32)
    np.testing.assert_allclose(dkernel.T if tied else dkernel, x.T @ g, **near)
    np.testing.assert_allclose(dbias, g.sum(0), **near)
    assert (out.dtype, dx.dtype, dbias.dtype) == (jnp.float32, dtype, jnp.float32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gelu_and_its_gradient_against_float64(dtype):
    x = np.linspace(-9.0, 9.0, 360).reshape(2, 3, 60).astype(dtype)
    value, back = jax.vjp(lambda x: activate(x, "gelu"), jnp.asarray(x))
    x = x.astype(np.float64)
    below, density = scipy.stats.norm.cdf(x), scipy.stats.norm.pdf(x)
    accuracy = {"rtol": 2e-6 if dtype == jnp.float32 else 2**-8, "atol": 1e-6}
    np.testing.assert_allclose(value.astype(jnp.float32), x * below, **accuracy)
    (slope,) = back(jnp.ones_like(value))
    np.testing.assert_allclose(slope.astype(jnp.float32), below + x * density, **accuracy)


def test_parts_of_a_dense_layer_are_those_of_the_whole():
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    whole, parts = (kind((3, 2, 4), jnp.float32, 0.02) for kind in (Dense, DenseParts))
    params = jax.jit(parts.init)(jax.random.key(1), x)
    together = lambda x, params: jnp.moveaxis(whole.apply(params, x), 2, 0)
    one_by_one = lambda x, params: jnp.stack(parts.apply(params, x))
    to = jax.random.normal(jax.random.key(2), (3, 2, 5, 2, 4))
    want, got = (value_and_pullback(one, (x, params), to) for one in (together, one_by_one))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_unknown_ways_of_computing():
    with pytest.raises(ValueError, match="none, dots, full, got 'half'"):
        BertConfig(remat="half")
    with pytest.raises(ValueError, match="auto, naive, .*got 'flash'"):
        BertConfig(attention="flash")
