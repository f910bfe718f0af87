"""Static settings of the kernels, and the tiles within a window."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.attention.dropout import scale as scale_of_kept
from pe_jax.encodings.positions import AttentionWindow

LANES = 128

Count = int | jax.Array  # Known while compiling, or inside a kernel.


class KernelConfig(NamedTuple):
    """Sizes and constants of a call."""

    heads: int  # Of queries.
    kv_heads: int  # Of keys and values; each of these serves as many queries'.
    size: int  # Of a head.
    group: int  # Heads of queries of one program, side by side in the lanes.
    length: int  # Queries before padding, by which dropout numbers its rows.
    queries: int  # Of a tile.
    keys: int
    query_tiles: int  # How many tiles the padded queries and keys make.
    key_tiles: int
    offset: int  # Position of key 0 minus position of query 0.
    window: AttentionWindow | None  # The offsets that are attended to; None: any.
    clip: int  # Offsets beyond ±clip share the terms of ±clip.
    width: int  # Period of the offsets in lanes, at least 2·clip.
    key_tables: int  # 0 for no table, 1 for one shared by the heads, else one per head.
    value_tables: int
    bias: bool  # Whether the terms per query and offset include a bias.
    # Whether there is a bias for all offsets of the tiles instead, see `Tile.bias`.
    long_bias: bool
    packed: bool = False  # Whether queries attend within documents only.
    sink: bool = False  # Whether heads have a logit in the softmax's denominator.
    scale: float = 1.0  # Of q·(k + P).
    rate: float = 0.0  # Of dropout.
    interpret: bool = False  # Runs as ordinary JAX operations.

    @property
    def lanes(self) -> list[slice]:
        """The lanes of each head of a program."""
        return [slice(h * self.size, (h + 1) * self.size) for h in range(self.group)]

    @property
    def kv_group(self) -> int:
        """Heads of keys and values of one program."""
        return self.group * self.kv_heads // self.heads

    @property
    def kv_lanes(self) -> list[slice]:
        """The lanes of the keys and values that each head of a program attends to."""
        return [self.lanes[h * self.kv_heads // self.heads] for h in range(self.group)]

    @property
    def dropout_scale(self) -> float:
        return scale_of_kept(self.rate)

    @property
    def far(self) -> int:
        """The lane of offset −clip, before any rotation."""
        return (-self.clip - self.offset) % self.width

    @property
    def logit_terms(self) -> bool:
        return bool(self.key_tables) or self.bias

    @property
    def value_terms(self) -> bool:
        return bool(self.value_tables)

    @property
    def bias_lanes(self) -> int:
        """Lanes of a head's bias, if any: one per offset of the period, or of all tiles."""
        if self.long_bias:
            return self.query_tiles * self.queries + self.key_tiles * self.keys
        return self.width if self.bias else 0

    @property
    def beyond_clip(self) -> bool:
        """True if offsets within the window can be beyond ±clip."""
        return any(
            side is None or side > self.clip
            for side in (self.window or AttentionWindow()).sides
        )

    def key_tile_range(self, query_tile: Count) -> tuple[Count, Count]:
        """The tiles of keys that a tile of queries attends to: the first, and the one after the
        last. Both may be beyond the keys, where there are none to attend to."""
        left, right = (self.window or AttentionWindow()).sides
        first = query_tile * self.queries - self.offset
        end = first + self.queries
        return (
            0 if left is None else _tiles(first - left, self.keys),
            self.key_tiles
            if right is None
            else _tiles(end + right + self.keys - 1, self.keys),
        )

    @property
    def attended_tiles(self) -> list[int]:
        """For each tile of queries, how many tiles of keys it attends to."""
        windows = map(self.key_tile_range, range(self.query_tiles))
        return [
            max(0, min(int(end), self.key_tiles) - int(first)) for first, end in windows
        ]

    @property
    def key_steps(self) -> int:
        """Steps over the keys that every tile of queries takes."""
        return max(1, *self.attended_tiles)


def _tiles(keys: Count, of: int) -> Count:
    """Whole tiles in a number of keys, 0 for a negative one."""
    if isinstance(keys, int):
        return max(keys, 0) // of
    # Not `//`: compiling that ahead of time for a TPU fails (its sign asks which chip is here).
    return jax.lax.div(jnp.maximum(keys, 0), jnp.int32(of))
