"""Meshes: rows follow the processes, on one slice of a TPU or several."""

import dataclasses
import functools
import importlib.util

import jax
import numpy as np
import pytest
import tpu_slices
from compiled_step import estimate_stage
from helpers import tiny_run

from pe_jax.common.schema import changed
from pe_jax.trainer.tasks import text_training
from pe_jax.trainer.tasks.seeds import seed_mesh
from pe_jax.trainer.training import sharding


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
    assert slices == sorted(slices) and len(set(slices)) == chips.count
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
