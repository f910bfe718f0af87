"""The decision of a run on a TPU between the kernel and XLA's form, with a stub for the TPU."""

import functools
import types

import jax.numpy as jnp
import pytest
from helpers import tiny_run

from pe_jax.attention import (
    KernelCheck,
    KernelDifference,
    check_kernel,
    implementations,
)
from pe_jax.attention import kernel_check as kernel_check_module
from pe_jax.attention.tpu_kernel import adapter
from pe_jax.models import BertConfig
from pe_jax.trainer.tasks import pretraining
from pe_jax.trainer.tasks import train as train_module
from pe_jax.trainer.training import hosts


def result(difference):
    found = KernelDifference(
        case="causal", dtype="float32", difference=difference, limit=1e-3
    )
    return KernelCheck(device="TPU v5e", differences=(found,))


@pytest.fixture
def on_tpu(monkeypatch):
    """A function that makes the run one on a TPU, where `check_kernel` returns this."""

    def put(check):
        monkeypatch.setattr(train_module, "_is_on_tpu", lambda program: True)
        monkeypatch.setattr(train_module, "_checked_kernel", check)

    return put


@pytest.fixture
def allowed_in_training(monkeypatch, tmp_path):
    """A function that starts a run, and returns whether `"auto"` took the kernel in its steps."""
    found = []

    def run(**changes):
        config = tiny_run.config(tmp_path, **changes)
        fit = lambda *_: found.append(implementations._kernel_allowed)
        monkeypatch.setattr(train_module.Loop, "fit", fit)
        pretraining.run(config, tmp_path / "run")
        assert not implementations._kernel_allowed
        return found[-1]

    return run


def test_a_run_takes_a_kernel_that_agrees(on_tpu, allowed_in_training, capsys):
    on_tpu(lambda: result(1e-6))
    assert allowed_in_training()
    assert (
        "TPU kernel: it agrees with XLA's form in 1 comparisons"
        in capsys.readouterr().err
    )


def test_a_run_leaves_a_wrong_kernel(
    on_tpu, allowed_in_training, capsys, monkeypatch, quick_kernel
):
    right = adapter.flash_attention
    wrong = lambda *args, **more: right(*args, **more) + jnp.float32(0.1)
    monkeypatch.setattr(adapter, "flash_attention", wrong)
    monkeypatch.setattr(kernel_check_module, "_LENGTH", 100)
    on_tpu(functools.partial(check_kernel, ["no position terms"], interpret=True))
    assert not allowed_in_training()
    printed = capsys.readouterr().err
    assert "XLA's form: the TPU kernel differs from it, see check_kernel:" in printed
    assert "DIFFERS" in printed and "in 2 of 2 comparisons" in printed


def takes_kernel(**changes):
    return train_module._takes_kernel(
        types.SimpleNamespace(model=BertConfig(**changes))
    )


def test_a_name_is_not_checked(on_tpu):
    on_tpu(lambda: pytest.fail("the kernel is checked"))
    assert not takes_kernel(implementation="fused")
    assert not takes_kernel(implementation="kernel")  # It needs no permission.


def test_nothing_is_checked_off_a_tpu(allowed_in_training, monkeypatch):
    monkeypatch.setattr(
        train_module, "_checked_kernel", lambda: pytest.fail("it is checked")
    )
    assert not allowed_in_training()


@pytest.mark.parametrize(
    ("here", "everywhere", "says"),
    [
        (1e-6, True, "TPU kernel: it agrees"),
        (1e-6, False, "the TPU kernel differs from it on another host"),
        (0.5, False, "the TPU kernel differs from it, see check_kernel"),
    ],
)
def test_all_hosts_decide_alike(here, everywhere, says, on_tpu, monkeypatch, capsys):
    gathered = []
    monkeypatch.setattr(train_module.jax, "process_count", lambda: 2)
    monkeypatch.setattr(
        hosts, "all_true", lambda value: gathered.append(value) or everywhere
    )
    on_tpu(lambda: result(here))
    assert takes_kernel() == everywhere and gathered == [here < 1e-3]
    assert says in capsys.readouterr().err


def test_a_value_of_one_host():
    assert hosts.all_true(True) and not hosts.all_true(False)
