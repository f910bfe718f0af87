"""Static settings of the kernels, and the tiles within a window."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.attention.dropout import scale as scale_of_kept
from pe_jax.encodings.positions import AttentionWindow

LANES = 128

Count = int | jax.Array  # Known while compiling, or inside a kernel.


class HeadLayout(NamedTuple):
    """Heads, side by side in the lanes.

    Attributes:
      total: heads of queries.
      kv_total: heads of keys and values; each of these serves as many of the queries.
      size: of a head.
      group: heads of queries of one program.
    """

    total: int
    kv_total: int
    size: int
    group: int

    @property
    def lanes(self) -> list[slice]:
        """The lanes of each head of a program."""
        return [slice(h * self.size, (h + 1) * self.size) for h in range(self.group)]

    @property
    def kv_group(self) -> int:
        """Heads of keys and values of one program."""
        return self.group * self.kv_total // self.total

    @property
    def kv_lanes(self) -> list[slice]:
        """The lanes of the keys and values that each head of a program attends to."""
        return [self.lanes[h * self.kv_total // self.total] for h in range(self.group)]


class Tiling(NamedTuple):
    """Tiles of queries × keys, and the offsets that are attended to.

    Attributes:
      length: number of queries before padding, by which dropout numbers its rows.
      queries, keys: of a tile.
      query_tiles, key_tiles: how many tiles the padded queries and keys make.
      offset: position of key 0 minus position of query 0.
      window: the offsets that are attended to; None for all.
    """

    length: int
    queries: int
    keys: int
    query_tiles: int
    key_tiles: int
    offset: int
    window: AttentionWindow | None

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """How far queries attend to the left and to the right; None without a limit."""
        return (None, None) if self.window is None else self.window.sides

    def key_tile_range(self, query_tile: Count) -> tuple[Count, Count]:
        """The tiles of keys that a tile of queries attends to: the first, and the one after the
        last. Both may be beyond the keys, where there are none to attend to."""
        left, right = self.sides
        first_key = query_tile * self.queries - self.offset
        first: Count = 0
        if left is not None:
            first = _tiles(first_key - left, self.keys)
        end: Count = self.key_tiles
        if right is not None:
            end_key = first_key + self.queries + right
            end = _tiles(end_key + self.keys - 1, self.keys)
        return first, end

    @property
    def attended_tiles(self) -> list[int]:
        """For each tile of queries, how many tiles of keys it attends to."""
        counts = []
        for query_tile in range(self.query_tiles):
            first, end = self.key_tile_range(query_tile)
            counts.append(max(0, min(int(end), self.key_tiles) - int(first)))
        return counts

    @property
    def key_steps(self) -> int:
        """Steps over the keys that every tile of queries takes."""
        return max(1, *self.attended_tiles)


class TermLayout(NamedTuple):
    """Terms of the offset.

    Attributes:
      clip: offsets beyond ±clip share the terms of ±clip.
      width: period of the offsets in lanes, at least 2·clip.
      key_tables, value_tables, query_tables: 0 for no table, 1 for one shared by the heads, else
        one per head.
      bias: True if the terms per query and offset include a bias.
      long_bias: True if there is a bias for all offsets of the tiles instead, see `Tile.bias`.
    """

    clip: int
    width: int
    key_tables: int
    value_tables: int
    query_tables: int
    bias: bool
    long_bias: bool

    @property
    def has_logit_terms(self) -> bool:
        """True if there are terms per query and offset in the logits."""
        return bool(self.key_tables) or self.bias

    @property
    def has_value_terms(self) -> bool:
        """True if there are terms per query and offset in the outputs."""
        return bool(self.value_tables)


class KernelConfig(NamedTuple):
    """Sizes and constants of a call.

    Attributes:
      packed: True if queries attend within documents only.
      sink: True if heads have a logit in the softmax's denominator.
      content: True if key tables meet other vectors of the queries than q.
      scale: of q·(k + P).
      rate: of dropout.
      interpret: True runs the kernels as ordinary JAX operations.
    """

    heads: HeadLayout
    tiling: Tiling
    terms: TermLayout
    packed: bool = False
    sink: bool = False
    content: bool = False
    scale: float = 1.0
    rate: float = 0.0
    interpret: bool = False

    @property
    def dropout_scale(self) -> float:
        """The factor of weights that dropout keeps."""
        return scale_of_kept(self.rate)

    @property
    def far(self) -> int:
        """The lane of offset −clip, before any rotation."""
        return (-self.terms.clip - self.tiling.offset) % self.terms.width

    @property
    def bias_lanes(self) -> int:
        """Lanes of a head's bias, if any: one per offset of the period, or of all tiles."""
        if self.terms.long_bias:
            return self.all_offsets
        return self.terms.width if self.terms.bias else 0

    @property
    def all_offsets(self) -> int:
        """How many offsets all tiles have, one more than can occur."""
        tiling = self.tiling
        padded_queries = tiling.query_tiles * tiling.queries
        return padded_queries + tiling.key_tiles * tiling.keys

    @property
    def reaches_beyond_clip(self) -> bool:
        """True if offsets within the window can be beyond ±clip."""
        return any(side is None or side > self.terms.clip for side in self.tiling.sides)


def _tiles(keys: Count, of: int) -> Count:
    """Whole tiles in a number of keys, 0 for a negative one."""
    if isinstance(keys, int):
        return max(keys, 0) // of
    # Not `//`: compiling that ahead of time for a TPU fails (its sign asks which chip is here).
    return jax.lax.div(jnp.maximum(keys, 0), jnp.int32(of))
