"""The two kernels, forward and backward: programs over (batch, groups of heads, queries, keys)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.attention.tpu_kernel.tiles import (
    LOG2_E,
    MASKED,
    UNSEEN,
    Tile,
    add_by_offset,
    clear,
    dot,
    parts,
    skew,
    unskew,
    wide,
)
from pe_jax.attention.tpu_kernel.tiling import LANES, KernelConfig
from pe_jax.common.shapes import Leaf


# One structure for arrays outside a kernel, `jax.Ref` inside, their shapes, and their block specs.
class Shared(NamedTuple):
    """Arrays that all rows of the batch share; None where there is no such term.

    Offset m is at index (m − offset) mod width.

    Attributes:
      seed: of dropout, uint32 [2]; None among gradients.
      key_table, value_table: [1 or H, width, d].
      query_table: [1 or H, all offsets, d], from the largest offset on.
      bias: float32 [H / group, group, lanes]; a long one as `arguments` lays it out.
      sink: logits in the denominator, float32 [H]; for the forward kernel.
    """

    seed: Leaf = None
    key_table: Leaf = None
    bias: Leaf = None
    value_table: Leaf = None
    query_table: Leaf = None
    sink: Leaf = None


class Documents(NamedTuple):
    """Documents of packed rows.

    Attributes:
      ids_q, ids_k: float32 [B, 1, Lq] and [B, 1, Lk], equal where a query may attend to a key.
      tiles: for each tile of queries the first tile of keys of its documents, and the one after the
        last, int32 [B, 2, tiles of queries].
    """

    ids_q: Leaf
    ids_k: Leaf
    tiles: Leaf


class Batched(NamedTuple):
    """Arrays with a row for each of the batch.

    Among gradients those of q, content, k and v alone.

    Attributes:
      numbers: of the rows, uint32 [B], by which they drop weights.
      mask: added to the logits of a key, float32 [B, 1, Lk].
      q: [B, Lq, H · d].
      content: what the key table meets instead of q, like it; None for q.
      k, v: [B, Lk, G · d], G heads of keys and values.
      out: the output, for the backward kernel, as are the following two.
      log_sum: base-2 logarithm of the softmax's denominator, float32 [B, H / group, group, Lq].
      grad: of the output.
      documents: `Documents`; None if rows are not packed.
    """

    numbers: Leaf
    mask: Leaf
    q: Leaf
    k: Leaf
    v: Leaf
    content: Leaf = None
    out: Leaf = None
    log_sum: Leaf = None
    grad: Leaf = None
    documents: Leaf = None


def forward_kernel(
    config, shared, rows, out, log_sum, top, total, sums, terms, bands, document_ids
):
    """Write the output, and `log_sum` of `Batched`.

    Scratch for a block of queries, per head, from tile to tile: the largest logit so far, and
    relative to it the total of the weights, the sums of weighted values and, in `bands`, the
    weights summed per offset; `terms` are q·P and the bias per offset. `document_ids` are of the
    queries, of all heads.
    """
    heads, keys = config.heads, config.tiling.keys
    has_value_terms = config.terms.has_value_terms
    tile = Tile(config, rows.documents)

    @pl.when(pl.program_id(3) == 0)
    def begin():
        top[...] = jnp.full_like(top, UNSEEN)
        clear(total, sums, bands)
        if shared.sink is not None:  # A key of weight 1 so far, and without a value.
            total[...] = jnp.full_like(total, 1 / LANES)
            for h in range(heads.group):
                logit = jnp.maximum(shared.sink[tile.head + h] * LOG2_E, UNSEEN)
                top[h] = jnp.full(top.shape[1:], logit)
        _lay_out_document_ids(config, rows, document_ids)
        _lay_out_logit_terms(config, shared, rows, terms)

    @tile.each
    def attend(uniform):
        for h, kv_lanes in enumerate(heads.kv_lanes):
            logits = _logits(tile, shared, rows, document_ids, terms, h, uniform)
            greatest = jnp.maximum(top[h], jnp.max(logits, axis=1, keepdims=True))
            weights = jnp.exp2(logits - wide(greatest, keys))
            decay = jnp.exp2(top[h] - greatest)
            top[h] = greatest
            total[h] = decay * total[h] + sum(parts(weights))
            (weights,) = tile.drop(shared.seed, rows.numbers, h, weights)
            product = dot(weights.astype(rows.v.dtype), rows.v[0, :, kv_lanes], 1, 0)
            sums[h] = wide(decay, heads.size) * sums[h] + product
            if has_value_terms:
                bands[h] *= wide(decay, bands.shape[-1])
                tile.relative_shift_transpose(bands, h, weights, uniform)

    @pl.when(pl.program_id(3) == pl.num_programs(3) - 1)
    def finish():
        for h, lanes in enumerate(heads.lanes):
            result = sums[h]
            if has_value_terms:
                by_offset = unskew(bands[h], config, rows.v.dtype)
                result += dot(by_offset, _table(shared.value_table, h), 1, 0)
            whole = jnp.sum(total[h], axis=1, keepdims=True)
            whole = jnp.maximum(whole, jnp.finfo(jnp.float32).tiny)
            result = result * (config.dropout_scale / whole)
            out[0, :, lanes] = result.astype(out.dtype)
            # Queries go from sublanes to lanes, where they take no more than their bytes.
            log_sum[0, 0, h : h + 1] = jnp.transpose(top[h] + jnp.log2(whole))[:1]


def backward_kernel(
    config,
    shared,
    rows,
    dshared,
    drows,
    dq,
    dk,
    dv,
    log_sum,
    mean,
    logit_terms,
    value_terms,
    logit_bands,
    value_bands,
    bias_band,
    document_ids,
):
    """Write the gradients.

    Scratch for a block of queries, per head, but for `dk` and `dv` of all keys. `mean`: the
    weights' gradients, averaged by the weights. Terms: q·P and the bias per offset, and grad·R.
    Bands: gradients of the logits, and weights, summed per offset. `bias_band`: the former for a
    long bias, of all queries.
    """
    heads, tiling, terms = config.heads, config.tiling, config.terms
    tile = Tile(config, rows.documents)
    first_query = pl.program_id(2) == 0
    last_query = pl.program_id(2) == pl.num_programs(2) - 1
    first_key = pl.program_id(3) == 0
    last_key = pl.program_id(3) == pl.num_programs(3) - 1
    first_group = pl.program_id(1) == 0
    # What all logit gradients and weights have in common multiplies the sums.
    weight_scale = config.dropout_scale
    logit_scale = config.scale * weight_scale

    @pl.when(first_key & first_query)
    def begin_group():
        clear(dk, dv, dshared.bias, bias_band)

    # To the gradient of a shared table, all groups of heads add.
    for tables, gradient in (
        (terms.key_tables, dshared.key_table),
        (terms.value_tables, dshared.value_table),
        (terms.query_tables, dshared.query_table),
    ):
        first = first_key & first_query
        if tables == 1:
            first = first & first_group
        pl.when(first)(functools.partial(clear, gradient))

    @pl.when(first_key)
    def begin():
        clear(dq, logit_bands, value_bands)
        _lay_out_document_ids(config, rows, document_ids)
        _lay_out_logit_terms(config, shared, rows, logit_terms)
        for h, lanes in enumerate(heads.lanes):
            row = rows.log_sum[0, 0, h : h + 1]
            log_sum[h] = jnp.transpose(jnp.broadcast_to(row, (LANES, tiling.queries)))
            grad, out = rows.grad[0, :, lanes], rows.out[0, :, lanes]
            product = grad.astype(jnp.float32) * out.astype(jnp.float32)
            average = jnp.sum(product, axis=1, keepdims=True) / config.dropout_scale
            mean[h] = jnp.broadcast_to(average, (tiling.queries, LANES))
            if terms.has_value_terms:
                products = dot(grad, _table(shared.value_table, h), 1, 1)
                value_terms[h] = skew(products, config)

    @tile.each
    def differentiate(uniform):
        keys = pl.ds(pl.multiple_of(tile.key, LANES), tiling.keys)
        for h in range(heads.group):
            lanes, kv_lanes = heads.lanes[h], heads.kv_lanes[h]
            q, grad = rows.q[0, :, lanes], rows.grad[0, :, lanes]
            k, v = rows.k[0, :, kv_lanes], rows.v[0, :, kv_lanes]
            logits = _logits(tile, shared, rows, document_ids, logit_terms, h, uniform)
            weights = jnp.exp2(logits - wide(log_sum[h], tiling.keys))
            dweights = dot(grad, v, 1, 1)
            if terms.has_value_terms:
                dweights += tile.relative_shift(value_terms, h, uniform)
            dropped, dweights = tile.drop(
                shared.seed, rows.numbers, h, weights, dweights
            )
            dlogits = weights * (dweights - wide(mean[h], tiling.keys))
            dv[keys, kv_lanes] += dot(dropped.astype(v.dtype), grad, 0, 0)
            dk[keys, kv_lanes] += dot(dlogits.astype(q.dtype), q, 0, 0)
            dq[h] += dot(dlogits.astype(k.dtype), k, 1, 0)
            if terms.query_tables:
                number = _table_number(shared.query_table, h)
                dk_terms, dvectors = tile.key_terms_transpose(
                    shared.query_table, number, k, dlogits
                )
                # `finish_group` multiplies by the scale, which these terms do not have.
                dk[keys, kv_lanes] += dk_terms / config.scale
                tile.add_vectors(dshared.query_table, number, dvectors * weight_scale)
            if terms.has_logit_terms:
                tile.relative_shift_transpose(logit_bands, h, dlogits, uniform)
            if terms.long_bias:
                tile.collect_bias(bias_band, h, dlogits)
            if terms.has_value_terms:
                tile.relative_shift_transpose(value_bands, h, dropped, uniform)

    @pl.when(last_key)
    def finish():
        for h, lanes in enumerate(heads.lanes):
            content = _content(config, rows)[0, :, lanes]
            grad = rows.grad[0, :, lanes]
            result = dq[h]
            if terms.has_logit_terms:
                bands = unskew(logit_bands[h], config, content.dtype)
            if terms.key_tables:
                by_content = dot(bands, _table(shared.key_table, h), 1, 0)
                if config.content:
                    dcontent = by_content * logit_scale
                    drows.content[0, :, lanes] = dcontent.astype(content.dtype)
                else:
                    result += by_content
                dtable = dot(bands, content, 0, 0) * logit_scale
                _add_to_table(dshared.key_table, h, dtable)
            if terms.bias:
                total = jnp.sum(bands.astype(jnp.float32), axis=0, keepdims=True)
                dshared.bias[0, 0, h : h + 1] += total * weight_scale
            if terms.has_value_terms:
                bands = unskew(value_bands[h], config, grad.dtype)
                dtable = dot(bands, grad, 0, 0) * weight_scale
                _add_to_table(dshared.value_table, h, dtable)
            drows.q[0, :, lanes] = (result * logit_scale).astype(drows.q.dtype)

    @pl.when(last_key & last_query)
    def finish_group():
        if terms.long_bias:
            for h in range(heads.group):
                add_by_offset(dshared.bias, h, bias_band, weight_scale)
        drows.k[0] = (dk[...] * logit_scale).astype(drows.k.dtype)
        drows.v[0] = (dv[...] * weight_scale).astype(drows.v.dtype)


def _lay_out_document_ids(
    config: KernelConfig, rows: Batched, document_ids: Leaf
) -> None:
    """Write the documents of a block of queries from lanes to sublanes, [queries, 128]."""
    if config.packed:
        row = jnp.broadcast_to(rows.documents.ids_q[0], (LANES, config.tiling.queries))
        document_ids[...] = jnp.transpose(row)


def _lay_out_logit_terms(
    config: KernelConfig, shared: Shared, rows: Batched, terms: Leaf
) -> None:
    """Compute the terms per offset of a block of queries, base 2, for `Tile.relative_shift`."""
    if not config.terms.has_logit_terms:
        return
    for h, lanes in enumerate(config.heads.lanes):
        x = jnp.zeros((config.tiling.queries, config.terms.width), jnp.float32)
        if config.terms.key_tables:
            content = _content(config, rows)[0, :, lanes]
            x += dot(content, _table(shared.key_table, h), 1, 1)
            x *= config.scale * LOG2_E
        if config.terms.bias:
            x += shared.bias[0, h : h + 1] * LOG2_E
        terms[h] = skew(x, config)


def _logits(
    tile: Tile,
    shared: Shared,
    rows: Batched,
    document_ids: Leaf,
    terms: Leaf,
    h: int,
    uniform: bool,
) -> jax.Array:
    """Base-2 logits of a head on a tile."""
    config = tile.config
    q = rows.q[0, :, config.heads.lanes[h]]
    k = rows.k[0, :, config.heads.kv_lanes[h]]
    logits = dot(q, k, 1, 1) * (config.scale * LOG2_E)
    if config.terms.has_logit_terms:
        logits += tile.relative_shift(terms, h, uniform)
    if config.terms.long_bias:
        logits += tile.bias(shared.bias, h) * LOG2_E
    if config.terms.query_tables:
        number = _table_number(shared.query_table, h)
        logits += tile.key_terms(shared.query_table, number, k) * LOG2_E
    logits += rows.mask[0]
    if config.packed:
        same = wide(document_ids[...], config.tiling.keys) == rows.documents.ids_k[0]
        logits = jnp.where(same, logits, MASKED)
    if config.tiling.window is None or uniform:
        return logits
    return tile.within(logits, config.tiling.window)


def _content(config: KernelConfig, rows: Batched) -> Leaf:
    """The vectors of queries that the key table meets."""
    return rows.content if config.content else rows.q


def _table(table: Leaf, h: int) -> jax.Array:
    """The table of a head, which may be that of all."""
    return table[_table_number(table, h)]


def _table_number(table: Leaf, h: int) -> int:
    return min(h, table.shape[0] - 1)


def _add_to_table(gradient: jax.Ref, h: int, x: jax.Array) -> None:
    gradient[0, min(h, gradient.shape[1] - 1)] += x
