"""Settings and arrays of the kernels, from the arguments of `flash_attention`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention.masks import document_bounds
from pe_jax.attention.tpu_kernel import launch
from pe_jax.attention.tpu_kernel.kernels import Batched, Documents, Shared
from pe_jax.attention.tpu_kernel.tiles import MASKED
from pe_jax.attention.tpu_kernel.tiling import (
    LANES,
    HeadLayout,
    KernelConfig,
    TermLayout,
    Tiling,
)
from pe_jax.common.product import add_row
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.positions import AttentionWindow

# Bytes on the chip that a kernel may take: TPU v5p and v7x have 64 MiB a core, v5e and v6e 128.
ON_CHIP = 60 * 2**20


def configure(
    q: jax.ShapeDtypeStruct | Array,
    k: jax.ShapeDtypeStruct | Array,
    terms: Shared,
    window: AttentionWindow | None,
    offset: int,
    block: tuple[int, int] | None = None,
    packed: bool = False,
) -> KernelConfig:
    """Return the sizes, by the shapes of the arguments.

    Without `block`, tiles are the largest ones that fit the memory on the chip.

    Raises:
      ValueError: for heads, tables, a window or a block that do not fit.
    """
    _, length, heads, size = q.shape
    _, keys, kv_heads, _ = k.shape
    if heads % kv_heads:
        raise ValueError(
            f"k has {kv_heads} heads, which must divide the {heads} heads of q."
        )
    window = window or AttentionWindow()
    if any(side is not None and side < 0 for side in window.sides):
        raise ValueError(
            f"window must be 0 or more on each side, or None for no limit, got {window}."
        )
    # Offsets that cannot occur are sliced off: a table may be far longer than the sequences.
    to_left = length - 1 - offset  # The farthest key.
    to_right = keys - 1 + offset
    window = AttentionWindow(
        left=_limit(window.left, to_left), right=_limit(window.right, to_right)
    )
    longest = max(
        to_left if window.left is None else window.left,
        to_right if window.right is None else window.right,
    )
    clip = max(1, min(_clip(terms), longest))
    key_tables = _tables(terms.key_table, heads, 2)
    value_tables = _tables(terms.value_table, heads, 2)
    query_tables = _tables(terms.query_table, heads, 2)
    if value_tables > 1 and kv_heads < heads:
        raise ValueError(
            f"value_table has a table for each of {heads} heads, but they share {kv_heads} heads "
            "of values. Pass one table [M, d], or as many heads of values."
        )

    has_bias = bool(_tables(terms.bias, heads, 1))
    only_bias = has_bias and terms.key_table is None and terms.value_table is None

    def is_long(tile_queries: int) -> bool:
        return only_bias and clip > tile_queries

    def with_tiles(tile_queries: int, tile_keys: int, long_bias: bool) -> KernelConfig:
        term_clip = 1 if long_bias else clip  # A long bias is no term of each query.
        return KernelConfig(
            heads=HeadLayout(
                total=heads,
                kv_total=kv_heads,
                size=size,
                group=_group(kv_heads, size) * heads // kv_heads,
            ),
            tiling=Tiling(
                length=length,
                queries=tile_queries,
                keys=tile_keys,
                query_tiles=-(-length // tile_queries),
                key_tiles=-(-keys // tile_keys),
                offset=offset,
                window=None if window == AttentionWindow() else window,
            ),
            terms=TermLayout(
                clip=term_clip,
                width=_ceil(2 * term_clip, LANES),
                key_tables=key_tables,
                value_tables=value_tables,
                query_tables=query_tables,
                bias=has_bias and not long_bias,
                long_bias=long_bias,
            ),
            packed=packed,
        )

    if block is None:
        tiles = _tiles(length, window)
        tile_keys = _tiles(keys, window)[0]
        choices = [with_tiles(n, tile_keys, is_long(n)) for n in tiles]
        choices += [with_tiles(n, tile_keys, False) for n in tiles if is_long(n)]
        for config in choices:
            if launch.on_chip_bytes(config, q.dtype) <= ON_CHIP:
                return config
        return choices[-1]
    if min(block) < 1 or any(n % LANES for n in block):
        raise ValueError(
            f"block sizes must be multiples of 128, for queries and for keys, got {block}."
        )
    return with_tiles(*block, is_long(block[0]))


def _limit(side: int | None, farthest: int) -> int | None:
    """A limit of the window; None where no key is beyond it."""
    return None if side is None or side >= farthest else side


def _clip(terms: Shared) -> int:
    """The offset beyond which all terms are constant; 1 where there are none."""
    counts = {x.shape[0] for x in terms if x is not None}
    if any(n % 2 == 0 or n < 3 for n in counts) or len(counts) > 1:
        raise ValueError(
            f"Tables and bias must have 2·clip + 1 rows with clip >= 1, got {sorted(counts)}."
        )
    return max(counts, default=3) // 2


def _tables(
    x: jax.ShapeDtypeStruct | Array | None, heads: int, shared_axes: int
) -> int:
    """Number of tables: none, one shared by the heads, or one per head."""
    if x is None:
        return 0
    if x.ndim == shared_axes:
        return 1
    if x.shape[1] != heads:
        raise ValueError(
            f"Got {x.shape[1]} tables or biases for {heads} heads. Pass one, or {heads}."
        )
    return heads


def _group(heads: int, size: int) -> int:
    """The fewest heads that fill whole registers of 128 lanes; all of them where none do."""
    for n in range(1, heads):
        if heads % n == 0 and n * size % LANES == 0:
            return n
    return heads


def _tiles(length: int, window: AttentionWindow) -> list[int]:
    """Sizes up to 512 that divide the length, padded to 128, the largest first; none is larger than
    half of a window, as tiles that its edges cross are computed whole."""
    padded = _ceil(length, LANES)
    most = 512 if window.span is None else _ceil(max(2, window.span), 2 * LANES) // 2
    return [n for n in (512, 384, 256, LANES) if padded % n == 0 and n <= most]


def _ceil(x: int, to: int) -> int:
    """The next multiple of `to`."""
    return -(-x // to) * to


def occurring(config: KernelConfig, terms: Shared) -> Shared:
    """The terms of offsets within ±clip, or a long bias as it is."""
    if config.terms.long_bias:
        return terms
    middle = _clip(terms)
    clip = config.terms.clip
    return jax.tree.map(lambda x: x[middle - clip : middle + clip + 1], terms)


def lay_out_terms(config: KernelConfig, terms: Shared, seed: Array | None) -> Shared:
    """Tables and bias as the kernels take them, but in their own dtypes."""

    def by_head(x: Array) -> jax.Array:
        return x.reshape(len(x), -1, config.heads.size)

    def table(x: Array | None) -> jax.Array | None:
        return None if x is None else _periodic(config, by_head(x))

    query_table = None
    if terms.query_table is not None:
        query_table = _falling_offsets(config, by_head(terms.query_table))
    bias = None
    if terms.bias is not None:
        rows = len(terms.bias)
        x = jnp.broadcast_to(terms.bias.reshape(rows, -1), (rows, config.heads.total))
        lay_out = _all_offsets if config.terms.long_bias else _periodic
        bias = lay_out(config, x).reshape(-1, config.heads.group, config.bias_lanes)
    return Shared(
        seed=jnp.zeros(2, jnp.uint32) if seed is None else seed,
        key_table=table(terms.key_table),
        bias=bias,
        value_table=table(terms.value_table),
        query_table=query_table,
    )


def _periodic(config: KernelConfig, x: Array) -> jax.Array:
    """[M, N, ...] to [N, width, ...]: differences to offset clip, offset m at (m − offset) mod
    width."""
    clip = config.terms.clip
    x = jnp.moveaxis(x[:-1] - x[-1:], 0, 1)
    pad = [(0, 0)] * x.ndim
    pad[1] = (0, config.terms.width - 2 * clip)
    return jnp.roll(jnp.pad(x, pad), -clip - config.tiling.offset, axis=1)


def _all_offsets(config: KernelConfig, x: Array) -> jax.Array:
    """[M, H] to [H, lanes]: the bias of all offsets between tiles, the first at lane 0."""
    tiling = config.tiling
    first = tiling.offset - tiling.query_tiles * tiling.queries
    return _from_offset(config, x, first).T


def _falling_offsets(config: KernelConfig, x: Array) -> jax.Array:
    """[M, N, d] to [N, all offsets, d]: the vectors from the largest offset between tiles on."""
    tiling = config.tiling
    first = tiling.offset + tiling.key_tiles * tiling.keys
    # Falling from there is rising from its negative in the reversed table.
    return jnp.moveaxis(_from_offset(config, x[::-1], -first), 0, 1)


def _from_offset(config: KernelConfig, x: Array, first: int) -> jax.Array:
    """[M, ...] to [all offsets, ...]: the rows of the offsets from `first` on, clipped."""
    count = config.all_offsets
    clip = len(x) // 2
    row = np.clip(first + np.arange(count), -clip, clip) + clip
    before = int((row == row[0]).sum()) - 1
    inner = x[row[0] : row[-1] + 1]
    after = count - before - len(inner)
    padding = [(before, after)] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(inner, padding, mode="edge")


def _padded(x: Array, tile: int, value: int | float = 0) -> jax.Array:
    """`x` with its axis 1 padded to whole tiles."""
    pad = [(0, 0)] * x.ndim
    pad[1] = (0, -x.shape[1] % tile)
    return jnp.pad(x, pad, constant_values=value)


def lay_out_rows(
    config: KernelConfig,
    terms: Shared,
    q: Array,
    k: Array,
    v: Array,
    valid: Array | None,
    content: Array | None = None,
) -> Batched:
    """Arrays with rows of the batch, padded to whole tiles, heads side by side."""
    if terms.value_table is not None:
        v = _plus_row(v, terms.value_table[-1].reshape(-1, config.heads.size))
    flat_q, flat_k, flat_v = (x.reshape(*x.shape[:2], -1) for x in (q, k, v))
    if content is not None:
        flat_content = content.reshape(*content.shape[:2], -1)
        content = _padded(flat_content, config.tiling.queries)
    mask = jnp.zeros(k.shape[:2]) if valid is None else jnp.where(valid, 0.0, MASKED)
    return Batched(
        numbers=jax.lax.iota(jnp.uint32, len(k)),
        mask=_padded(mask, config.tiling.keys, MASKED).astype(jnp.float32)[:, None],
        q=_padded(flat_q, config.tiling.queries),
        k=_padded(flat_k, config.tiling.keys),
        v=_padded(flat_v, config.tiling.keys),
        content=content,
    )


def lay_out_documents(config: KernelConfig, document_ids: Array) -> Documents:
    """The document ids, -1 for queries of padding, and the tiles to compute."""
    tiling = config.tiling
    starts, ends = document_bounds(document_ids)
    real = document_ids > 0

    def by_tile(x: Array, other: int) -> jax.Array:
        x = _padded(jnp.where(real, x, other), tiling.queries, other)
        return x.reshape(len(x), tiling.query_tiles, tiling.queries)

    def row(padding: int, tile: int) -> jax.Array:
        x = jnp.where(real, document_ids, padding)
        return _padded(x, tile, padding).astype(jnp.float32)[:, None]

    first = by_tile(starts, document_ids.shape[1]).min(2) // tiling.keys
    end = -(-by_tile(ends, 0).max(2) // tiling.keys)
    return Documents(
        ids_q=row(-1, tiling.queries),
        ids_k=row(0, tiling.keys),
        tiles=jnp.stack([first, end], axis=1).astype(jnp.int32),
    )


def _plus_row(v: Float[Array, "B Lk G d"], row: Float[Array, "#G d"]) -> jax.Array:
    """`v + row`, by rows, as the projection gives them: there XLA adds it on its way out."""
    heads = jnp.broadcast_to(row, v.shape[2:]).reshape(-1).astype(jnp.float32)
    wide = add_row(v.reshape(-1, len(heads)).astype(jnp.float32), heads, v.dtype)
    return wide.astype(v.dtype).reshape(v.shape)
