"""Several hosts: two processes of two devices each compute what one process of four does."""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent import futures
from unittest import mock

import jax
import numpy as np
import pytest
from helpers import tiny_run
from helpers.commands import run

from pe_jax.trainer.disk_cache import exclusive, make_once
from pe_jax.trainer.tasks import pretraining
from pe_jax.trainer.tasks.seeds import seed_mesh
from pe_jax.trainer.training import hosts
from pe_jax.trainer.training.checkpointing import newest_params, saved_steps

CHANGES = {
    "stage1.steps": 30, "stage2.steps": 0, "checkpoint_every": 10,
    "model.position": "none", "model.attention_dropout_rate": 0.0,  # These compile for long.
}  # fmt: skip


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start(folder, workdir, each=((), ()), cwds=(tiny_run.ROOT, tiny_run.ROOT)):
    """Both hosts, with arguments of their own; the port is free."""
    address = f"localhost:{free_port()}"
    flags = os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=2")
    join = [f"--coordinator={address}", "--hosts=2", "--lost_after=10"]
    env = {**os.environ, "XLA_FLAGS": flags}
    return [
        tiny_run.command(
            folder, workdir, CHANGES, *join, f"--host={host}", *own, env=env, cwd=cwd
        )
        for host, (own, cwd) in enumerate(zip(each, cwds, strict=True))
    ]


def end(processes, seconds=120):
    """Exit statuses, and what each wrote."""
    outputs = [process.communicate(timeout=seconds) for process in processes]
    return [process.returncode for process in processes], outputs


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_hosts(tmp_path, killed):
    """They reach the parameters of a single process of four devices, also if one is killed, the
    other ends with an error, and both are started again. Only the first host writes."""
    pretraining.run(tiny_run.config(tmp_path, **CHANGES), tmp_path / "one")
    if killed:
        both = start(tmp_path, tmp_path / "two")
        printed = next(line for line in both[0].stderr if line.startswith("step"))
        assert "30/30" not in printed
        both[1].send_signal(signal.SIGKILL)
        statuses, _ = end(both)
        assert statuses[0] not in (0, 75) and statuses[1] == -signal.SIGKILL
    statuses, ((out, err), (other_out, other_err)) = end(
        start(tmp_path, tmp_path / "two")
    )
    assert statuses == [0, 0], err + other_err
    assert "# What the run learned" in out and "step 30/30" in err
    assert "#" not in other_out and "step" not in other_err
    (step, params), (_, expected) = (
        newest_params(tmp_path / "two"),
        newest_params(tmp_path / "one"),
    )
    assert step == 30
    # Sums of gradients over devices are rounded in another order.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), params, expected
    )
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [
        "checkpoints", "config.json", "lock", "metrics.jsonl", "report", "tensorboard",
        "tokenizer.json",
    ]  # fmt: skip
    assert (
        len(list((tmp_path / "two" / "tensorboard").iterdir())) <= 2
    )  # One a start, not four.


