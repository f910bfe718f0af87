"""The step, the optimizer, devices, checkpoints, resuming, and the report, on short runs."""

import contextlib
import dataclasses
import functools
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
from helpers import tiny_run
from helpers.random_params import random_params

from pe_jax import encodings
from pe_jax.common import cpu
from pe_jax.common.schema import changed
from pe_jax.encodings.parser import PAPER
from pe_jax.models import BertConfig, BertForPretraining
from pe_jax.models.flops import train_flops
from pe_jax.trainer import data
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.configs.training import OptimizerConfig
from pe_jax.trainer.reports.comparison import score
from pe_jax.trainer.reports.pretraining_report import report_pretraining
from pe_jax.trainer.tasks import losses, pretraining, text_training
from pe_jax.trainer.tasks.losses import cross_entropy
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.tasks.train import log_run_header
from pe_jax.trainer.training import optimizer as optimizers
from pe_jax.trainer.training import sharding, workdir
from pe_jax.trainer.training.checkpointing import (
    Checkpoints,
    restore_newest,
    restore_params,
)
from pe_jax.trainer.training.metrics import PEAKS
from pe_jax.trainer.training.pytrees import named_leaves
from pe_jax.trainer.training.step import TrainState, make_train_step, state_shapes
from pe_jax.trainer.training.transplant import transplant

MODEL = dataclasses.replace(
    BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=24,
        max_length=10,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        initializer_stddev=0.2,
    ),
    position="learned_absolute+learnable_sinusoidal_relative",
)


# Matrices and tables large enough for "fsdp" to shard; with dropout.
WIDE = dataclasses.replace(
    MODEL,
    position="learned_absolute",
    vocab_size=300,
    hidden_size=256,
    intermediate_size=512,
    max_length=256,
    dropout_rate=0.1,
    initializer_stddev=0.05,
)


def make_batch(rows=8, length=10, predictions=5, seed=0):
    """Row r has r mod 5 masked tokens: devices and micro-batches hold different numbers of them."""
    rng = np.random.default_rng(seed)
    masked = np.arange(rows) % predictions
    return {
        "tokens": rng.integers(0, 30, (rows, length)).astype(np.int32),
        "token_type_ids": np.zeros((rows, length), np.int32),
        "mask": np.arange(length) < rng.integers(6, length + 1, (rows, 1)),
        "masked_positions": rng.integers(0, 6, (rows, predictions)).astype(np.int32),
        "masked_tokens": rng.integers(0, 30, (rows, predictions)).astype(np.int32),
        "masked_weights": (np.arange(predictions) < masked[:, None]).astype(np.float32),
        "next_sentence": rng.integers(0, 2, rows).astype(np.int32),
    }


def draw_params(model, seed=0):
    shapes = jax.eval_shape(pretraining.pretraining_task(model).init, jax.random.key(0))
    return random_params(shapes, model.initializer_stddev, seed)


@dataclasses.dataclass
class Setup:
    """A way to train `model` on `devices` devices."""

    how: str
    devices: int
    model: BertConfig = MODEL
    accumulation: int = 1
    optimizer_name: str = "adamw"

    def __post_init__(self):
        self.mesh = sharding.data_mesh(jax.devices()[: self.devices])
        task = pretraining.pretraining_task(self.model)
        self.task = task._replace(sums=sharding.gather(task.sums, self.mesh, self.how))
        # The key's bias has gradient 0 but for rounding (softmax ignores it); a larger epsilon
        # keeps Adam from scaling that noise up to a step.
        schedule = optimizers.make_schedule("linear", 1e-2, 2, 20)
        config = OptimizerConfig(name=self.optimizer_name, epsilon=1e-4)
        self.optimizer = optimizers.update_rule(config, schedule)
        self.shapes = state_shapes(self.task, self.optimizer)
        self.shardings = sharding.state_shardings(self.mesh, self.how, self.shapes)

    def init(self, seed=0):
        """The state before the first step: both optimizers start from zeros."""
        zeros = jax.tree.map(
            lambda x: np.zeros(x.shape, x.dtype), self.shapes.opt_state
        )
        params, rng = draw_params(self.model, seed), jax.random.key(seed)
        return jax.device_put(
            TrainState(np.int32(0), params, zeros, rng), self.shardings
        )

    @functools.cached_property
    def step(self):
        """The compiled program of a step."""
        step = make_train_step(
            self.task, self.optimizer, accumulation=self.accumulation
        )
        step = sharding.parallelize(step, self.mesh, self.how, self.shardings)
        return step.lower(self.init(), self.batch()).compile()

    def batch(self, seed=0, **changes):
        batch = {**make_batch(16, seed=seed), **changes}
        return sharding.to_global(batch, sharding.by_rows(self.mesh))


setup = functools.cache(Setup)  # Tests of one setup share its program.


@functools.cache
def train(how, devices, **settings):
    """Parameters and last metrics after four steps on `devices` devices."""
    ours = setup(how, devices, **settings)
    state = ours.init()
    for n in range(4):
        state, metrics = ours.step(state, ours.batch(n))
    return jax.device_get(state.params), jax.device_get(metrics)


@functools.cache
def jitted_sums(model=MODEL):
    """`sums(params, batch, rng)` of the task."""
    return jax.jit(pretraining.pretraining_task(model).sums)


