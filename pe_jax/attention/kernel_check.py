"""Comparison of the TPU kernel with XLA's form of attention, on the device that is there."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention.attention import attention
from pe_jax.attention.devices import emulated_devices
from pe_jax.attention.implementations import target_platform
from pe_jax.attention.masks import document_positions
from pe_jax.common.errors import did_you_mean
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array
from pe_jax.encodings.parser import from_name
from pe_jax.encodings.part import Context

_ROWS = 2
_HEADS = 4
# Five tiles of 128 queries and of 128 keys, the last of which have padding.
_LENGTH = 600
# The largest difference of an array, relative to its largest entry. XLA computes in float32.
_LIMITS = {"float32": 1e-3, "bfloat16": 0.05}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Case:
    """Inputs of attention that the kernel supports."""

    encoding: str = "none"
    length: int | None = None  # Of queries and keys; default `_LENGTH`.
    # Position of the first query; the last query is at the last key.
    first_query: int = 0
    head_size: int = 64
    kv_heads: int = _HEADS
    dropout_rate: float = 0.0
    padding: bool = False  # The last keys of each row are masked, all of one row.
    documents: bool = False  # Several documents in a row, with positions of their own.
    layer: bool = False  # Hidden states, and projections of queries and keys.


_CASES = {
    "no position terms": _Case(),
    "rotations": _Case(encoding="rope"),
    "bias of every offset": _Case(encoding="alibi"),
    "bias with max_distance": _Case(encoding="t5(max_distance=64)"),
    "vectors of keys and values": _Case(encoding="learned_relative(max_distance=16)"),
    "vectors and a bias": _Case(
        encoding="learned_relative(max_distance=16)+t5(max_distance=64)"
    ),
    "vectors of keys and queries": _Case(encoding="relative_key_query"),
    "vectors per head": _Case(
        encoding="deberta(num_buckets=None,max_distance=64)", layer=True
    ),
    "vectors beside maps of queries": _Case(encoding="transformer_xl(max_distance=64)"),
    "vectors of hidden states": _Case(encoding="inkling(max_distance=64)", layer=True),
    "sinusoids without max_distance": _Case(
        encoding="sinusoidal_relative(max_distance=None)"
    ),
    "causal": _Case(encoding="causal"),
    "causal, later queries": _Case(encoding="alibi+causal", first_query=150),
    "window": _Case(encoding="rope+window(max_distance=40)"),
    "sink": _Case(encoding="alibi+sink+causal"),
    "padding": _Case(encoding="t5(max_distance=64)", padding=True),
    "grouped heads": _Case(
        encoding="learned_relative(max_distance=16)+causal", kv_heads=2
    ),
    "one head of keys": _Case(encoding="rope", kv_heads=1),
    "heads of 128": _Case(encoding="alibi", head_size=128),
    "tiles of 512": _Case(encoding="learned_relative(max_distance=16)", length=512),
    "dropout": _Case(encoding="learned_relative(max_distance=16)", dropout_rate=0.2),
    "documents": _Case(encoding="t5(max_distance=64)+causal", documents=True),
}


class KernelDifference(Record):
    """How far the kernel is from XLA's form in one case and dtype.

    Attributes:
      array: the output or the gradient with the largest difference.
      difference: of that array, relative to its largest entry; infinite if it is not finite.
      limit: what the difference may be at most.
      error: the first line of the error if the kernel did not compile or run, else empty.
    """

    case: str
    dtype: str
    array: str = ""
    difference: float = 0.0
    limit: float
    error: str = ""

    @property
    def agrees(self) -> bool:
        """True if the kernel ran and the difference is within the limit."""
        return not self.error and self.difference <= self.limit

    def __str__(self) -> str:
        detail = self.error
        if not detail:
            size = f"{self.difference:.1e} of at most {self.limit:.0e}"
            detail = f"{size} in {self.array}"
        verdict = "agrees" if self.agrees else "DIFFERS"
        return f"{self.case:30s} {self.dtype:9s} {verdict:8s} {detail}"


class KernelCheck(Record):
    """Result of `check_kernel`; `str` is a table with a line for each case and dtype.

    Attributes:
      device: kind of the device that the kernel ran on.
      differences: of each case in each dtype.
    """

    device: str
    differences: tuple[KernelDifference, ...]

    @property
    def failures(self) -> list[KernelDifference]:
        """The differences that are too large, and errors. Empty if the kernel agrees in all."""
        return [each for each in self.differences if not each.agrees]

    def __str__(self) -> str:
        summary = (
            f"{self.device}: the kernel differs from XLA's form in {len(self.failures)} of "
            f"{len(self.differences)} comparisons."
        )
        return "\n".join([*map(str, self.differences), summary])


def check_kernel(
    cases: Sequence[str] | None = None, *, interpret: bool = False
) -> KernelCheck:
    """Compare the TPU kernel with XLA's form: outputs and all gradients, in float32 and bfloat16.

    No TPU has run the kernel yet, so `implementation="auto"` takes it only in training, and there
    only if this function finds no difference. `print(check_kernel())` prints a table.

    Args:
      cases: names of some cases; default all of them: every kind of position term, causal
        attention, windows, sinks, padding, grouped heads, dropout and documents.
      interpret: run the kernel in Pallas' interpret mode, on any device. This checks its numbers,
        not what the TPU's compiler makes of it. All cases take about ten minutes on a CPU.

    Raises:
      ValueError: without a TPU if `interpret` is False, or for an unknown case.
    """
    names = [*_CASES] if cases is None else [*cases]
    for name in names:
        if name not in _CASES:
            hint = did_you_mean(name, _CASES)
            raise ValueError(
                f"cases must be of {', '.join(_CASES)}; got {name!r}.{hint}"
            )
    platform = target_platform()
    if platform != "tpu" and not interpret:
        raise ValueError(
            f"check_kernel needs a TPU, but JAX runs on {platform}. Pass interpret=True to check "
            "the kernel's numbers without one."
        )
    differences = []
    with emulated_devices() if interpret else contextlib.nullcontext():
        for name in names:
            differences += _compare(name, _CASES[name])
    kind = f"{platform}, interpreted" if interpret else jax.devices()[0].device_kind
    return KernelCheck(device=kind, differences=tuple(differences))


def _compare(name: str, case: _Case) -> list[KernelDifference]:
    """Compare outputs and gradients of a case in each dtype."""
    arrays, loss = _inputs(case)
    expected = jax.device_get(_run(loss, arrays, "float32", "fused"))
    differences = []
    for dtype, limit in _LIMITS.items():
        result = KernelDifference(case=name, dtype=dtype, limit=limit)
        # Whatever the TPU's compiler or runtime raises is a failure.
        try:
            results = jax.device_get(_run(loss, arrays, dtype, "kernel"))
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            message = f"{type(error).__name__}: {first_line[:200]}"
            differences.append(result.replace(error=message))
            continue
        array, difference = _largest_difference(results, expected)
        differences.append(result.replace(array=array, difference=difference))
    return differences


def _inputs(case: _Case) -> tuple[dict[str, Any], Callable[..., tuple[Array, Array]]]:
    """Return arrays to differentiate by, which bfloat16 can represent, and the loss of them, with
    the output beside it."""
    keys = case.length or _LENGTH
    queries = keys - case.first_query
    width = _HEADS * case.head_size
    encoding = from_name(
        case.encoding,
        hidden_size=width,
        head_size=case.head_size,
        num_heads=_HEADS,
        max_length=keys,
    )
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return np.asarray(rng.normal(size=shape).astype(jnp.bfloat16), np.float32)

    kv_shape = (_ROWS, keys, case.kv_heads, case.head_size)
    drawn = jax.eval_shape(encoding.init, jax.random.key(0))
    arrays = {
        "q": normal(_ROWS, queries, _HEADS, case.head_size),
        "k": normal(*kv_shape),
        "v": normal(*kv_shape),
        "params": jax.tree.map(lambda x: normal(*x.shape), drawn),
    }
    to = normal(_ROWS, queries, _HEADS, case.head_size)
    if case.layer:
        arrays["x"] = normal(_ROWS, queries, width)
        arrays["kernels"] = normal(2, width, _HEADS, case.head_size) / width**0.5
    context = Context(
        positions_q=range(case.first_query, keys), positions_k=range(keys)
    )
    if case.documents:
        ends = np.array([[keys // 3, keys // 2], [keys // 5, keys - 30]])
        document_ids = 1 + (np.arange(keys)[:, None] >= ends[:, None]).sum(-1)
        context = Context(
            positions_q=document_positions(document_ids), document_ids=document_ids
        )
    mask = None
    if case.padding:
        valid = np.arange(keys) < np.array([[keys - 50], [0]])
        mask = jnp.asarray(valid)[:, None, None]

    def with_layer(arrays: dict[str, Any]) -> Context:
        """The context with hidden states, and projections of [N, D] to [N, H, d]."""

        def to_heads(kernel: Array) -> Callable[[Array], Array]:
            return lambda table: jnp.einsum("nD,Dhd->nhd", table, kernel)

        to_queries, to_keys = map(to_heads, arrays["kernels"])
        return context.replace(x_q=arrays["x"], projections=(to_queries, to_keys))

    def loss(
        arrays: dict[str, Any], dtype: str, implementation: str
    ) -> tuple[Array, Array]:
        q, k, v = (arrays[name].astype(dtype) for name in "qkv")
        out = attention(
            q,
            k,
            v,
            encoding,
            arrays["params"],
            with_layer(arrays) if case.layer else context,
            mask=mask,
            dropout_rate=case.dropout_rate,
            dropout_rng=jax.random.key(1) if case.dropout_rate else None,
            implementation=implementation,
        )
        out = out.astype(jnp.float32)
        return (out * to).sum(), out

    return arrays, loss


def _run(
    loss: Callable[..., tuple[Array, Array]],
    arrays: dict[str, Any],
    dtype: str,
    implementation: str,
) -> dict[str, Any]:
    of_arrays = functools.partial(loss, dtype=dtype, implementation=implementation)
    # By default a TPU multiplies float32 as bfloat16.
    with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
        gradients, out = jax.jit(jax.grad(of_arrays, has_aux=True))(arrays)
    return {"output": out, "gradient": gradients}


def _largest_difference(
    results: dict[str, Any], expected: dict[str, Any]
) -> tuple[str, float]:
    """Return the array that differs most, and how far, relative to its largest entry."""
    largest = 0.0
    name = "output"
    flat, _ = jax.tree_util.tree_flatten_with_path(results)
    for (path, array), exact in zip(flat, jax.tree.leaves(expected), strict=True):
        difference = float(np.abs(array - exact).max() / (np.abs(exact).max() or 1.0))
        if not np.isfinite(difference):
            difference = float("inf")
        if difference > largest:
            largest = difference
            name = jax.tree_util.keystr(path, simple=True, separator=" ")
    return name, largest
