"""Fused attention with relative terms for TPUs, memory linear in the length.

    logits_ij = scale · q_i·(k_j + P_{j−i}) + Q_{j−i}·k_j + bias_{j−i}
    weights = dropout(softmax(logits))
    out_i = Σ_j weights_ij (v_j + R_{j−i})

A sink is a logit of each head that the softmax has in its denominator and no value belongs to.

m = j − i is the offset of a key from a query; P, Q and R are tables of 2·clip + 1 rows (Shaw et al.
2018), of all heads or one per head, and so is the bias. P may meet other vectors than q_i. Logits,
weights and dropout bits exist only as tiles on the chip (see `tiles`). For TPU v5 and later, whose
registers rotate by rows. What limits the length are gradients of keys and values, 128 lanes of
which stay on the chip: 2 KiB a key in bfloat16. What limits the clip are terms per query and
offset, see `fits`. docs/tpu-estimates.md has the work that this saves, and the longest inputs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from pe_jax.attention.masks import checked_document_ids
from pe_jax.attention.reverse_only import first_order
from pe_jax.attention.tpu_kernel import launch
from pe_jax.attention.tpu_kernel.arguments import (
    ON_CHIP,
    configure,
    lay_out_documents,
    lay_out_rows,
    lay_out_terms,
    occurring,
)
from pe_jax.attention.tpu_kernel.kernels import Batched, Shared
from pe_jax.attention.tpu_kernel.tiles import LOG2_E
from pe_jax.attention.tpu_kernel.tiling import KernelConfig
from pe_jax.common.dtypes import check_floats, standard_promotion
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings.positions import AttentionWindow

Result = TypeVar("Result")


def flash_attention(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk G d"],
    v: Float[Array, "B Lk G d"],
    key_table: Float[Array, "Mk *Hk d"] | None = None,
    value_table: Float[Array, "Mv *Hv d"] | None = None,
    *,
    query_table: Float[Array, "Mq *Hq d"] | None = None,
    content: Float[Array, "B Lq H d"] | None = None,
    bias: Float[Array, " Mb *Hb"] | None = None,
    sink: Float[Array, " H"] | None = None,
    window: AttentionWindow | None = None,
    offset: int = 0,
    valid: Bool[Array, "B Lk"] | None = None,
    document_ids: Int[Array, "B L"] | None = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    seed: Array | None = None,
    block: tuple[int, int] | None = None,
    interpret: bool = False,
) -> Float[Array, "B Lq H d"]:
    """Multi-head attention with relative terms, differentiable in q, k, v, tables, bias and sink.

    Under `jit` over several devices, call it inside `jax.set_mesh(mesh)`: a kernel cannot be split
    by the compiler, so each device runs it on its rows of the batch.

    Args:
      q, k, v: each of the G heads of keys and values serves H / G consecutive heads of queries.
      key_table, value_table: `[M, d]`, shared by the heads, or `[M, H, d]`, M = 2·clip + 1: row
        `clip + m` is the vector of offset m = key's position minus query's; offsets beyond ±clip
        have that of ±clip. None: no such term. A value table per head needs G = H.
      query_table: the same way, of vectors that meet the keys; `scale` does not multiply them.
      content: what `key_table` meets instead of q.
      bias: `[M]`, shared by the heads, or `[M, H]`, the same way; added to the logits as it is.
        `scale` does not multiply it. Inside, that of clip is subtracted from all others, in
        float32: finite numbers, no masks of -1e9.
      sink: logits in the denominator; a query without any key still gets zeros. Not beside a key
        table.
      window: queries attend to keys within it only; None: to all keys. Tiles outside are neither
        loaded nor computed.
      offset: position of key 0 minus position of query 0.
      valid: True for keys that may be attended to. A query that attends to no key gets zeros, in
        outputs and gradients.
      document_ids: of self-attention in packed rows, see `Context`. Tiles without a pair of one
        document are not computed.
      scale: multiplies q·(k + P) and nothing else; default 1/sqrt(d). A caller whose queries are
        scaled already passes 1.0.
      dropout_rate, seed: dropout of the weights with the bits of `dropout.keep`, rows numbered as
        those of weights [B, H, Lq, Lk]; seed uint32 [2]. No seed, no dropout.
      block: queries and keys of a tile, multiples of 128; default up to 512, by the lengths, the
        window and the memory on the chip. What does not fit (see `fits`) fails when compiled.
      interpret: run as ordinary JAX operations, on any device.

    Returns:
      `[B, Lq, H, d]` in the dtype of `v`. Products are of the inputs' dtype, sums float32.

    Raises:
      ValueError: for tables, a bias, heads, dtypes, a window or a block that do not fit, for a sink
        beside a key table, or for `content` without one.
    """
    check_floats(q=q, k=k, v=v)
    if document_ids is not None:
        document_ids = checked_document_ids(document_ids, "document_ids")
    if sink is not None and key_table is not None:
        # Inside, each query's product with the last row would have to be subtracted from it.
        raise ValueError(
            "sink is not supported beside key_table: use another implementation."
        )
    if content is not None and (key_table is None or content.shape != q.shape):
        without = " and no key_table" if key_table is None else ""
        raise ValueError(
            f"content must be the vectors {list(q.shape)} that key_table meets, got "
            f"{list(content.shape)}{without}."
        )
    terms = Shared(
        key_table=key_table, bias=bias, value_table=value_table, query_table=query_table
    )
    packed = document_ids is not None
    config = configure(q, k, terms, window, offset, block, packed)._replace(
        sink=sink is not None,
        content=content is not None,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        rate=0.0 if seed is None else dropout_rate,
        interpret=interpret,
    )
    if len({x.dtype for x in (q, k, v)}) > 1:
        raise ValueError(
            f"q, k and v must have the same dtype, got {q.dtype}, {k.dtype} and {v.dtype}. Cast "
            "them."
        )
    terms = occurring(config, terms)
    if sink is not None and config.terms.bias:
        sink = sink - terms.bias[-1]  # As from all logits, see `tiles`.
    shared = lay_out_terms(config, terms, seed)._replace(sink=sink)
    rows = lay_out_rows(config, terms, q, k, v, valid, content)
    if document_ids is not None:
        rows = rows._replace(documents=lay_out_documents(config, document_ids))
    return _flash(config, shared, rows)[:, : q.shape[1]].reshape(q.shape)


def fits(
    q: jax.ShapeDtypeStruct | Array,
    k: jax.ShapeDtypeStruct | Array,
    key_table: jax.ShapeDtypeStruct | Array | None = None,
    value_table: jax.ShapeDtypeStruct | Array | None = None,
    *,
    query_table: jax.ShapeDtypeStruct | Array | None = None,
    bias: jax.ShapeDtypeStruct | Array | None = None,
    window: AttentionWindow | None = None,
    offset: int = 0,
    packed: bool = False,
    content: bool = False,
) -> bool:
    """Return whether `flash_attention` of these shapes fits the chip, gradients included; if
    `packed`, with document ids, and with `content` if that is True.

    Terms take memory on the chip in proportion to the offsets that occur, at most M and Lq + Lk − 1
    and those within the window: 4 bytes for each such offset (in steps of 128), query of a tile
    (128 at least), head of a program and direction (2 for logits, 2 for values). A bias that is the
    only term and reaches beyond a tile takes 512 bytes an offset and head. Vectors that join the
    queries take no terms per query, but their rows for all tiles. Gradients of keys and
    values take 2 KiB a key in bfloat16, 3 KiB in float32 (more where heads do not fill 128 lanes).
    """
    terms = Shared(
        key_table=key_table, bias=bias, value_table=value_table, query_table=query_table
    )
    config = configure(q, k, terms, window, offset, packed=packed)
    config = config._replace(content=content)
    return launch.on_chip_bytes(config, q.dtype) <= ON_CHIP


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _flash(config: KernelConfig, shared: Shared, rows: Batched) -> jax.Array:
    return _forward_pass(config, shared, rows)[0]


def _forward_pass(config, shared, rows):
    # Cast here and not before, so that the tables' gradients are summed as wide as the tables.
    narrow = shared._replace(
        key_table=_cast(shared.key_table, rows.q.dtype),
        bias=_cast(shared.bias, jnp.float32),
        value_table=_cast(shared.value_table, rows.q.dtype),
        query_table=_cast(shared.query_table, rows.q.dtype),
        sink=_cast(shared.sink, jnp.float32),
    )
    narrow, rows = jax.tree.map(first_order, (narrow, rows))
    run = functools.partial(launch.run, config, backward=False)
    out, log_sum = _by_rows(run, narrow, rows)
    return out, (shared, narrow, rows._replace(out=out, log_sum=log_sum))


@standard_promotion()
def _backward_pass(config, saved, grad):
    shared, narrow, rows = saved
    grad = first_order(grad)
    run = functools.partial(launch.run, config, backward=True)
    dshared, drows = _by_rows(run, narrow, rows._replace(grad=grad))
    # The sum over the batch is all that devices exchange.
    terms = shared._replace(seed=None, sink=None)
    dshared = jax.tree.map(lambda dx, x: dx.sum(0).astype(x.dtype), dshared, terms)
    if config.sink:
        dsink = _sink_gradient(config, narrow.sink, rows, grad)
        dshared = dshared._replace(sink=dsink.astype(shared.sink.dtype))
    return dshared, drows


def _sink_gradient(
    config: KernelConfig, sink: Float[Array, " H"], rows: Batched, grad: Array
) -> Float[Array, " H"]:
    """-Σ w (grad·out) over queries, with w the sink's weight, as its value is 0."""
    by_head = *grad.shape[:2], config.heads.total, config.heads.size
    products = grad.astype(jnp.float32) * rows.out.astype(jnp.float32)
    products = products.reshape(by_head)
    log_sum = rows.log_sum.reshape(len(grad), config.heads.total, -1)
    weight = jnp.exp2(sink[:, None] * LOG2_E - log_sum)
    return -jnp.einsum("bhq,bqh->h", weight, products.sum(-1))


_flash.defvjp(_forward_pass, _backward_pass)


def _cast(x: jax.Array | None, dtype: DTypeLike) -> jax.Array | None:
    return None if x is None else x.astype(dtype)


def _by_rows(
    call: Callable[[Shared, Batched], Result], shared: Shared, rows: Batched
) -> Result:
    """`call(shared, rows)` on every device's own rows of the batch, where a mesh is set.

    Under `vmap` one after the other: a kernel has one table and one seed for all of its rows.
    """

    @jax.custom_batching.sequential_vmap
    def run(shared: Shared, rows: Batched) -> Result:
        mesh = jax.sharding.get_abstract_mesh()
        if not mesh.auto_axes:
            return call(shared, rows)
        whole = PartitionSpec()
        split = PartitionSpec(mesh.auto_axes)
        devices = math.prod(mesh.shape[axis] for axis in mesh.auto_axes)
        if len(rows.q) % devices:
            split = whole  # Too few rows to share out.
        return jax.shard_map(
            call,
            in_specs=(whole, split),
            out_specs=split,
            axis_names=set(mesh.auto_axes),
            check_vma=False,
        )(shared, rows)

    return run(shared, rows)
