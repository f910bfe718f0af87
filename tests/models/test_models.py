"""BERT: exact parameter trees, what each input does, and what the position encoding changes."""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from flax import linen as nn
from helpers import paper_attention
from helpers.compiled import value_and_pullback
from helpers.initial_params import initial_params
from helpers.slow import slow_except

from pe_jax import encodings
from pe_jax.encodings.parser import PAPER
from pe_jax.models import (
    PRESETS,
    Bert,
    BertConfig,
    BertForMaskedLM,
    BertForPretraining,
    preset,
    with_tokens,
)
from pe_jax.models.layers import BertModule, Dense, DenseParts, activate, linear
from pe_jax.trainer.configs.training import OptimizerConfig
from pe_jax.trainer.tasks.losses import cross_entropy
from pe_jax.trainer.training.optimizer import make_optimizer

CONFIG = BertConfig(
    vocab_size=11,
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    intermediate_size=12,
    max_length=16,
    initializer_stddev=0.5,
)

# Each kind by itself, and one combination; and what of it runs by default.
EACH = [*PAPER[:7], "learned_absolute+learnable_sinusoidal_relative"]
KEPT = ["learned_absolute", "learned_relative", EACH[-1]]

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
    "bert/token_type/embedding": (2, 8),
    "bert/embedding_norm/scale": (8,),
    "bert/embedding_norm/bias": (8,),
    **{
        f"bert/layer_{i}/{name}": shape
        for i in range(2)
        for name, shape in LAYER.items()
    },
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
    return BertForPretraining(dataclasses.replace(CONFIG, position=position, **changes))


@functools.cache
def shapes(position, **changes):
    one = np.zeros((1, 4), np.int32)
    return jax.eval_shape(
        build(position, **changes).init,
        jax.random.key(0),
        one,
        masked_positions=one[:, :1],
    )


@functools.cache
def make(position="learned_absolute", **changes):
    """A model and random parameters, biases included; nothing is compiled to draw them."""
    variables = shapes(position, **changes)
    return build(position, **changes), draw_like(
        variables, np.random.default_rng(0), scale=0.5
    )


def draw_like(tree, rng, scale=1.0):
    return jax.tree.map(
        lambda x: rng.normal(scale=scale, size=x.shape).astype(x.dtype), tree
    )


@functools.cache
def make_encoder(position):
    """`encode(tokens, types, mask, positions)` of the encoder of `make`, compiled once for each
    shape."""
    model, variables = make(position)
    apply = jax.jit(Bert(model.config).apply)
    return functools.partial(apply, {"params": variables["params"]["bert"]})


def tokens(rows=2, length=6, seed=1):
    return np.random.default_rng(seed).integers(0, 11, (rows, length))


@pytest.mark.parametrize("name", PAPER)
def test_exact_parameter_tree(name):
    parts = name.split("+")
    position = {f"{p}/{leaf}": s for p in parts for leaf, s in POSITIONS[p].items()}
    expected = {
        **SHARED,
        **{f"bert/position/{leaf}": s for leaf, s in position.items()},
    }
    got = flax.traverse_util.flatten_dict(shapes(name)["params"], sep="/")
    assert {path: leaf.shape for path, leaf in got.items()} == expected
    assert {leaf.dtype for leaf in got.values()} == {jnp.dtype("float32")}


def test_bert_base_has_110_million_parameters():
    model = BertForPretraining(preset("base"))
    one = np.zeros((1, 1), np.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), one, masked_positions=one)
    # As published for the original: 109,482,240 in the encoder with its pooler; the heads add
    # 768·768 + 768 + 2·768 + 30,522 (masked LM, tied) and 2·768 + 2 (next sentence).
    heads = 768 * 768 + 768 + 2 * 768 + 30_522 + 2 * 768 + 2
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 109_482_240 + heads


