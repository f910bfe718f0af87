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
    """
    if hidden_size % 4 or (end and hidden_size < 8):
        raise ValueError(
            "hidden_size must be a multiple of 4 (a sine and a cosine for each axis), and at "
            f"least 8 with end=True; got {hidden_size}."
        )
    check_at_least(1, width=width)
    quarter = hidden_size // 4
    # With `end`, the exponents t / (quarter - 1) instead of t / quarter.
    w = default_frequencies(
        hidden_size // 2, base ** (quarter / (quarter - 1)) if end else base
    )

    def vectors(params: Params, x: Real[Array, "..."]) -> Float[Array, "... D"]:
        if width is None:
            row, column = x[..., 0], x[..., 1]
            is_cls = (row < 0) | (column < 0)
        else:
            patch, is_cls = x - cls, x == 0
            row, column = patch // width, patch % width
        parts = [f(angles(at, w)) for at in (column, row) for f in (jnp.sin, jnp.cos)]
        out = jnp.concatenate(parts, axis=-1)
        return jnp.where(is_cls[..., None], 0.0, out) if cls else out

    metadata = Metadata(
        formula=f"[S(ω, column), S(ω, row)], ω_t = {base:g}^(−{'t/(D/4−1)' if end else '4t/D'})",
        source="Beyer et al. 2022, code" if end else "He et al. 2021 (MAE), code",
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

    Positions count the patches row by row: x is patch (x // width, x % width). A position past the
    image is a ValueError (see `tables.look_up`).

    Params: `{"table": [height, width, D]}`, or with `factorized` a vector for each column and one
    for each row, half of the dimensions each, `{"columns": [width, D/2], "rows": [height, D/2]}`;
    with `cls` also `"cls": [D]`. All are drawn from a normal of `stddev`. For an image of another
    size resize the table, `jax.image.resize(table, (height, width, D), "bilinear")`.

    Args:
      height, width: of an image, in patches.
      cls: position 0 is [CLS], and patches count from 1.
    """
    check_at_least(1, height=height, width=width)
    if factorized and hidden_size % 2:
        raise ValueError(
            f"hidden_size must be even with factorized=True, got {hidden_size}."
        )
    half = hidden_size // 2
    free: dict[str, tuple[int, ...]] = {"table": (height, width, hidden_size)}
    halves = {"columns": (width, half), "rows": (height, half)}
    shapes = {
        **(halves if factorized else free),
        **({"cls": (hidden_size,)} if cls else {}),
    }

    def init(rng: jax.Array) -> Params:
        rngs = zip(shapes, jax.random.split(rng, len(shapes)))
        return {
            name: stddev * jax.random.normal(rng, shapes[name]) for name, rng in rngs
        }

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        if factorized:
            columns, rows = params["columns"][None], params["rows"][:, None]
            shape = height, width, half
            table = jnp.concatenate(
                [jnp.broadcast_to(y, shape) for y in (columns, rows)], axis=-1
            )
        else:
            table = params["table"]
        table = table.reshape(height * width, -1)
        return look_up(
            jnp.concatenate([params["cls"][None], table]) if cls else table, x
        )

    metadata = Metadata(
        formula="[P_column, P_row], P free" if factorized else "P_(row, column) free",
        source="Dosovitskiy et al. 2020 (ViT), D.4",
        parameters=("(W + Ht)·D/2" if factorized else "Ht·W·D")
        + (" + D" if cls else ""),
    )
    traits = Traits(max_length=height * width + cls)
    return absolute(vectors, metadata, init=init, traits=traits)
