"""Fused attention with clipped relative terms for TPUs, memory linear in the length.

    logits_ij = scale · q_i·(k_j + P_{j−i})      weights = dropout(softmax(logits))
    out_i = Σ_j weights_ij (v_j + R_{j−i})

Logits, weights and dropout bits exist only as tiles on the chip (see `kernels`). P and R are
tables of 2·clip + 1 rows (Shaw et al. 2018). For TPU v5 and later, whose registers rotate by rows.
What limits the length are gradients of keys and values, 128 lanes of which stay on the chip: 2 KiB
a key in bfloat16.

One layer of BERT-base by hand: 8 rows of 512, 12 heads of 64, bfloat16, clip 64.

                                          forward      backward
    read and written: q, k, v, out, ...   25 MB        51 MB
    q·k, weights·v and their gradients    6.4 GFLOP    16.1 GFLOP
    relative terms                        4.8 GFLOP    10.5 GFLOP

Of the dense formula's tensors of logits, weights, dropout and gradients, each as large as
[B, H, L, L], a single one is 101 MB in float32, to be written and read again. The relative terms
grow with L, not with L²: two thirds of theirs is the rotation in `kernels._unskew`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pe_jax.attention.tpu_kernel.kernels import LANES, MASKED, Plan, backward, forward
from pe_jax.shapes import Array, Bool, Float


def flash_attention(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk H d"],
    v: Float[Array, "B Lk H d"],
    key_table: Float[Array, "Rk d"] | None = None,
    value_table: Float[Array, "Rv d"] | None = None,
    *,
    offset: int = 0,
    valid: Bool[Array, "B Lk"] | None = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    seed: Array | None = None,
    block: tuple[int, int] | None = None,
    interpret: bool = False,
) -> Float[Array, "B Lq H d"]:
    """Multi-head attention with relative terms, differentiable in q, k, v and both tables.

    Under `jit` over several devices, call it inside `jax.set_mesh(mesh)`: a kernel cannot be split
    by the compiler, so each device runs it on its rows of the batch.

    Args:
      key_table, value_table: row `clip + m` is the vector of offset m = key's position minus
        query's; offsets beyond ±clip have that of ±clip. None: no such term.
      offset: position of key 0 minus position of query 0.
      valid: True for keys that may be looked at. Where there is none, outputs and gradients are 0.
      scale: of the logits; default 1/sqrt(d).
      dropout_rate, seed: dropout of the weights with the bits of `dropout.keep`, rows numbered as
        those of weights [B, H, Lq, Lk]; seed uint32 [2]. No seed, no dropout.
      block: queries and keys of a tile, multiples of 128; default up to 512, by the lengths.
      interpret: run as ordinary JAX operations, on any device.

    Returns:
      `[B, Lq, H, d]` in the dtype of `v`. Products are of the inputs' dtype, sums float32.

    Raises:
      ValueError: for tables of an even number of rows, of fewer than 3, or of unlike numbers; for
        q, k, v of unlike dtypes; for a block that does not fit.
    """
    tables = [t for t in (key_table, value_table) if t is not None]
    if len({x.dtype for x in (q, k, v)}) > 1:
        raise ValueError(f"q, k and v share a dtype, got {q.dtype}, {k.dtype} and {v.dtype}: cast.")
    rows = {len(t) for t in tables}
    if any(n % 2 == 0 or n < 3 for n in rows) or len(rows) > 1:
        raise ValueError(f"Tables have 2·clip + 1 rows, clip at least 1, got {sorted(rows)}.")
    batch, length, heads, size = q.shape
    keys = k.shape[1]
    # Offsets that cannot occur are cut off: a table may be far longer than the sequences.
    reach = max(1, length - 1 - offset, keys - 1 + offset)
    clip = min(max(rows, default=3) // 2, reach)
    width = _ceil(2 * clip, LANES)
    cut = slice(max(rows, default=3) // 2 - clip, max(rows, default=3) // 2 + clip + 1)
    key_table, value_table = (None if t is None else t[cut] for t in (key_table, value_table))
    plan = Plan(
        heads=heads,
        size=size,
        group=_group(heads, size),
        queries=_block(length) if block is None else block[0],
        keys=_block(keys) if block is None else block[1],
        length=length,
        clip=clip,
        width=width,
        offset=offset,
        scale=size**-0.5 if scale is None else scale,
        rate=0.0 if seed is None else dropout_rate,
        interpret=interpret,
    )
    if min(plan.queries, plan.keys) < 1 or plan.queries % LANES or plan.keys % LANES:
        raise ValueError(f"A block has a multiple of 128 queries and of keys, got {block}.")

    def flat(x, block):
        x = x.reshape(*x.shape[:2], heads * size)
        return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0)))

    bias = jnp.zeros((batch, keys)) if valid is None else jnp.where(valid, 0.0, MASKED)
    bias = jnp.pad(bias, ((0, 0), (0, -keys % plan.keys)), constant_values=MASKED)
    out = _flash(
        plan,
        flat(q, plan.queries),
        flat(k, plan.keys),
        flat(v if value_table is None else v + value_table[-1].astype(v.dtype), plan.keys),
        _periodic(key_table, plan),
        _periodic(value_table, plan),
        bias.astype(jnp.float32)[:, None],
        jax.lax.iota(jnp.uint32, batch),
        jnp.zeros(2, jnp.uint32) if seed is None else seed,
    )
    return out[:, :length].reshape(q.shape)


def _ceil(x: int, to: int) -> int:
    return -(-x // to) * to


def _group(heads: int, size: int) -> int:
    """The fewest heads that fill whole registers of 128 lanes; all of them where none do."""
    fitting = (n for n in range(1, heads) if heads % n == 0 and n * size % LANES == 0)
    return next(fitting, heads)


def _block(length: int) -> int:
    """The largest up to 512 that divides the length, padded to 128."""
    padded = _ceil(length, LANES)
    return next(n for n in (512, 384, 256, LANES) if padded % n == 0)


def _periodic(table: Array | None, plan: Plan) -> jax.Array | None:
    """Differences to the vector of clip and beyond, offset m at row (m − offset) mod width."""
    if table is None:
        return None
    table = jnp.pad(table[:-1] - table[-1:], ((0, plan.width - 2 * plan.clip), (0, 0)))
    return jnp.roll(table, -plan.clip - plan.offset, axis=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _flash(plan, q, k, v, key_terms, value_terms, bias, batch, seed):
    return _forward_pass(plan, q, k, v, key_terms, value_terms, bias, batch, seed)[0]


def _forward_pass(plan, q, k, v, key_terms, value_terms, bias, batch, seed):
    # Cast here and not before, so that the tables' gradients are summed as wide as the tables.
    terms = [None if t is None else t.astype(q.dtype) for t in (key_terms, value_terms)]
    args = (seed, *terms), (batch, bias, q, k, v)
    out, sums = _by_rows(functools.partial(forward, plan), *args)
    return out, (*args, out, sums, key_terms, value_terms)


def _backward_pass(plan, saved, grad):
    shared, rows, out, sums, *tables = saved
    dq, dk, dv, *terms = _by_rows(
        functools.partial(backward, plan), shared, (*rows, out, sums, grad)
    )
    # The sum over the batch is all that devices exchange.
    terms = [None if t is None else t.sum(0).astype(x.dtype) for t, x in zip(terms, tables)]
    return dq, dk, dv, *terms, None, None, None


_flash.defvjp(_forward_pass, _backward_pass)


def _by_rows(call: Callable, shared: tuple, rows: tuple) -> Any:
    """`call(shared, rows)` on every device's own rows of the batch, where a mesh is set.

    Under `vmap` one after the other: a kernel has one table and one seed for all of its rows.
    """

    @jax.custom_batching.sequential_vmap
    def run(shared: tuple, rows: tuple) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        if not mesh.auto_axes:
            return call(shared, rows)
        whole, split = PartitionSpec(), PartitionSpec(mesh.auto_axes)
        if len(rows[0]) % np.prod([mesh.shape[axis] for axis in mesh.auto_axes]):
            split = whole  # Too few rows to share out.
        return jax.shard_map(
            call,
            in_specs=(whole, split),
            out_specs=split,
            axis_names=set(mesh.auto_axes),
            check_vma=False,
        )(shared, rows)

    return run(shared, rows)