# train.py where one program takes longer to compile than Gloo waits for new connections.
SLOW_COMPILER = """
import runpy, sys, time
from jax._src import compiler

original = compiler.backend_compile_and_load

def compile_slowly(backend, module, *args, **kwargs):
    if "train_step" in str(module.operation.attributes["sym_name"]):
        time.sleep(35)
    return original(backend, module, *args, **kwargs)

compiler.backend_compile_and_load = compile_slowly
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_host_that_compiles_for_longer_is_waited_for(tmp_path, monkeypatch):
    """Only the first host writes the cache of compiled programs, so that after a restart it waits
    for the others."""
    both = []
    popen = subprocess.Popen

    def start_slowly(command, **options):
        program = [sys.executable, "-c", SLOW_COMPILER] if both else [sys.executable]
        both.append(popen([*program, *command[1:]], **options))
        return both[-1]

    monkeypatch.setattr(subprocess, "Popen", start_slowly)
    start(tmp_path, tmp_path / "run")
    statuses, outputs = end(both, seconds=400)
    assert statuses == [0, 0], outputs


@pytest.mark.parametrize(
    "reason",
    [
        "UNKNOWN: Gloo AllGather failed: Connection closed by peer [127.0.0.1]:53435",
        "UNKNOWN: Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue() timed out",
        "UNAVAILABLE: The coordination service cannot be reached",
        "INTERNAL: NCCL operation ncclAllReduce failed",
    ],
)
def test_an_error_of_another_host_is_one_line(monkeypatch, capsys, reason):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    message = hosts.transfer_failure(
        jax.errors.JaxRuntimeError(f"{reason}\n  at 0x1\n")
    )
    assert message.startswith(
        "A transfer between the hosts failed: another host has ended"
    )
    assert "the same command on all of them again" in message
    assert (
        message.endswith(f"The runtime says: {reason} at 0x1") and "\n" not in message
    )
    assert (
        hosts.transfer_failure(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: memory"))
        == ""
    )
    assert hosts.transfer_failure(KeyError(reason)) == ""
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    assert hosts.transfer_failure(jax.errors.JaxRuntimeError(reason)) == ""


def test_devices_are_linked_along_every_axis():
    """The sums of all devices, and of those of each seed and of each part of the rows."""
    mesh = seed_mesh(2)
    summed = []
    with mock.patch.object(hosts, "_sum_over", lambda mesh, axes: summed.append(axes)):
        hosts.link(mesh)
    assert summed == [("seeds",), ("data",), ("seeds", "data")]
    hosts.link(mesh)  # On one host too.


def test_hosts_with_different_settings_do_not_train(tmp_path):
    both = start(tmp_path, tmp_path / "run", each=[[], ["--config.seed=7"]])
    statuses, outputs = end(both)
    assert statuses == [1, 1]
    for _, err in outputs:
        assert (
            "error: The hosts have different settings (config.seed: host 0 has 0" in err
        )
        assert "host 1 has 7)" in err and "Traceback" not in err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_hosts_whose_folders_differ_do_not_train(tmp_path):
    """The same relative path, in two working directories."""
    for name in "ab":
        (tmp_path / name).mkdir()
    both = start(tmp_path, "run", cwds=(tmp_path / "a", tmp_path / "b"))
    statuses, outputs = end(both)
    assert statuses == [1, 1], outputs
    for _, err in outputs:
        assert (
            "error: --workdir is not the same folder on all hosts (host 0 has /" in err
        )
        assert (
            f"host 1 has {tmp_path / 'b' / 'run'} on " in err and "Traceback" not in err
        )
    assert [*(tmp_path / "a" / "run").iterdir()] == []


@pytest.mark.slow
def test_ctrl_c_to_a_host_saves(tmp_path):
    long = ["--config.stage1.steps=20000", "--config.checkpoint_every=0"]
    both = start(tmp_path, tmp_path / "run", each=[long, long])
    assert any(line.startswith("step") for line in both[0].stderr)
    both[1].send_signal(signal.SIGINT)
    statuses, ((_, err), _) = end(both)
    assert statuses == [130, 130], err
    step = int(
        re.search(r"Stopped and saved at step (\d+)\. The same command resumes", err)[1]
    )
    assert saved_steps(tmp_path / "run")[-1] == step < 20_000


def test_hosts_with_different_numbers_of_devices():
    hosts.check_devices([0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"\(host 0 has 2, host 1 has 1\)\. Use equal"):
        hosts.check_devices([0, 1, 0])


def test_hosts_that_share_a_cache_tokenize_once(tmp_path, capsys):
    """The second one waits for the first, and takes what that has made."""
    begun, go_on = threading.Event(), threading.Event()

    def make(folder):
        (folder / "tokens").write_text("1 2 3")
        begun.set()
        assert go_on.wait(10)

    with futures.ThreadPoolExecutor() as pool:
        first = pool.submit(make_once, tmp_path / "corpus", make)
        assert begun.wait(10)
        second = pool.submit(
            make_once, tmp_path / "corpus", lambda _: pytest.fail("made twice")
        )
        go_on.set()
        assert first.result(10) == second.result(10) == tmp_path / "corpus"
    assert "Waiting for another process, which is making" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".corpus.lock",
        "corpus",
    ]


def test_a_host_that_is_killed_is_not_waited_for(tmp_path):
    program = (
        "import pathlib, sys, time\nfrom pe_jax.trainer.disk_cache import exclusive\n"
    )
    program += "with exclusive(pathlib.Path(sys.argv[1])): print('in', flush=True), time.sleep(60)"
    command = [sys.executable, "-c", program, tmp_path / "corpus"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline()
        other.kill()
    with exclusive(tmp_path / "corpus"):
        pass


# Two processes of a cluster, told by its scheduler where the first one is.
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_PROCID": "{host}",
}


def cluster(variables, host, port):
    variables = {name: value.format(host=host) for name, value in variables.items()}
    return {**variables, "JAX_COORDINATOR_PORT": str(port)}


def test_a_cluster_that_cannot_be_read():
    program = """import os