def assert_close(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


# --- the step -------------------------------------------------------------------------------------


def test_jit_pmap_and_one_device_agree():
    """Same parameters after several steps, though masked counts differ between the devices."""
    counts = make_batch(16)["masked_weights"].reshape(4, -1).sum(1)
    assert len(set(counts)) > 1
    one, one_metrics = train("jit", 1)
    for how in ("jit", "pmap"):
        four, metrics = train(how, 4)
        assert_close(four, one, rtol=2e-4, atol=2e-5)
        assert_close(metrics, one_metrics, rtol=1e-4)


def test_gradients_exchanged_in_bfloat16():
    """Each entry is rounded on its four devices and in their sum; metrics are not."""
    setups = [setup(how, 4) for how in ("pmap", "pmap_bfloat16")]
    (wide, metrics), (narrow, narrow_metrics) = (
        s.step(s.init(), s.batch()) for s in setups
    )
    moments = jax.device_get(
        [s.opt_state[1].mu["bert"]["layer_0"] for s in (wide, narrow)]
    )
    errors = jax.tree.map(lambda a, b: np.abs(a - b).max() / np.abs(a).max(), *moments)
    assert 1e-4 < max(jax.tree.leaves(errors)) < 2**-6
    for name, (total, count) in metrics.items():
        if name != "gradient_norm":
            np.testing.assert_allclose(narrow_metrics[name], (total, count), rtol=1e-5)


@pytest.mark.slow
def test_fsdp_gives_the_numbers_of_jit():
    """Dropout, and the norms of whole arrays that LAMB takes, included."""
    whole, metrics = train("jit", 4, model=WIDE, optimizer_name="lamb")
    split, split_metrics = train("fsdp", 4, model=WIDE, optimizer_name="lamb")
    assert_close(split, whole, rtol=2e-4, atol=2e-5)
    assert_close(split_metrics, metrics, rtol=1e-4)


def bytes_on(device, tree):
    shards = [
        shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards
    ]
    return sum(shard.data.nbytes for shard in shards if shard.device == device)


def test_fsdp_splits_what_is_large():
    """Parameters and moments, before and after a step; a device holds about a quarter."""
    split = setup("fsdp", 4, model=WIDE, optimizer_name="lamb")
    state = split.init()
    stepped, _ = split.step(split.init(), split.batch())
    for held in (state, stepped):
        mu = held.opt_state[1].mu
        for tree in (held.params, mu):
            embedding = tree["bert"]["token"][
                "embedding"
            ]  # 300 rows are the longer axis.
            assert {s.data.shape for s in embedding.addressable_shards} == {(75, 256)}
            up = tree["bert"]["layer_0"]["up"]
            assert {s.data.shape for s in up["kernel"].addressable_shards} == {
                (256, 128)
            }
            assert {s.data.shape for s in up["bias"].addressable_shards} == {(512,)}
        whole = sum(leaf.nbytes for leaf in jax.tree.leaves(held._replace(rng=())))
        for device in split.mesh.devices.flat:
            assert bytes_on(device, held._replace(rng=())) < 0.26 * whole


def test_axes_that_are_split():
    """The longest axis that four devices divide; none of a small leaf, or of one of odd sizes."""
    spec = lambda *shape: (
        sharding.state_shardings(
            sharding.data_mesh(), "fsdp", jax.ShapeDtypeStruct(shape, jnp.float32)
        ).spec
    )
    assert tuple(spec(30_522, 768)) == (None, "data")
    assert tuple(spec(768, 3, 12, 64)) == ("data", None, None, None)
    assert tuple(spec(256, 256)) == ("data", None)
    assert tuple(spec(255, 256)) == tuple(spec(301, 303)) == tuple(spec()) == ()


COLLECTIVE = re.compile(
    r"= \w+\[([\d,]*)\]\S* (all-gather|all-to-all|collective-permute)\("
)


def test_fsdp_gathers_parameters_and_no_activations():
    """Gathers each sharded parameter once. (Without `sharding.gather` also activations.)"""
    fsdp = setup("fsdp", 4, model=WIDE, optimizer_name="lamb")
    params = jax.tree.leaves(fsdp.init().params)
    split = [x.shape for x in params if tuple(x.sharding.spec)]
    text = fsdp.step.as_text()
    moved = [
        (name, tuple(map(int, shape.split(","))))
        for shape, name in COLLECTIVE.findall(text)
    ]
    # The compiler permutes axes: sizes are compared in any order.
    assert len(split) == 8
    assert sorted(("all-gather", sorted(shape)) for shape in split) == sorted(
        (name, sorted(shape)) for name, shape in moved
    )


@pytest.mark.parametrize(
    ("saved", "restored"),
    [(("fsdp", 4), ("jit", 1)), (("jit", 1), ("fsdp", 4))],
    ids=str,
)
def test_a_checkpoint_fits_any_layout(tmp_path, saved, restored):
    of = functools.partial(setup, model=WIDE, optimizer_name="lamb")
    state, like = of(*saved).init(seed=0), of(*restored).init(seed=1)
    with contextlib.closing(Checkpoints(tmp_path, keep=1)) as checkpoints:
        checkpoints.save(state, {"data": 8})
    back, params = restore_newest(tmp_path, like)[0], restore_params(tmp_path, 0)
    data = lambda state: jax.device_get(
        state._replace(rng=jax.random.key_data(state.rng))
    )
    assert_close(data(back), data(state), rtol=0, atol=0)
    lies = lambda x, where: x.sharding.is_equivalent_to(where, x.ndim)
    assert jax.tree.all(jax.tree.map(lies, back, of(*restored).shardings))
    assert_close(jax.device_get(params), jax.device_get(state.params), rtol=0, atol=0)
    assert all(len(x.addressable_shards) == 1 for x in jax.tree.leaves(params))


def test_the_mean_of_device_means_would_differ():
    """The trap that the test above guards against is real on these batches."""
    params, batch = draw_params(MODEL), make_batch(16)
    weights = [
        batch["masked_weights"] * (np.arange(16) // 4 == n)[:, None] for n in range(4)
    ]
    sums = [
        jitted_sums()(params, {**batch, "masked_weights": part}, None)["masked_lm_loss"]
        for part in weights
    ]
    counts = np.array([part.sum() for part in weights])
    whole = sum(sums) / counts.sum()
    assert abs(np.mean(sums / counts) - whole) > 1e-3


@pytest.mark.parametrize("how", ["jit", pytest.param("pmap", marks=pytest.mark.slow)])
def test_accumulation_changes_nothing(how):
    whole, metrics = train(how, 4)
    parts, part_metrics = train(how, 4, accumulation=4)
    assert_close(parts, whole, rtol=2e-4, atol=2e-5)
    assert_close(part_metrics, metrics, rtol=1e-4)


def test_dropout_is_drawn_anew_each_step_and_repeats():
    score = jitted_sums(dataclasses.replace(MODEL, dropout_rate=0.5))
    loss = lambda key: float(
        score(draw_params(MODEL), make_batch(), key)["masked_lm_loss"]
    )
    a, b = jax.random.key(1), jax.random.key(2)
    assert loss(a) == loss(a) != loss(b)


def test_cross_entropy_against_optax():
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(2, 3, 7)) * 5).astype(np.float32)
    logits[0, 0, :2] = 9.0  # Two largest: each counts as right.
    labels = np.array([[1, 3, 6], [0, 0, 2]])
    weights = rng.random((2, 3)).astype(np.float32)
    ours = lambda x: (weights * cross_entropy(x, labels)[0]).sum()
    theirs = lambda x: (
        weights * optax.softmax_cross_entropy_with_integer_labels(x, labels)
    ).sum()
    both = (jax.jit(jax.value_and_grad(loss))(logits) for loss in (ours, theirs))
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    right = jax.jit(cross_entropy)(logits, labels)[1]
    one_largest = logits.argmax(-1) == labels
    one_largest[0, 0] = True
    np.testing.assert_array_equal(right, one_largest)
    assert (logits[0, 0].argmax(), labels[0, 0]) == (0, 1)
    # On a CPU, and on accelerators.
    for of_label in (losses._gathered_logits, losses._masked_logits):
        np.testing.assert_array_equal(
            of_label(logits, labels)[0, :2], [9.0, logits[0, 1, 3]]
        )


