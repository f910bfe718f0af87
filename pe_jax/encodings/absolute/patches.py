"""Absolute positions of an image's patches, and of [CLS] in front of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.absolute.position_vectors import absolute
from pe_jax.encodings.part import Metadata, Params, Part, Traits
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.sinusoid import angles, default_frequencies
from pe_jax.encodings.tables import look_up


@register_encoding
def sinusoidal_2d(
    *,
    hidden_size: int,
    width: int | None = None,
    cls: bool = False,
    base: float = 10_000.0,
    end: bool = False,
) -> Part:
    """Fixed sinusoids of the column and the row of a patch, half of the dimensions each.

        P(r, c) = [sin ωc, cos ωc, sin ωr, cos ωr],   ω_t = base^(-4t/D), t = 0 .. D/4 - 1

    As in MAE (He et al. 2021, arXiv 2111.06377, code): columns first, and within each half all
    sines before all cosines. No parameters.

    Args:
      hidden_size: D, a multiple of 4.
      width: positions are one number each, `[L]` or `[B, L]`, that counts the patches of an image
        of so many columns, row by row. Without it positions are pairs (row, column), `[L, 2]` or
        `[B, L, 2]`, integer or real.
      cls: position 0 is [CLS], whose vector is zeros, and patches count from 1; without a width,
        [CLS] is a token with a negative coordinate.
      end: ω_t = base^(-t / (D/4 - 1)), whose last frequency is 1/base, as in the plain ViT of
        big_vision (Beyer et al. 2022, arXiv 2205.01580, code).

    Raises:
      ValueError: for a hidden size that is no multiple of 4, or below 8 with `end`; a width below
        1; or a base that is not positive.
    """
    if hidden_size % 4 or (end and hidden_size < 8):
        raise ValueError(
            "hidden_size must be a multiple of 4 (a sine and a cosine for each axis), and at "
            f"least 8 with end=True; got {hidden_size}."
        )
    check_at_least(1, width=width)
    exponent = "4t/D"
    source = "He et al. 2021 (MAE), code"
    frequency_base = base
    if end:
        exponent = "t/(D/4−1)"
        source = "Beyer et al. 2022, code"
        # The exponents t / (quarter - 1) instead of t / quarter.
        quarter = hidden_size // 4
        frequency_base = base ** (quarter / (quarter - 1))
    frequencies = default_frequencies(hidden_size // 2, frequency_base)

    def vectors(params: Params, x: Real[Array, "..."]) -> Float[Array, "... D"]:
        if width is None:
            row = x[..., 0]
            column = x[..., 1]
            is_cls = (row < 0) | (column < 0)
        else:
            patch = x - cls
            row = patch // width
            column = patch % width
            is_cls = x == 0
        column_angles = angles(column, frequencies)
        row_angles = angles(row, frequencies)
        halves = [
            jnp.sin(column_angles),
            jnp.cos(column_angles),
            jnp.sin(row_angles),
            jnp.cos(row_angles),
        ]
        out = jnp.concatenate(halves, axis=-1)
        if cls:
            out = jnp.where(is_cls[..., None], 0.0, out)
        return out

    metadata = Metadata(
        formula=f"[S(ω, column), S(ω, row)], ω_t = {base:g}^(−{exponent})",
        source=source,
        monotone=False,
    )
    return absolute(vectors, metadata, traits=Traits(axes=2 if width is None else 1))


@register_encoding
def learned_2d(
    *,
    hidden_size: int,
    height: int,
    width: int,
    cls: bool = False,
    factorized: bool = False,
    stddev: float = 0.02,
) -> Part:
    """One free vector for each patch of an image (Dosovitskiy et al. 2020, arXiv 2010.11929, 3.1
    and appendix D.4).

    Positions count the patches row by row: x is patch (x // width, x % width).

    Params: `{"table": [height, width, D]}`, or with `factorized` a vector for each column and one
    for each row, half of the dimensions each, `{"columns": [width, D/2], "rows": [height, D/2]}`;
    with `cls` also `"cls": [D]`. All are drawn from a normal of `stddev`. For an image of another
    size resize the table, `jax.image.resize(table, (height, width, D), "bilinear")`.

    Args:
      height, width: of an image, in patches.
      cls: position 0 is [CLS], and patches count from 1.

    Raises:
      ValueError: for an image without patches, or an odd hidden size with `factorized`; at the
        input, for a position past the image (traced ones give NaN), see `tables.look_up`.
    """
    check_at_least(1, height=height, width=width)
    if factorized and hidden_size % 2:
        raise ValueError(
            f"hidden_size must be even with factorized=True, got {hidden_size}."
        )
    half = hidden_size // 2
    shapes: dict[str, tuple[int, ...]] = {"table": (height, width, hidden_size)}
    formula = "P_(row, column) free"
    parameters = "Ht·W·D"
    if factorized:
        shapes = {"columns": (width, half), "rows": (height, half)}
        formula = "[P_column, P_row], P free"
        parameters = "(W + Ht)·D/2"
    if cls:
        shapes["cls"] = (hidden_size,)
        parameters += " + D"

    def init(rng: jax.Array) -> Params:
        rngs = jax.random.split(rng, len(shapes))
        return {
            name: stddev * jax.random.normal(name_rng, shape)
            for name_rng, (name, shape) in zip(rngs, shapes.items(), strict=True)
        }

    def patch_table(params: Params) -> Float[Array, "Ht W D"]:
        if not factorized:
            return params["table"]
        shape = (height, width, half)
        columns = jnp.broadcast_to(params["columns"][None], shape)
        rows = jnp.broadcast_to(params["rows"][:, None], shape)
        return jnp.concatenate([columns, rows], axis=-1)

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        table = patch_table(params).reshape(height * width, -1)
        if cls:
            table = jnp.concatenate([params["cls"][None], table])
        return look_up(table, x)

    metadata = Metadata(
        formula=formula,
        source="Dosovitskiy et al. 2020 (ViT), D.4",
        parameters=parameters,
    )
    traits = Traits(max_length=height * width + cls)
    return absolute(vectors, metadata, init=init, traits=traits)