from pe_jax.trainer.training import hosts
broken = {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://127.0.0.1:1"}
for variables in ({}, broken):
    os.environ.update(variables)
    try:
        hosts.connect("auto", None, None, 10)
    except ValueError as error:
        print(error)
"""
    code, out, err = run("-c", program)
    none, odd = out.splitlines()
    for line in (none, odd):
        assert line.startswith("The hosts did not find one another: "), err
        assert line.endswith(
            " Give --coordinator=HOST:PORT of host 0, --hosts and --host."
        )
    assert code == 0 and "coordinator_address" in none and "OMPI_COMM_WORLD_SIZE" in odd


# Of a training step: sums over rows, over seeds, and over both.
MEETING = """
import jax
import numpy as np
from pe_jax.trainer.tasks.seeds import seed_mesh
from pe_jax.trainer.training import hosts

hosts.connect("auto", None, None, 10)
mesh = seed_mesh(2)
hosts.link(mesh)
print("linked", flush=True)
P = jax.sharding.PartitionSpec
rows = jax.sharding.NamedSharding(mesh, P("seeds", "data"))
x = jax.make_array_from_process_local_data(rows, np.ones((2, 2)), (2, 4))
for axis in (0, 1, None):
    where = jax.sharding.NamedSharding(mesh, P())
    total = jax.jit(lambda x: x.sum(axis), out_shardings=where)(x)
    jax.block_until_ready(total)
print(jax.process_index(), jax.device_count(), float(total), flush=True)
"""


def test_the_processes_of_a_cluster_meet():
    """Devices are connected by `link`, and not by the programs after it, which would have to begin
    within 30 s of one another."""
    port = free_port()
    both = [
        subprocess.Popen(
            [sys.executable, "-c", MEETING],
            env={**os.environ, **cluster(SLURM, host, port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tiny_run.ROOT,
        )
        for host in (1, 0)
    ]
    statuses, outputs = end(both)
    assert statuses == [0, 0], outputs
    for host, (out, _) in zip((1, 0), outputs):
        linked, _, computed = out.partition("linked\n")
        assert "[Gloo]" in linked and computed == f"{host} 8 8.0\n"


@dataclasses.dataclass(frozen=True)
class Device:
    """What a mesh needs to know about a device."""

    id: int
    process_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"


def test_each_host_has_all_seeds_and_its_own_rows():
    devices = [Device(i, i % 2) for i in range(8)]  # Two hosts of four, not in order.
    mesh = seed_mesh(6, devices)
    assert dict(mesh.shape) == {"seeds": 2, "data": 4}
    hosts = [[device.process_index for device in row] for row in mesh.devices]
    assert hosts == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert dict(seed_mesh(5, devices).shape) == {"seeds": 1, "data": 8}


@pytest.mark.parametrize(
    ("coordinator", "count", "host", "message"),
    [
        ("localhost:1", 2, None, "needs --hosts and --host"),
        ("auto", 2, 0, "auto finds the hosts"),
        ("localhost:1", 2, 2, "--host must be 0 to 1, got 2"),
        ("localhost:1", 0, 0, "--hosts must be at least 1, got 0"),
        *[
            (address, 2, 0, f"'auto' or HOST:PORT of host 0, .*got {address!r}")
            for address in (
                "localhost",
                ":",
                "localhost:",
                ":1",
                "a:b",
                "a:0",
                "a:65536",
                "::1:80",
            )
        ],
    ],
)
def test_hosts_that_make_no_sense(coordinator, count, host, message):
    with pytest.raises(ValueError, match=message):
        hosts.connect(coordinator, count, host, 10)