def test_metrics_by_hand():
    """Sums and counts of the task against a direct calculation."""
    task = pretraining.pretraining_task(MODEL)
    params, batch = draw_params(MODEL), make_batch(16)
    logits = jax.jit(BertForPretraining(MODEL).apply)(
        {"params": params},
        batch["tokens"],
        batch["token_type_ids"],
        batch["mask"],
        masked_positions=batch["masked_positions"],
    )
    p = scipy.special.softmax(np.asarray(logits.masked_lm, np.float64), axis=-1)
    loss = right = 0.0
    for b in range(16):
        for n in range(int(batch["masked_weights"][b].sum())):
            label = batch["masked_tokens"][b, n]
            loss -= np.log(p[b, n, label])
            right += p[b, n].argmax() == label
    sums = jitted_sums()(params, batch, None)
    assert float(sums["masked_lm_loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(sums["masked_lm_accuracy"]) == right
    assert float(task.counts(batch)["masked_lm_loss"]) == batch["masked_weights"].sum()
    assert float(task.counts(batch)["next_sentence_loss"]) == 16


def test_a_batch_without_predictions_is_defined():
    one = setup("jit", 1)
    batch = one.batch(masked_weights=np.zeros((16, 5), np.float32))
    state, metrics = one.step(one.init(), batch)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    assert float(metrics["masked_lm_loss"][0]) == 0


# --- the optimizer --------------------------------------------------------------------------------


def test_schedule():
    schedule = optimizers.make_schedule("linear", 1.0, 10, 110)
    values = [float(schedule(n)) for n in (0, 5, 10, 60, 110, 200)]
    assert values == pytest.approx([0, 0.5, 1.0, 0.5, 0, 0])


def test_cosine_schedule():
    schedule = optimizers.make_schedule("cosine", 2.0, 10, 110)
    rise = [2.0 * n / 10 for n in range(10)]
    fall = [1.0 + np.cos(np.pi * (n - 10) / 100) for n in range(10, 111)]
    assert [float(schedule(n)) for n in range(111)] == pytest.approx(
        rise + fall, abs=1e-6
    )
    assert float(schedule(200)) == pytest.approx(0, abs=1e-6)


def test_warmup_stable_decay_schedule():
    schedule = optimizers.make_schedule("wsd", 2.0, 10, 110, 20)
    rise, fall = (
        [2.0 * n / 10 for n in range(10)],
        [2.0 * n / 20 for n in range(20, -1, -1)],
    )
    want = rise + [2.0] * 80 + fall
    assert [float(schedule(n)) for n in range(111)] == pytest.approx(want, abs=1e-6)
    assert float(schedule(200)) == 0


@pytest.mark.parametrize(
    ("name", "changes", "values"),
    [  # At steps 0, 2, 5, 8 and 10.
        ("linear", {}, [0, 1, 5 / 8, 2 / 8, 0]),
        (
            "cosine",
            {},
            [0, 1, (1 + np.cos(np.pi * 3 / 8)) / 2, (1 + np.cos(np.pi * 6 / 8)) / 2, 0],
        ),
        ("wsd", {}, [0, 1, 1, 2 / 3, 0]),
        ("wsd", {"warmup": 0.0, "decay": 0.0}, [1, 1, 1, 1, 1]),
        ("wsd", {"decay": 0.8}, [0, 1, 5 / 8, 2 / 8, 0]),
        (
            "wsd",
            {"warmup": 0.25, "decay": 0.75},
            [0, 1, 5 / 8, 2 / 8, 0],
        ),  # Rounded to 2 and 8.
        ("wsd", {"warmup": 1.0, "decay": 0.0}, [0, 0.2, 0.5, 0.8, 1]),
    ],
)
def test_schedules_of_configs(name, changes, values):
    config = OptimizerConfig(
        **{
            "schedule": name,
            "learning_rate": 1.0,
            "warmup": 0.2,
            "decay": 0.3,
            **changes,
        }
    )
    schedule, _ = optimizers.make_optimizer(config, 10, MODEL)
    got = [float(schedule(n)) for n in (0, 2, 5, 8, 10)]
    assert got == pytest.approx(values, abs=1e-6)


def test_decay_and_frequency_rate():
    """Zero gradients show the decay alone; a common gradient shows each leaf's rate."""
    shapes = jax.eval_shape(pretraining.pretraining_task(MODEL).init, jax.random.key(0))
    params = jax.tree.map(lambda x: np.ones(x.shape, np.float32), shapes)
    one = lambda _: 1.0
    update = lambda optimizer, grads: optimizer.update(
        grads, optimizer.init(params), params
    )[0]
    moved = lambda optimizer, g: jax.tree_util.tree_map_with_path(
        lambda path, leaf: (path[-1].key, float(np.ravel(leaf)[0])),
        jax.jit(functools.partial(update, optimizer))(
            jax.tree.map(lambda p: g * p, params)
        ),
    )
    marked = functools.partial(optimizers.frequencies, MODEL.encoding())
    decay = moved(
        optimizers.update_rule(OptimizerConfig(weight_decay=0.1), one, marked), 0.0
    )
    for name, change in jax.tree.leaves(decay, is_leaf=lambda x: isinstance(x, tuple)):
        kept = name in ("bias", "scale", "frequencies")
        assert change == pytest.approx(0.0 if kept else -0.1), name
    config = OptimizerConfig(
        weight_decay=0.0, learning_rate=1.0, frequency_learning_rate=10.0
    )
    rates = moved(optimizers.update_rule(config, one, marked), 1.0)
    for name, change in jax.tree.leaves(rates, is_leaf=lambda x: isinstance(x, tuple)):
        assert change == pytest.approx(
            -10.0 if name == "frequencies" else -1.0, rel=1e-2
        ), name


def test_rates_by_group():
    """Frozen parameters have no state and no part in the norm; the last fitting pattern counts."""
    params = {
        "bert": {
            name: jnp.ones(4) for name in ("token", "position", "layer", "frequencies")
        }
    }
    marked = lambda tree: {
        "bert": {name: name == "frequencies" for name in tree["bert"]}
    }
    rates = ("bert/*=2", "bert/token=0", "bert/position=5", "bert/position/none=9")
    rates += (
        "bert/token_type/*=0",
    )  # Modern encoders have no types, and some encodings nothing.
    settings = dict(weight_decay=0.1, clip_norm=1.0, epsilon=1.0, rates=rates)
    config = OptimizerConfig(learning_rate=1.0, frequency_learning_rate=4.0, **settings)
    optimizer = optimizers.update_rule(config, lambda _: 1.0, marked)
    grads = {
        "bert": {
            **dict.fromkeys(params["bert"], jnp.ones(4)),
            "token": jnp.full(4, 1e6),
        }
    }
    state = optimizer.init(params)
    assert {leaf.shape for leaf in jax.tree.leaves(state)} == {(), (4,)}
    assert (
        len(jax.tree.leaves(state)) == 1 + 1 + 3 * 2
    )  # Two counts; moments but for `token`.
    updates = jax.jit(optimizer.update)(grads, state, params)[0]["bert"]
    same = (
        updates["frequencies"] / 4
    )  # Of norm 1 with the other two, so each element is 12^-1/2.
    np.testing.assert_allclose(same, -(12**-0.5) / (12**-0.5 + 1), rtol=1e-3)
    np.testing.assert_allclose(updates["token"], 0)
    np.testing.assert_allclose(updates["position"], same * 5, rtol=1e-6)
    np.testing.assert_allclose(updates["layer"], same * 2, rtol=1e-6)
    typo = optimizers.update_rule(
        OptimizerConfig(rates=("bert/tokens=0",)), lambda _: 1.0
    )
    with pytest.raises(
        ValueError, match="no parameter matches 'bert/tokens'. Their paths begin with"
    ):
        typo.init(params)


def lamb_in_numpy(
    params, grads, *, rate, decay, b1, b2, epsilon, clip_norm, frequency_scale
):
    """You et al. 2020, algorithm 2, on flat dicts of float64; one dict of gradients a step."""
    m, v = ({name: 0.0 for name in params} for _ in range(2))
    for t, grad in enumerate(grads, 1):
        norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
        for name, x in params.items():
            g = grad[name] * min(1.0, clip_norm / norm)
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g**2
            update = m[name] / (1 - b1**t) / (np.sqrt(v[name] / (1 - b2**t)) + epsilon)
            if name not in ("bias", "scale", "frequencies"):
                update += decay * x
                norms = np.linalg.norm(x), np.linalg.norm(update)
                update *= norms[0] / norms[1] if all(norms) else 1.0
            step = rate * (frequency_scale if name == "frequencies" else 1.0)
            params = {**params, name: x - step * update}
    return params


def test_lamb_by_hand():
    rng = np.random.default_rng(0)
    shapes = {"kernel": (3, 4), "table": (5, 2), "zero": (4, 1), "still": (2, 1)}
    shapes |= {"bias": (4,), "scale": (4,), "frequencies": (3,)}
    params = {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}
    params["zero"] *= 0  # Starts without a norm.
    grads = [
        {name: rng.normal(0, 2, shape) for name, shape in shapes.items()}
        for _ in range(5)
    ]
    for grad in grads:
        grad["still"] *= 0
    settings = dict(b1=0.8, b2=0.95, epsilon=1e-3, clip_norm=1.5)
    expected = lamb_in_numpy(
        params, grads, rate=0.1, decay=0.2, frequency_scale=4.0, **settings
    )
    marked = lambda params: {name: name == "frequencies" for name in params}
    rates = dict(learning_rate=0.1, frequency_learning_rate=0.4)
    config = OptimizerConfig(name="lamb", weight_decay=0.2, **rates, **settings)
    optimizer = optimizers.update_rule(config, lambda _: 0.1, marked)

    @jax.jit
    def step(params, state, grad):
        updates, state = optimizer.update(grad, state, params)
        return optax.apply_updates(params, updates), state

    got = jax.tree.map(np.float32, params)
    state = jax.jit(optimizer.init)(got)
    for grad in grads:
        got, state = step(got, state, jax.tree.map(np.float32, grad))
    assert_close(got, expected, rtol=1e-5, atol=1e-6)


def after_steps(optimizer, params, grads):
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for grad in grads:
        updates, state = update(grad, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("lion", lambda **options: optax.lion(b1=0.8, b2=0.95, **options)),
        (
            "nadamw",
            lambda **options: optax.nadamw(b1=0.8, b2=0.95, eps=1e-6, **options),
        ),
        (
            "sgd",
            lambda weight_decay, mask: optax.chain(
                optax.trace(0.8),
                optax.add_decayed_weights(weight_decay, mask),
                optax.scale(-0.1),
            ),
        ),
    ],
)
def test_other_optimizers_are_those_of_optax(name, theirs):
    rng = np.random.default_rng(0)
    params, *grads = [
        {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}
        for _ in range(4)
    ]
    config = OptimizerConfig(
        name=name, weight_decay=0.2, b1=0.8, b2=0.95, clip_norm=0.0
    )
    rate = {} if name == "sgd" else {"learning_rate": 0.1}
    expected = theirs(weight_decay=0.2, mask={"kernel": True, "bias": False}, **rate)
    got = after_steps(optimizers.update_rule(config, lambda _: 0.1), params, grads)
    assert_close(got, after_steps(expected, params, grads), rtol=1e-6)


def test_muon():
    """Each matrix of a layer moves along an orthogonal one, with the size of a step of AdamW; all
    else is NAdamW's. A frozen leaf stays."""
    rng = np.random.default_rng(0)
    shapes = {
        "qkv": (8, 3, 2, 4), "out": (2, 4, 8), "query": (8, 2, 4), "key_value": (8, 2, 1, 4),
    }  # fmt: skip
    layer = {"attention": {name: {"kernel": shape} for name, shape in shapes.items()}}
    layer |= {
        "up": {"kernel": (8, 2, 16), "bias": (2, 16)},
        "down": {"kernel": (16, 8)},
    }
    tree = {
        "bert": {"layer_0": layer, "token": {"embedding": (9, 8)}},
        "pooler": {"kernel": (8, 8)},
    }
    is_shape = lambda x: isinstance(x, tuple)
    draw = lambda: jax.tree.map(
        lambda s: np.float32(rng.normal(size=s)), tree, is_leaf=is_shape
    )
    params, grads = draw(), draw()

    def step(name):
        config = OptimizerConfig(
            name=name,
            weight_decay=0.0,
            clip_norm=0.0,
            rates=("pooler/*=0",),
            epsilon=1e-8,
        )
        new = after_steps(
            optimizers.update_rule(config, lambda _: 1.0), params, [grads]
        )
        return dict(named_leaves(jax.tree.map(np.subtract, params, new)))

    muon, adam = step("muon"), step("nadamw")
    assert not muon["pooler/kernel"].any()
    for path in ("bert/token/embedding", "bert/layer_0/up/bias"):
        np.testing.assert_allclose(muon[path], adam[path], rtol=1e-5)
    of = lambda path: muon[f"bert/layer_0/{path}/kernel"]
    parts = {
        "qkv": np.moveaxis(of("attention/qkv"), 1, 0).reshape(3, 8, 8),
        "out": of("attention/out").reshape(1, 8, 8),
        "query": of("attention/query").reshape(1, 8, 8),
        "key_value": np.moveaxis(of("attention/key_value"), 1, 0).reshape(2, 8, 4),
        "up": np.moveaxis(of("up"), 1, 0),
        "down": of("down")[None],
    }
    for part in parts.values():
        values = np.linalg.svd(part, compute_uv=False) / (
            0.2 * max(part.shape[1:]) ** 0.5
        )
        assert (
            values.min() > 0.3 and values.max() < 1.3
        )  # Five iterations come this near to 1.


def test_clipping():
    grads = {"kernel": np.full(4, 10.0, np.float32)}
    for norm, clipped in ((0.0, 10.0), (1.0, 0.5)):  # From a norm of 20 to 1.
        o = optimizers.update_rule(
            OptimizerConfig(clip_norm=norm, epsilon=1.0), lambda _: 1.0
        )
        update = jax.jit(lambda o=o: o.update(grads, o.init(grads), grads)[0])()[
            "kernel"
        ]
        np.testing.assert_allclose(
            update, -clipped / (clipped + 1), rtol=1e-3
        )  # g / (|g| + ε).


@pytest.mark.parametrize(
    "norm", [0.0, 1e-30, 1.4, 1.5, 7.0, float("inf"), float("nan")]
)
def test_clipping_is_that_of_optax(norm):
    config = OptimizerConfig(name="sgd", b1=0.0, weight_decay=0.0, clip_norm=1.5)
    grads = {
        "a": np.full(3, norm / 2, np.float32),
        "b": np.full((), norm / 2, np.float32),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.5), optax.scale(-1.0))
    (expected, _), (got, _) = (
        o.update(grads, o.init(grads), grads)
        for o in (optimizer, optimizers.update_rule(config, lambda _: 1.0))
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, expected
    )


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """20 uninterrupted steps, 12 of length 32 and 8 of length 48, every fifth step saved."""
    folder = tmp_path_factory.mktemp("straight")
    position = {"model.position": "learned_absolute+learnable_sinusoidal_relative"}
    config = tiny_run.config(folder, **position)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PEAKS, "cpu", 1e9)  # FLOP/s; no real peak is known.
        pretraining.run(config, folder / "run")
    return config, folder / "run"