def test_presets():
    assert {
        name: (p["num_layers"], p["hidden_size"]) for name, p in PRESETS.items()
    } == {
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


@pytest.mark.parametrize("name", slow_except(KEPT, EACH))
def test_padding_changes_nothing(name):
    """Up to `max_length`, or past it for encodings that have no table of positions."""
    encode = make_encoder(name)
    length = 16 if "learned_absolute" in name else 40
    short = tokens(rows=1)
    long = np.pad(short, ((0, 0), (0, length - 6)), constant_values=7)
    padded = encode(long, None, np.arange(length)[None] < 6)
    np.testing.assert_allclose(padded[:, :6], encode(short), atol=1e-5)
    assert np.isfinite(padded).all()


def test_padding_changes_no_logits():
    model, variables = make()
    short, at = tokens(), np.array([[0, 3], [5, 2]])
    long = np.pad(short, ((0, 0), (0, 5)), constant_values=7)
    apply = jax.jit(model.apply)
    a = apply(variables, short, masked_positions=at)
    b = apply(
        variables, long, masked_positions=at, mask=np.tile(np.arange(11) < 6, (2, 1))
    )
    np.testing.assert_allclose(a.masked_lm, b.masked_lm, atol=1e-5)
    np.testing.assert_allclose(a.next_sentence, b.next_sentence, atol=1e-5)


@pytest.mark.parametrize("name", EACH)
def test_order_matters_with_positions_only(name):
    """Swapping two other tokens: a bag of words does not notice, every position encoding does."""
    encode = make_encoder(name)
    a = np.array([[1, 2, 3, 4, 5, 6]])
    b = np.array([[1, 2, 6, 4, 5, 3]])
    difference = np.abs(np.asarray(encode(a))[0, 1] - np.asarray(encode(b))[0, 1]).max()
    assert (difference < 1e-5) if name == "none" else (difference > 1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": np.ones((2, 6), int)}, "mask must be bool.*int.*pass document_ids"),
        (
            {"mask": np.ones((2, 6), np.float32)},
            "mask must be bool.*float32.*pass mask == 1",
        ),
        (
            {"document_ids": np.ones((2, 1, 6, 6), int)},
            r"document_ids must be \[B, L\].*\[2, 6\]",
        ),
    ],
)
def test_masks_are_bool_and_documents_are_of_the_tokens(arguments, message):
    model, variables = make()
    apply = functools.partial(
        Bert(model.config).apply, {"params": variables["params"]["bert"]}
    )
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(apply, tokens(), **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 13}, r"^tokens must be from 0 to 12, got 13\."),
        ({"tokens": -1}, r"^tokens must be from 0 to 12, got -1\."),
        ({"token_type_ids": 2}, r"^token_type_ids must be from 0 to 1, got 2\."),
        ({"token_type_ids": -2}, r"^token_type_ids must be from 0 to 1, got -2\."),
        ({"masked_positions": 6}, r"^masked_positions must be from 0 to 5, got 6\."),
        ({"masked_positions": -1}, r"^masked_positions must be from 0 to 5, got -1\."),
    ],
)
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_known_ids_are_rows_of_the_embeddings(changes, message, array):
    model, variables = make()
    config = dataclasses.replace(model.config, unused_rows=2)  # 13 rows of tokens.
    inputs = {
        "tokens": tokens(),
        "token_type_ids": tokens() % 2,
        "masked_positions": tokens() % 6,
    }
    for name, value in changes.items():
        inputs[name] = inputs[name].copy()
        inputs[name][1, 2] = value
    inputs = {name: array(x) for name, x in inputs.items()}
    with pytest.raises(ValueError, match=message):
        BertForPretraining(config).apply(rows_added(variables, 2), **inputs)


@pytest.mark.parametrize("dtype", [np.float32, bool])
def test_ids_are_integers(dtype):
    model, variables = make()
    inputs = {
        "tokens": tokens(),
        "token_type_ids": tokens() % 2,
        "masked_positions": tokens() % 6,
    }
    for name in inputs:
        changed = {**inputs, name: inputs[name].astype(dtype)}
        apply = functools.partial(BertForPretraining(model.config).apply, variables)
        with pytest.raises(
            ValueError, match=f"^{name} must be integers, got {dtype.__name__}"
        ):
            jax.eval_shape(apply, **changed)


