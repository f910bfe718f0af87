"""Relative positions of an image's patches: row and column of the key, seen from the query."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import (
    HookContext,
    LogitTerms,
    Metadata,
    Params,
    Part,
    Traits,
    normal_init,
)
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.tables import look_up, look_up_traced


@register_encoding
def bias_2d(
    *, num_heads: int, height: int, width: int, cls: bool = False, stddev: float = 0.02
) -> Part:
    """A free bias for each difference of rows and columns of patches.

        logit_ij += b_h[row_i - row_j, column_i - column_j]

    Sources: Swin (Liu et al. 2021, arXiv 2103.14030, eq. 4), BEiT (Bao et al. 2021, arXiv
    2106.08254).

    Positions count the patches row by row: x is patch (x // width, x % width). Of Swin's windows,
    each is a row of the batch.

    Params: `{"table": [(2 height - 1)·(2 width - 1), H]}`, drawn from a normal of `stddev`, in the
    order of transformers' `relative_position_bias_table`: differences of columns follow one
    another. With `cls` three more rows, as in BEiT, for [CLS] as the query, as the key, and both.

    Args:
      height, width: of the image or window, in patches.
      cls: position 0 is [CLS], and patches count from 1.

    Raises:
      ValueError: for an image without patches; in attention, for a position past the image (traced
        ones give NaN), or positions that are not integers.
    """
    check_at_least(1, height=height, width=width)
    differences = (2 * height - 1) * (2 * width - 1)  # Of two patches.

    def term(
        query_places: Array, key_places: Array, table: Array, mask: Array | None
    ) -> Float[Array, "#B H Lq Lk"]:
        i = query_places[:, :, None]  # [#B, Lq, 1, 2]
        j = key_places[:, None, :]  # [#B, 1, Lk, 2]
        difference = i - j + np.array([height - 1, width - 1])
        entry = difference[..., 0] * (2 * width - 1) + difference[..., 1]
        if cls:
            i_is_cls = i[..., 0] < 0
            j_is_cls = j[..., 0] < 0
            entry = jnp.where(i_is_cls, differences, entry)
            entry = jnp.where(j_is_cls, differences + 1 + i_is_cls, entry)
        is_known = ~jnp.isnan(i[..., 0] + j[..., 0])
        rows = jnp.where(is_known, entry, -1).astype(jnp.int32)
        return jnp.moveaxis(look_up_traced(table, rows, jnp.nan), -1, 1)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()
        return LogitTerms(
            function=term,
            query_arrays=_places(i, height, width, cls),
            key_arrays=_places(j, height, width, cls),
            shared=params["table"],
        )

    source = "Liu et al. 2021 (Swin), eq. 4"
    parameters = "(2Ht − 1)·(2W − 1)"
    if cls:
        source += "; Bao et al. 2021 (BEiT)"
        parameters += " + 3"
    return Part(
        init=normal_init(stddev, table=(differences + 3 * cls, num_heads)),
        logits=logits,
        traits=Traits(max_length=height * width + cls),
        metadata=Metadata(
            formula="b_h[row, column of i − j], b free",
            source=source,
            parameters=f"({parameters})·H",
        ),
    )


@register_encoding
def decomposed_2d(
    *, head_size: int, height: int, width: int, stddev: float = 0.02
) -> Part:
    """Vectors of differences of rows and of columns that meet the query.

        logit_ij += q_i·(R[row_i - row_j] + C[column_i - column_j])

    Source: MViTv2 (Li et al. 2021, arXiv 2112.01526, eq. 4); ViTDet and SAM have it too.

    Added as it is, not divided by sqrt(d); a factor of the logits, as of `log_n`, multiplies it.
    Positions as in `bias_2d`. The authors have the tables for each layer:
    `per_layer(decomposed_2d)`.

    Params: `{"rows": [2 height - 1, d], "columns": [2 width - 1, d]}`, drawn from a normal of
    `stddev`: transformers' `rel_pos_h` and `rel_pos_w` (`vitdet`, `sam`).

    Args:
      height, width: of the image or window, in patches.

    Raises:
      ValueError: as `bias_2d`.
    """
    check_at_least(1, height=height, width=width)

    def term(
        query_arrays: tuple, key_places: Array, shared: tuple, mask: Array | None
    ) -> Float[Array, "B H Lq Lk"]:
        query_places, *products = query_arrays
        sizes = (height, width)
        total: Array = jnp.zeros(())
        for axis in range(2):
            i = query_places[:, :, None, axis]  # [#B, Lq, 1]
            j = key_places[:, None, :, axis]  # [#B, 1, Lk]
            difference = i - j + sizes[axis] - 1
            is_unknown = jnp.isnan(difference)
            entry = jnp.where(is_unknown, 0, difference).astype(jnp.int32)
            # Products of queries with all rows, [B, Lq, H, 2 size - 1].
            taken = jnp.take_along_axis(products[axis], entry[:, :, None], axis=-1)
            total += jnp.where(is_unknown[:, :, None], jnp.nan, taken)
        return jnp.moveaxis(total, 1, 2)

    def logits(params: Params, q: Array, k: Array, context: HookContext) -> LogitTerms:
        i, j = context.rows()
        unscaled = q * head_size**0.5
        row_products = unscaled @ params["rows"].T
        column_products = unscaled @ params["columns"].T
        return LogitTerms(
            function=term,
            query_arrays=(_places(i, height, width), row_products, column_products),
            key_arrays=_places(j, height, width),
        )

    return Part(
        init=normal_init(
            stddev, rows=(2 * height - 1, head_size), columns=(2 * width - 1, head_size)
        ),
        logits=logits,
        traits=Traits(max_length=height * width),
        metadata=Metadata(
            formula="q_i·(R[row of i − j] + C[column of i − j]), not divided by √d, R and C free",
            source="Li et al. 2021 (MViTv2), eq. 4",
            parameters="2·(Ht + W − 1)·d",
        ),
    )


def _places(
    positions: Real[Array, "#B L"], height: int, width: int, cls: bool = False
) -> Float[Array, "#B L 2"]:
    """Row and column of patches that are counted row by row, NaN past the image; -1 of [CLS]."""
    row_and_column = np.divmod(np.arange(height * width), width)
    table = np.stack(row_and_column, -1).astype(np.float32)
    if cls:
        table = np.concatenate([np.full((1, 2), -1, np.float32), table])
    return look_up(table, positions)