def final_params(folder, step=20):
    return jax.device_get(restore_params(folder, step))


@pytest.mark.parametrize("step", [10, 12, 15], ids=lambda s: f"from step {s}")
def test_resuming_is_bit_exact(straight, tmp_path, step):
    """Inside the first stage, at its end and inside the second; dropout and data included."""
    config, done = straight
    killed = tmp_path / "run"
    shutil.copytree(done, killed)
    for later in (killed / "checkpoints").iterdir():
        if int(later.name) > step:
            shutil.rmtree(later)
    pretraining.run(config, killed)
    assert_close(final_params(killed), final_params(done), rtol=0, atol=0)
    same = [
        (folder / "metrics.jsonl").read_text().splitlines() for folder in (done, killed)
    ]
    losses = [
        {
            (line["step"], key): value
            for line in map(json.loads, lines)
            for key, value in line.items()
            if key.startswith("held_out")
        }
        for lines in same
    ]
    assert losses[0] == losses[1]  # Nothing lost, nothing written twice.
    steps = [json.loads(line)["step"] for line in same[1]]
    assert steps == sorted(steps)


def test_a_run_that_is_done_stays_as_it_is(straight):
    config, folder = straight
    before = final_params(folder)
    pretraining.run(config, folder)
    assert_close(final_params(folder), before, rtol=0, atol=0)