def rows_added(variables, rows):
    """The variables of a model with as many unused rows of embeddings."""

    def longer(path, x):
        name = jax.tree_util.keystr(path)
        has_rows = "'token'" in name or name.endswith("['masked_lm']['bias']")
        return np.pad(x, [(0, rows)] + [(0, 0)] * (x.ndim - 1)) if has_rows else x

    return jax.tree_util.tree_map_with_path(longer, variables)


def test_ids_in_a_compiled_program_are_not_checked():
    assert np.isnan(make_encoder("learned_absolute")(np.full((1, 6), 11))).all()


@pytest.mark.parametrize("count", [0, 1])
def test_token_types_that_are_not_looked_up_may_be_any(count):
    model, variables = make(num_token_types=count)
    encoder = {"params": variables["params"]["bert"]}
    jax.eval_shape(
        lambda: Bert(model.config).apply(encoder, tokens(), np.full((2, 6), 5))
    )


@pytest.mark.parametrize("name", slow_except(KEPT, EACH))
def test_packed_sequences_do_not_see_each_other(name):
    encode = make_encoder(name)
    first, second = np.array([[1, 2, 3, 9, 0, 2]]), np.array([[4, 5, 6, 7, 8, 9]])
    packed = np.concatenate([first, second], axis=1)
    numbers = np.repeat([[1, 2]], 6, axis=1)
    mask = (numbers[:, :, None] == numbers[:, None, :])[:, None]
    together = np.asarray(
        encode(packed, positions=np.tile(np.arange(6), (1, 2)), pair_mask=mask)
    )
    np.testing.assert_allclose(together[:, :6], encode(first), atol=1e-5)
    np.testing.assert_allclose(together[:, 6:], encode(second), atol=1e-5)


def test_the_sum_over_layers_by_hand():
    """With all kernels 0 a block only normalises: hidden states are the normalised embeddings."""
    model, variables = make("none")
    params = flax.traverse_util.flatten_dict(variables["params"]["bert"])
    plain = {"kernel": 0.0, "bias": 0.0, "scale": 1.0}
    params = {
        k: np.full_like(v, plain[k[-1]]) if k[-1] in plain else v
        for k, v in params.items()
    }
    params = {"params": flax.traverse_util.unflatten_dict(params)}
    out = jax.jit(Bert(model.config).apply)(params, np.array([[3]]))
    x = variables["params"]["bert"]
    x = x["token"]["embedding"][3] + x["token_type"]["embedding"][0]
    expected = (x - x.mean()) / x.std()
    np.testing.assert_allclose(out[0, 0], expected, atol=1e-4)


def test_dropout_needs_a_key_and_changes_outputs():
    model, variables = make()
    at = np.zeros((2, 1), np.int32)
    apply = jax.jit(functools.partial(model.apply, deterministic=False))
    run = lambda seed: apply(
        variables, tokens(), masked_positions=at, rngs={"dropout": jax.random.key(seed)}
    )
    assert not np.allclose(run(0).masked_lm, run(1).masked_lm)
    np.testing.assert_array_equal(run(0).masked_lm, run(0).masked_lm)
    with pytest.raises(flax.errors.InvalidRngError):
        model.apply(variables, tokens(), masked_positions=at, deterministic=False)


def test_learned_absolute_past_its_length():
    model, variables = make("learned_absolute")
    with pytest.raises(ValueError, match="length 16 "):
        jax.jit(model.apply)(
            variables, tokens(length=17), masked_positions=np.zeros((2, 1), np.int32)
        )


@pytest.mark.parametrize("name", slow_except(KEPT, EACH))
def test_every_parameter_learns(name):
    """No encoding has a parameter that does not reach the loss; gradients are float32."""
    model, variables = make(name, dtype="bfloat16", num_layers=1)
    ids = tokens(rows=4, length=16)
    token_type_ids = np.tile(np.arange(16) > 7, (4, 1)).astype(np.int32)

    def loss(params):
        out = model.apply(
            {"params": params}, ids, token_type_ids, masked_positions=ids[:, :3] % 6
        )
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
        name="my_bias",
        init=lambda key: {"slopes": jnp.ones(2)},
        offsets=encodings.OffsetTerms(bias=bias),
    )
    own = encodings.PositionEncoding(parts=(part,))
    model = Bert(dataclasses.replace(CONFIG, position=own, num_layers=1))
    ids = tokens()
    variables = jax.eval_shape(model.init, jax.random.key(0), ids)
    slopes = lambda params: params["position"]["my_bias"]["slopes"]
    assert slopes(variables["params"]).shape == (2,)
    variables = draw_like(variables, np.random.default_rng(0), scale=0.5)
    grads = jax.jit(jax.grad(lambda v: (model.apply(v, ids) ** 3).sum()))(variables)
    assert np.abs(slopes(grads["params"])).min() > 0


