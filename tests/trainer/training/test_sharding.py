"""Meshes, whose rows follow the processes, and the exchange of gradients between devices."""

import dataclasses
import functools
import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tpu_slices
from compiled_step import estimate_stage
from helpers import tiny_run

from pe_jax.common.schema import changed
from pe_jax.trainer.tasks import text_training
from pe_jax.trainer.tasks.seeds import seed_mesh
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.step import Task, init_state, make_train_step


@functools.total_ordering
@dataclasses.dataclass(frozen=True)
class FakeDevice:
    """A device as a mesh asks for it; JAX itself is asked for nothing of it."""

    id: int
    process_index: int
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"

    def __lt__(self, other):
        return self.id < other.id


# The chips of v5e:4x4 have ids row by row, and hosts of 2x2 chips.
HOSTS = [2 * (n // 8) + n % 4 // 2 for n in range(16)]


def test_rows_follow_the_processes():
    """However the devices are listed, and within a process as they are listed."""
    by_id = [FakeDevice(n, host) for n, host in enumerate(HOSTS)]
    mesh = sharding.data_mesh(by_id)
    assert mesh.axis_names == ("data",)
    assert [device.process_index for device in mesh.devices] == [
        host for host in range(4) for _ in range(4)
    ]
    assert [device.id for device in mesh.devices[:8]] == [0, 1, 4, 5, 2, 3, 6, 7]


def test_rows_of_a_host_are_next_to_one_another():
    """Each process has its share of the rows of a global batch, in the order of the processes."""
    mesh = sharding.data_mesh([FakeDevice(n, host) for n, host in enumerate(HOSTS)])
    rows_of = sharding.by_rows(mesh).devices_indices_map((32, 3))
    for host in range(4):
        rows = [
            n
            for device, (index, _) in rows_of.items()
            if device.process_index == host
            for n in range(index.start, index.stop)
        ]
        assert sorted(rows) == list(range(8 * host, 8 * host + 8))


def test_devices_of_this_machine_keep_their_order():
    assert list(sharding.data_mesh().devices) == jax.devices()


# --- the exchange of gradients --------------------------------------------------------------------

ROWS, WIDTH = 16, 256  # 256² parameters are the fewest that are sharded.


def toy_sums(params, batch, rng):
    """Half of the squared error of a linear layer, and a count that no gradient has."""
    error = batch["x"] @ params["kernel"] + params["bias"] - batch["y"]
    return {"loss": 0.5 * (batch["weight"] * jnp.square(error).sum(1)).sum()}


TOY = Task(
    init=lambda rng: {
        "kernel": jax.random.normal(rng, (WIDTH, WIDTH)),
        "bias": jnp.ones(WIDTH),
    },
    counts=lambda batch: {"loss": batch["weight"].sum()},
    sums=toy_sums,
    losses=("loss",),
    outputs=toy_sums,
)
SGD = optax.sgd(1.0)  # A step of it is the gradient.


@functools.cache
def toy_step(parallel, accumulation=1):
    """The state before and after a step on four devices, its batch, and the step's jaxpr."""
    mesh = sharding.data_mesh()
    task = TOY._replace(sums=sharding.gather(toy_sums, mesh, parallel))
    rng = np.random.default_rng(0)
    batch = {
        "x": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "y": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "weight": (np.arange(ROWS) % 5 > 0).astype(np.float32),  # 2 to 4 of 4 a device.
    }
    placed = sharding.to_global(batch, sharding.by_rows(mesh))
    state = init_state(task, SGD, jax.random.key(0))
    shardings = sharding.state_shardings(mesh, parallel, state)
    step = make_train_step(task, SGD, accumulation=accumulation)
    run = sharding.parallelize(step, mesh, parallel, shardings)
    before = jax.device_get(state.params)
    sharded_state = jax.device_put(state, shardings)
    jaxpr = str(run.trace(sharded_state, placed).jaxpr)
    after, metrics = run(sharded_state, placed)
    return before, after.params, jax.device_get(metrics), batch, jaxpr


def toy_gradient(params, batch):
    """By hand, in float64."""
    x, y, weight = (batch[name].astype(np.float64) for name in ("x", "y", "weight"))
    error = x @ params["kernel"].astype(np.float64) + params["bias"] - y
    error *= weight[:, None] / weight.sum()
    return {"kernel": x.T @ error, "bias": error.sum(0)}


@pytest.mark.parametrize("parallel", [*sharding.PARALLEL])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_gradients_against_float64(parallel, accumulation):
    """bfloat16 rounds the gradient of each of four devices, and their sum three times."""
    before, after, metrics, batch, _ = toy_step(parallel, accumulation)
    exact = toy_gradient(before, batch)
    bound = 4 * 2**-9 if "bfloat16" in parallel else 1e-5
    for name, gradient in exact.items():
        error = np.abs(before[name] - np.asarray(after[name]) - gradient).max()
        assert error < bound * np.abs(gradient).max()
        if "bfloat16" in parallel:
            assert error > 1e-4 * np.abs(gradient).max()
    total, count = metrics["loss"]
    norm = np.sqrt(sum(np.square(gradient).sum() for gradient in exact.values()))
    np.testing.assert_allclose(metrics["gradient_norm"][0], norm, rtol=max(bound, 1e-5))
    assert count == batch["weight"].sum() and total > 0


def test_what_is_sharded():
    for parallel in sharding.PARALLEL:
        _, after, _, _, _ = toy_step(parallel)
        shapes = {shard.data.shape for shard in after["kernel"].addressable_shards}
        is_sharded = parallel in ("fsdp", "fsdp_bfloat16")
        assert shapes == {(WIDTH // 4 if is_sharded else WIDTH, WIDTH)}
        assert {shard.data.shape for shard in after["bias"].addressable_shards} == {
            (WIDTH,)
        }


@pytest.mark.parametrize(
    ("parallel", "sums", "scatters"),
    [("pmap", 0, 0), ("pmap_bfloat16", 2, 0), ("fsdp_bfloat16", 1, 1)],
)
def test_each_gradient_is_exchanged_once(parallel, sums, scatters):
    """In bfloat16 where the name says so, after all micro-batches."""
    *_, jaxpr = toy_step(parallel, accumulation=2)
    names = re.findall(r":bf16\S* = (psum\w*|reduce_scatter)\b", jaxpr)
    assert names.count("reduce_scatter") == scatters
    assert len(names) - scatters == sums
    assert len(re.findall(r"= all_gather\b", jaxpr)) == scatters


@pytest.mark.parametrize(
    ("platform", "count", "expected"),
    [
        ("cpu", 64, "jit"),
        ("gpu", 8, "jit"),
        ("tpu", 1, "jit"),
        ("tpu", 16, "pmap_bfloat16"),
        ("tpu", 31, "pmap_bfloat16"),
        ("tpu", 32, "fsdp_bfloat16"),
        ("tpu", 256, "fsdp_bfloat16"),
    ],
)
def test_auto_is_jit_but_on_tpus(platform, count, expected):
    mesh = sharding.data_mesh([FakeDevice(n, 0, platform) for n in range(count)])
    assert sharding.chosen("auto", mesh) == expected
    assert sharding.chosen("pmap", mesh) == "pmap"


def test_auto_is_bit_for_bit_jit_here():
    ours, theirs = (toy_step(parallel)[1] for parallel in ("auto", "jit"))
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value)


# --- with the TPU's compiler ----------------------------------------------------------------------


@pytest.mark.tpu_compiler
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
@pytest.mark.parametrize(
    "name", ["v5e:4x4", "v6e:4x4", "v5p:2x2x4", "v5e:16x16", "2xv5e:4x4"]
)
def test_rows_follow_the_processes_of_a_slice(name, tmp_path):
    """And a training step compiles for it that adds its gradients over all of its chips."""
    chips = tpu_slices.make_slice(name)
    devices = list(chips.mesh.devices)
    hosts = [device.process_index for device in devices]
    assert hosts == sorted(hosts) and len(set(hosts)) == len(devices) // 4
    assert {hosts.count(host) for host in hosts} == {4}
    slices = [getattr(device, "slice_index", 0) or 0 for device in devices]
    assert slices == sorted(slices) and len(set(slices)) == chips.slices
    of_seeds = seed_mesh(2, devices).devices
    assert all(
        np.diff([device.process_index for device in row]).min() >= 0 for row in of_seeds
    )

    changes = {"stage1.batch_size": 2 * len(devices), "stage2.steps": 0}
    resolved = text_training.resolve(changed(tiny_run.config(tmp_path), changes))
    estimate = estimate_stage(resolved, resolved.config.stage1, chips)
    assert estimate.fits and estimate.chips == len(devices)
    text = estimate.program.as_text()
    assert "all-reduce" in text