def test_what_a_run_leaves(straight):
    config, folder = straight
    names = {p.name for p in folder.iterdir()}
    assert {
        "config.json",
        "metrics.jsonl",
        "tokenizer.json",
        "checkpoints",
        "tensorboard",
    } <= names
    assert list((folder / "tensorboard").glob("events*"))
    saved = workdir.load_config(folder, PretrainingConfig)
    resolved = text_training.resolve(config)
    assert saved.model == resolved.model
    assert saved.as_dict() == resolved.as_dict()
    lines = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    training = [line for line in lines if "train/masked_lm_loss" in line]
    assert [line["step"] for line in training] == [4, 8, 12, 16, 20]
    assert training[-1]["train/masked_lm_loss"] < training[0]["train/masked_lm_loss"]
    assert all(np.isfinite(v) for line in lines for v in line.values())


def test_mfu_where_the_peak_is_known(straight):
    config, folder = straight
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    words = data.load_tokenizer(folder / "tokenizer.json").get_vocab_size()
    model = dataclasses.replace(config.model.resolve(), vocab_size=words)
    flops = train_flops(model, 8, 32, 6)
    steps_per_second = line["train/examples_per_second"] / 8
    assert line["train/mfu"] == pytest.approx(steps_per_second * flops / 4e9)