@pytest.mark.parametrize("name", slow_except(KEPT, EACH))
def test_one_batch_can_be_learned_by_heart_with_positions_only(name):
    """Without positions every [MASK] of a sequence looks the same, so its answers must share one
    distribution: the loss has a floor, known exactly. With positions there is none."""
    config = dataclasses.replace(
        CONFIG,
        num_layers=1,
        hidden_size=32,
        intermediate_size=64,
        initializer_stddev=0.1,
    )
    config = dataclasses.replace(config, position=name)
    model = BertForPretraining(config)
    mask = 10
    ids = np.array([[1, mask, 3, mask, 5, mask, 7], [mask, 2, mask, 4, mask, 6, 8]])
    at = np.array([[1, 3, 5], [0, 2, 4]])
    answers = np.array([[2, 4, 6], [2, 2, 5]])
    params = initial_params(model, ids, masked_positions=at)
    optimizer = optax.flatten(
        optax.adam(3e-3)
    )  # One vector: fewer operations to compile.

    def loss(params):
        log_p = jax.nn.log_softmax(
            model.apply({"params": params}, ids, masked_positions=at).masked_lm
        )
        return -jnp.take_along_axis(log_p, answers[..., None], axis=-1).mean()

    @jax.jit
    def train(params):
        def step(carry, _):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(grads, state)
            return (optax.apply_updates(params, updates), state), value

        _, values = jax.lax.scan(step, (params, optimizer.init(params)), length=301)
        return values[-1]

    final = float(train(params))
    # Row 1: three answers alike, log 3. Row 2: two of one kind and one of another.
    floor = (3 * np.log(3) - 2 * np.log(2 / 3) - np.log(1 / 3)) / 6
    if name == "none":
        assert final == pytest.approx(floor, abs=0.02)
    else:
        assert final < floor / 3


# --- how it is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"scan_layers": True}, marks=pytest.mark.slow),
        pytest.param({"remat": "full"}, marks=pytest.mark.slow),
        {"remat": "dots", "scan_layers": True},
    ],
    ids=["scan", "remat", "both"],
)
def test_scanned_and_recomputed_layers_change_nothing(how):
    """The same parameters, outputs, dropped entries and gradients."""
    plain, other = run_layers(), run_layers(**how)
    assert other.initialization == plain.initialization
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, other.results, plain.results)


class LayersRun(NamedTuple):
    initialization: str  # As a program: equal ones draw equal parameters.
    results: tuple[
        jax.Array, Any, jax.Array
    ]  # Loss, gradients, output without dropout.


@functools.cache
def run_layers(**how):
    position = "learned_absolute+learned_relative"
    config = dataclasses.replace(
        dataclasses.replace(CONFIG, position=position), dropout_rate=0.3, max_length=10
    )
    model = Bert(dataclasses.replace(config, **how))
    ids = tokens(rows=3, length=10)
    mask = np.arange(10) < np.array([[10], [7], [4]])
    initialization, params = jax.make_jaxpr(model.init, return_shape=True)(
        jax.random.key(0), ids
    )
    params = draw_like(params["params"], np.random.default_rng(0), scale=0.5)
    apply = lambda p, **how: model.apply({"params": p}, ids, None, mask, **how)
    rngs = {"dropout": jax.random.key(1)}
    loss = lambda p: (apply(p, deterministic=False, rngs=rngs) ** 2).sum()
    results = jax.jit(lambda p: (*jax.value_and_grad(loss)(p), apply(p)))(params)
    return LayersRun(str(initialization), results)


