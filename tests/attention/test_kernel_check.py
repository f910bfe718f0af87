"""The comparison of the TPU kernel with XLA's form, and the kernels that it has to report."""

import jax
import jax.numpy as jnp
import pytest

from pe_jax.attention import check_kernel, kernel_check
from pe_jax.attention.tpu_kernel import adapter

SHORT = "causal", "documents"


@pytest.fixture(autouse=True)
def short(monkeypatch, quick_kernel):
    """One tile of queries and of keys."""
    monkeypatch.setattr(kernel_check, "_LENGTH", 100)


@pytest.fixture
def wrong(monkeypatch):
    """A function that puts a change of its output into the kernel."""
    right = adapter.flash_attention

    def put(change):
        monkeypatch.setattr(
            adapter,
            "flash_attention",
            lambda *args, **more: change(right(*args, **more)),
        )

    return put


def test_the_kernel_agrees_when_interpreted():
    checked = check_kernel(SHORT, interpret=True)
    assert not checked.failures
    assert [(each.case, each.dtype) for each in checked.differences] == [
        (name, dtype) for name in SHORT for dtype in ("float32", "bfloat16")
    ]
    assert all(0 < each.difference < each.limit / 2 for each in checked.differences)
    lines = str(checked).splitlines()
    assert (
        lines[0].startswith("causal")
        and " agrees " in lines[0]
        and "gradient" in lines[0]
    )
    assert (
        lines[-1]
        == "cpu, interpreted: the kernel differs from XLA's form in 0 of 4 comparisons."
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", kernel_check._CASES)
def test_every_case_agrees(name):
    assert not check_kernel([name], interpret=True).failures


def wrong_gradient(out):
    """The right output, whose gradient is a twentieth too large."""
    more = out / 20
    return out + more - jax.lax.stop_gradient(more)


def refuse(out):
    raise RuntimeError("Mosaic failed to compile\nthe kernel")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda out: out.at[0, 7, 1].set(0), "of at most 1e-03 in "),
        (wrong_gradient, "5.0e-02 of at most 1e-03 in gradient"),
        (lambda out: out.at[1, -1].set(jnp.nan), "DIFFERS  inf of at most"),
        (refuse, "DIFFERS  RuntimeError: Mosaic failed to compile"),
    ],
    ids=["one query", "gradient", "NaN", "error"],
)
def test_a_wrong_kernel_is_reported(change, says, wrong):
    wrong(change)
    checked = check_kernel(["no position terms"], interpret=True)
    assert checked.failures[0].dtype == "float32" and not checked.failures[0].agrees
    assert says in str(checked.failures[0])
    assert f"differs from XLA's form in {len(checked.failures)} of 2" in str(checked)


def test_without_a_tpu():
    with pytest.raises(
        ValueError, match="^check_kernel needs a TPU, but JAX runs on cpu. Pass int"
    ):
        check_kernel()


def test_unknown_cases():
    with pytest.raises(
        ValueError, match="^cases must be of no position terms, .*mean causal?"
    ):
        check_kernel(["causl"], interpret=True)