def test_the_report_and_its_repetition(straight, tmp_path):
    config, folder = straight
    resolved = text_training.resolve(config)
    run = pretraining.build(resolved, folder / "tokenizer.json")
    first = report_pretraining(folder, tmp_path / "a", run)
    again = report_pretraining(folder, tmp_path / "b")
    assert first == again
    numbers = json.loads((tmp_path / "b" / "report.json").read_text())
    assert numbers == json.loads((tmp_path / "a" / "report.json").read_text())
    assert numbers["step"] == 20
    assert set(numbers["properties"]) == {
        "learned_absolute",
        "learnable_sinusoidal_relative",
    }
    relative = numbers["properties"]["learnable_sinusoidal_relative"]["trained"]
    assert relative["translation_invariance"] == pytest.approx(0, abs=1e-5)
    assert numbers["held_out"]["unigram_accuracy"] < 0.5
    assert (tmp_path / "b" / "figure2_vectors.png").stat().st_size > 10_000
    page = (tmp_path / "b" / "report.md").read_text()
    assert "| masked-LM accuracy" in page
    assert f"- Seed: {config.seed}\n" in page and "- Start: from scratch\n" in page
    assert (
        "](loss.png)" in page and (tmp_path / "b" / "loss.png").stat().st_size > 5_000
    )
    assert "Training has hardly moved" not in page.partition("## Position vectors")[0]


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Twelve steps of LAMB under "fsdp", half of them and all of them saved."""
    folder = tmp_path_factory.mktemp("split")
    model = dict(hidden_size=256, intermediate_size=512, max_length=256)
    changes = tiny_run.NO_DROPOUT | {
        f"model.{key}": value for key, value in model.items()
    }
    changes |= {"parallel": "fsdp", "checkpoint_every": 6}
    changes |= {"stage1.batch_size": 32, "stage1.accumulation": 2, "stage2.steps": 0}
    changes |= {"optimizer.name": "lamb", "optimizer.learning_rate": 0.05}
    config = tiny_run.config(folder, **changes)
    pretraining.run(config, folder / "run")
    return config, folder / "run"


def metrics_of(folder, name):
    """The values of one metric, in the order of their steps."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