def test_recomputing_takes_less_memory_and_scanning_compiles_one_layer():
    config = dataclasses.replace(
        CONFIG, num_layers=6, hidden_size=16, intermediate_size=64
    )
    tokens = jax.ShapeDtypeStruct((8, 64), jnp.int32)

    def lowered(differentiate=lambda loss: loss, **how):
        model = Bert(dataclasses.replace(config, max_length=64, **how))
        params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
        loss = lambda p, tokens: (model.apply({"params": p}, tokens) ** 2).sum()
        return jax.jit(differentiate(loss)).lower(params, tokens)

    plain, scanned = lowered(), lowered(scan_layers=True)
    assert len(scanned.as_text()) < 0.7 * len(plain.as_text())
    temporaries = lambda program: program.compile().memory_analysis().temp_size_in_bytes
    kept = temporaries(lowered(jax.grad, scan_layers=True))
    assert temporaries(lowered(jax.grad, remat="full", scan_layers=True)) < 0.7 * kept


@pytest.mark.slow
def test_forward_mode_and_hessians_of_the_naive_implementation():
    """`jax.jvp` is the product with the gradient; `jax.hessian` that of a forward-over-reverse."""
    model, variables = make("learned_relative", implementation="naive", num_layers=1)
    inputs, params = tokens(length=4), variables["params"]
    labels, classes = inputs[:, :2], np.arange(len(inputs)) % 2

    def loss(params):  # That of pretraining, times enough to see more than rounding.
        logits = model.apply(
            {"params": params}, inputs, masked_positions=np.zeros_like(labels)
        )
        words = cross_entropy(logits.masked_lm, labels)[0].sum()
        return 100 * (words + cross_entropy(logits.next_sentence, classes)[0].sum())

    direction = draw_like(params, np.random.default_rng(1))
    dot = lambda a, b: sum(map(jnp.vdot, jax.tree.leaves(a), jax.tree.leaves(b)))

    @jax.jit
    def differentiate(params, direction):
        gradient, product = jax.jvp(jax.grad(loss), (params,), (direction,))
        along = lambda p: jax.jvp(loss, (p,), (direction,))[1]
        slope, bend = jax.jvp(along, (params,), (direction,))
        return slope, dot(gradient, direction), bend, dot(product, direction)

    slope, of_gradient, bend, of_product = differentiate(params, direction)
    np.testing.assert_allclose(slope, of_gradient, rtol=1e-4)
    np.testing.assert_allclose(bend, of_product, rtol=1e-4)

    def of_table(table, params):
        position = {"learned_relative": {"table": table}}
        return loss({**params, "bert": {**params["bert"], "position": position}})

    table = params["bert"]["position"]["learned_relative"]["table"]
    to = direction["bert"]["position"]["learned_relative"]["table"]
    hessian = jax.jit(jax.hessian(of_table))(table, params)
    gradient = lambda table, params: jax.grad(of_table)(table, params)
    still = jax.tree.map(np.zeros_like, params)
    product = jax.jit(lambda *at: jax.jvp(gradient, at, (to, still))[1])(table, params)
    np.testing.assert_allclose(np.tensordot(hessian, to), product, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_linear_against_the_formula(tied, dtype):
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(7, 5)), rng.normal(size=(7, 3))
    kernel, bias = rng.normal(size=(5, 3)), rng.normal(size=3)
    x, kernel = (a.astype(dtype).astype(np.float64) for a in (x, kernel))
    given = (kernel.T if tied else kernel).astype(dtype)
    call = functools.partial(linear, tied=tied)
    args = x.astype(dtype), given, bias.astype(np.float32)
    out, (dx, dkernel, dbias) = value_and_pullback(call, args, g.astype(np.float32))
    near = (
        dict(rtol=1e-5, atol=1e-5)
        if dtype == jnp.float32
        else dict(rtol=0.02, atol=0.06)
    )
    np.testing.assert_allclose(
        out, x @ kernel + bias, rtol=1e-5, atol=1e-5
    )  # Sums in float32.
    np.testing.assert_allclose(np.asarray(dx, np.float64), g @ kernel.T, **near)
    dkernel = np.asarray(dkernel, np.float64)
    np.testing.assert_allclose(dkernel.T if tied else dkernel, x.T @ g, **near)
    np.testing.assert_allclose(dbias, g.sum(0), **near)
    assert (out.dtype, dx.dtype, dbias.dtype) == (jnp.float32, dtype, jnp.float32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gelu_and_its_gradient_against_float64(dtype):
    x = np.linspace(-9.0, 9.0, 360).reshape(2, 3, 60).astype(dtype)
    to = np.ones(x.shape, dtype)
    value, (slope,) = value_and_pullback(lambda x: activate(x, "gelu"), (x,), to)
    x = x.astype(np.float64)
    below, density = scipy.stats.norm.cdf(x), scipy.stats.norm.pdf(x)
    accuracy = {"rtol": 2e-6 if dtype == jnp.float32 else 2**-8, "atol": 1e-6}
    np.testing.assert_allclose(np.asarray(value, np.float64), x * below, **accuracy)
    np.testing.assert_allclose(
        np.asarray(slope, np.float64), below + x * density, **accuracy
    )


class _Norm(BertModule):
    @nn.compact
    def __call__(self, x):
        return self.norm("norm")(x)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_norm_keeps_nothing_as_large_as_its_input_but_the_input(norm):
    config = preset(
        "tiny",
        vocab_size=10,
        dtype="bfloat16",
        norm=norm,
        norm_bias=norm == "layer_norm",
    )
    layer = _Norm(config)
    x = jnp.ones((2, 5, config.hidden_size), jnp.bfloat16)
    params = layer.init(jax.random.key(0), x)
    _, pullback = jax.vjp(layer.apply, params, x)
    large = [kept for kept in jax.tree.leaves(pullback) if kept.size >= x.size]
    assert [kept.dtype for kept in large] == [jnp.bfloat16]


def test_parts_of_a_dense_layer_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 8)).astype(np.float32)
    whole, parts = (kind((3, 2, 4), jnp.float32, 0.02) for kind in (Dense, DenseParts))
    params = jax.jit(parts.init)(jax.random.key(1), x)
    together = lambda x, params: jnp.moveaxis(whole.apply(params, x), 2, 0)
    one_by_one = lambda x, params: jnp.stack(parts.apply(params, x))
    to = rng.normal(size=(3, 2, 5, 2, 4)).astype(np.float32)
    want, got = (
        value_and_pullback(one, (x, params), to) for one in (together, one_by_one)
    )
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_unknown_ways_of_computing():
    with pytest.raises(ValueError, match="none, dots, full, got 'half'"):
        BertConfig(remat="half")
    with pytest.raises(ValueError, match="auto, naive, .*got 'flash'"):
        BertConfig(implementation="flash")