@pytest.mark.slow
def test_a_large_batch_run_with_lamb_learns(split):
    losses = metrics_of(split[1], "train/masked_lm_loss")
    assert losses[-1] < losses[0] - 0.5


def test_a_run_goes_on_in_another_layout(split, tmp_path):
    """The run has finished, so only its shardings change."""
    config, done = split
    shutil.copytree(done, tmp_path / "run")
    other = changed(config, {"parallel": "pmap"})
    with pytest.raises(ValueError, match="parallel: 'fsdp' there, 'pmap' now"):
        pretraining.run(other, tmp_path / "run")
    other = changed(other, {"parallel": "jit"})
    pretraining.run(other, tmp_path / "run")
    saved = workdir.load_config(tmp_path / "run", PretrainingConfig)
    assert saved.config.parallel == "jit"
    assert_close(
        final_params(tmp_path / "run", 12), final_params(done, 12), rtol=0, atol=0
    )


@pytest.mark.slow
def test_reports_and_scores_of_split_parameters(split, tmp_path):
    folder = split[1]
    report_pretraining(folder, tmp_path)
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert set(numbers["properties"]) == {"learned_absolute"}
    assert score(folder).row["masked_lm_loss"] == pytest.approx(
        numbers["held_out"]["masked_lm_loss"], rel=1e-4
    )


def test_starting_from_split_parameters(split, capsys):
    config, folder = split
    other = changed(
        config,
        {"model.position": "learned_absolute+learned_relative", "init": str(folder)},
    )
    experiment = pretraining.build(text_training.resolve(other))
    fresh = experiment.program.init().params
    params = experiment.start(fresh)
    assert "\nnew: bert/position/learned_relative/table\n" in capsys.readouterr().err
    assert (
        jax.tree.map(lambda x: x.sharding, params)
        == experiment.program.shardings.params
    )
    assert len({tuple(x.sharding.spec) for x in jax.tree.leaves(params)}) > 1
    table = params["bert"]["position"]["learned_absolute"]["table"]
    was = final_params(folder, 12)["bert"]["position"]["learned_absolute"]["table"]
    np.testing.assert_array_equal(table, was)