@pytest.mark.parametrize("tied", [True, False])
def test_rows_without_a_token_are_never_predicted_and_stay(tied):
    whole = dataclasses.replace(CONFIG, tied_decoder=tied)
    fewer = with_tokens(whole, 8)
    tokens, at = np.array([[1, 7, 3, 2]]), np.array([[1, 2]])
    params = initial_params(BertForMaskedLM(whole), tokens, masked_positions=at)
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)

    @functools.partial(jax.jit, static_argnums=0)
    def logits(config, params):
        return BertForMaskedLM(config).apply(
            {"params": params}, tokens, masked_positions=at
        )

    want = np.asarray(logits(whole, params))[..., :8]
    np.testing.assert_allclose(logits(fewer, params), want, rtol=1e-5, atol=1e-6)

    loss = lambda params: cross_entropy(logits(fewer, params), np.array([[7, 3]]))[
        0
    ].sum()
    gradients = jax.jit(jax.grad(loss))(params)
    _, optimizer = make_optimizer(OptimizerConfig(weight_decay=0.5), 10, fewer)
    updates, _ = jax.jit(optimizer.update)(
        gradients, jax.jit(optimizer.init)(params), params
    )
    rows = [updates["bert"]["token"]["embedding"], updates["masked_lm"]["bias"]]
    for leaf in rows if tied else [*rows, updates["masked_lm"]["decoder"]]:
        assert leaf.shape[0] == 11 and not leaf[8:].any()
    with pytest.raises(
        ValueError, match="has 12 tokens, but the model 11 rows of embeddings"
    ):
        with_tokens(whole, 12)