def test_a_report_of_nothing(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        report_pretraining(tmp_path, tmp_path)


def test_another_config_in_the_same_folder(straight, tmp_path):
    config, original = straight
    folder = shutil.copytree(
        original, tmp_path / "run"
    )  # Other tests read the original.
    other = changed(config, {"model.position": "none"})
    with pytest.raises(
        ValueError, match=r"model\.position: 'learned_abs.* there, 'none' now"
    ):
        pretraining.run(other, folder)
    other = changed(config, {"log_every": 7})
    pretraining.run(other, folder)  # Nothing that the numbers depend on.


def test_starting_from_a_run_with_another_position_encoding(straight, tmp_path, capsys):
    config, folder = straight
    other = changed(
        config,
        {
            "init": str(folder),
            "model.position": "learnable_sinusoidal_relative",
            "stage2.steps": 0,
            "stage1.steps": 1,
            "optimizer.learning_rate": 0.0,
            **tiny_run.NO_DROPOUT,
        },
    )
    pretraining.run(other, tmp_path / "run")
    printed = capsys.readouterr().err
    assert "dropped: bert/position/learned_absolute/table" in printed
    assert "new: nothing" in printed
    new, old = final_params(tmp_path / "run", 1), final_params(folder)
    name = "learnable_sinusoidal_relative"
    new_position, old_position = (p["bert"]["position"][name] for p in (new, old))
    assert_close(new_position, old_position, rtol=0, atol=0)
    assert_close(new["bert"]["layer_0"], old["bert"]["layer_0"], rtol=0, atol=0)


def test_a_start_that_fails_does_not_occupy_the_folder(straight, tmp_path):
    config, folder = straight
    other = changed(config, {"init": str(tmp_path)})
    with pytest.raises(ValueError, match="is neither a run nor a published BERT"):
        pretraining.run(other, tmp_path / "run")
    other = changed(other, {"init": str(folder), "model.intermediate_size": 24})
    with pytest.raises(ValueError, match="differ in more than their position encoding"):
        pretraining.run(other, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_transplant_lists_every_mismatch():
    wider = dataclasses.replace(MODEL, intermediate_size=28, position=encodings.none())
    with pytest.raises(
        ValueError, match=r"down/kernel: \(28, 16\) there, \(24, 16\) here"
    ) as error:
        transplant(draw_params(MODEL), draw_params(wider))
    assert "up/kernel" in str(error.value)
    assert "position" not in str(error.value).split("\n", 1)[1]


def test_a_run_that_was_killed_before_its_first_checkpoint_has_no_tokenizer(tmp_path):
    """It may start again from another model, whose tokenizer is another one."""
    config, folder = tiny_run.config(tmp_path), tmp_path / "run"
    resolved = text_training.resolve(config)
    workdir.write_config(folder, resolved)
    saved_tokenizer(folder).write_text("{}")
    assert log_run_header(folder, resolved) is None
    tiny_run.save_untrained(config, folder)
    assert log_run_header(folder, resolved) == saved_tokenizer(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.position": "learned_abslute"}, "Did you mean learned_absolute"),
        ({"model.size": "minni"}, "Did you mean mini"),
        ({"stage1.steps": 0, "stage2.steps": 0}, "Nothing to train"),
        (
            {"stage1.epochs": 1.0},
            "config.stage1.steps=12 and epochs=1.0: .*not both",
        ),
        (
            {"stage1.batch_size": 6},
            r"config.stage1.batch_size=6 is not divisible by 4 devices",
        ),
        (
            {"parallel": "pmapp"},
            "one of jit, fsdp, pmap, pmap_bfloat16, fsdp_bfloat16, auto, got 'pmapp'",
        ),
        ({"optimizer.name": "adam"}, "one of adamw, lamb, .*, got 'adam'"),
        (
            {"optimizer.rates": ("bert/token",)},
            "rates are PATTERN=RATIO, .*; got 'bert/token'",
        ),
        ({"optimizer.rates": ("*=0", "a=1", "*=2")}, r"rates has '\*' twice"),
        (
            {"optimizer.rates": ("bert/tokn/*=0",)},
            "no parameter matches 'bert/tokn/[*]'",
        ),
        (
            {"data.source": "/nowhere/*.txt"},
            r"^config\.data\.source='/nowhere/\*\.txt' matches no file",
        ),
        ({"data.vocab": "/nowhere/vocab.txt"}, "No tokenizer at"),
    ],
)
def test_configs_that_cannot_run(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        pretraining.run(tiny_run.config(tmp_path, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()  # Nothing half-written.


def test_epochs_become_steps(tmp_path):
    config = tiny_run.config(tmp_path, **{"stage1.steps": 0, "stage1.epochs": 2.0})
    experiment = pretraining.build(text_training.resolve(config))
    examples = 9 * 8  # Nine training documents; each 30 sentences of at least 9 tokens.
    assert experiment.stages[0].steps >= 2 * examples / 8
    assert experiment.stages[1].steps == 8


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("learned_absolute+learned_relative", marks=pytest.mark.slow),
        PAPER[-1],
    ],
)
def test_real_batches_are_learned(tmp_path, name):
    """The loss decreases in bfloat16; that it does for each encoding see test_models.py."""
    changes = {"model.position": name, "model.dtype": "bfloat16", "stage2.steps": 0}
    config = tiny_run.config(tmp_path, **changes, **tiny_run.NO_DROPOUT)
    experiment = pretraining.build(text_training.resolve(config))
    stage, state = experiment.stages[0], experiment.program.init()
    batch = sharding.to_global(
        next(iter(stage.batches(0))), experiment.program.batch_sharding
    )
    losses = []
    for _ in range(6):
        state, metrics = stage.train_step(state, batch)
        total, count = metrics["masked_lm_loss"]
        losses.append(float(total / count))
    assert losses[-1] < losses[0]


def test_a_gradient_step_is_optax_adam():
    """One step against optax.adamw itself, where nothing is masked or clipped."""
    params = {"kernel": np.float32([[1.0, -2.0]])}
    grads = {"kernel": np.float32([[0.3, 0.1]])}
    ours = optimizers.update_rule(OptimizerConfig(clip_norm=0.0), lambda _: 0.1)
    theirs = optax.adamw(0.1, eps=1e-6, weight_decay=0.01)
    update = lambda o: o.update(grads, o.init(params), params)[0]["kernel"]
    a, b = jax.jit(lambda: (update(ours), update(theirs)))()
    np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
    ("flags", "has"),
    [("avx2 avx512f", False), ("avx512_bf16", True), ("fp asimd bf16", True)],
)
def test_whether_a_cpu_multiplies_bfloat16(flags, has, tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text(
        f"processor\t: 0\nmodel name\t: A: B\nflags\t\t: fpu {flags} sse\n\n"
    )
    monkeypatch.setattr(cpu, "_CPUINFO", info)
    assert cpu.multiplies_bfloat16() is has and cpu.model() == "A: B"
    info.write_text(f"processor\t: 0\nFeatures\t: fp {flags}\n")  # As ARM's.
    assert cpu.multiplies_bfloat16() is has and cpu.model() == ""
    info.unlink()
    assert cpu.multiplies_bfloat16() and cpu.model() == ""
