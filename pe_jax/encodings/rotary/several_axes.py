"""RoPE for positions of several axes, such as rows and columns of an image, or time as well."""

from __future__ import annotations

import reprlib
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import Metadata, Params, Part, Traits
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rope import frequencies
from pe_jax.encodings.rotary.rotation import Layout, both, rotate_by
from pe_jax.encodings.sinusoid import angles, default_frequencies

AxialLayout = Literal["interleaved", "half", "half_by_axis"]


@register_encoding
def rope_axial(
    *,
    head_size: int,
    base: float = 100.0,
    axes: int = 2,
    width: int | None = None,
    layout: AxialLayout = "half",
) -> Part:
    """RoPE with an equal share of the head for each axis (Heo et al. 2024, arXiv 2403.13298).

    Axis a of a position rotates the d/2A pairs of dimensions in its share of queries and keys, pair
    t by w_t · position, w_t = base^(-2tA/d). Logits depend on differences of positions, axis by
    axis. No parameters.

    Args:
      base: 100 for images of some dozen patches a side (Heo et al.); 10,000 for text and SAM 2.
      axes: Number A of axes. Positions are `[L, A]` or `[B, L, A]`, integer or real.
      width: positions are one number x each instead, which counts the patches of an image of so
        many columns: (x // width, x % width). (Heo et al. have the column first.)
      layout: which dimensions make a pair. "half": m and m + d/2, where axis a has the a-th share
        of the pairs (Qwen2-VL's images). "interleaved": neighbours, where axis a has the a-th share
        of the head (Heo et al.). "half_by_axis": the halves of each axis' share of the head
        (Gemma 4's images).

    Raises:
      ValueError: for sizes that the axes cannot share.
    """
    frequencies = by_share(head_size, axes, base)
    check_width(width, axes)

    def rotate(params: Params, x: Array, positions: Array) -> Array:
        if width is not None:
            positions = of_patch(positions, width)
        angle = angles(positions, frequencies)  # [..., A, F]
        if layout == "half_by_axis":
            shares = jnp.split(x, axes, axis=-1)
            rotated = []
            for axis, share in enumerate(shares):
                rotated.append(rotate_by(share, angle[..., axis, None, :]))
            return jnp.concatenate(rotated, axis=-1)
        return rotate_by(x, angle.reshape(*angle.shape[:-2], 1, -1), layout)

    return Part(
        map_qkv=both(rotate),
        traits=Traits(axes=axes if width is None else 1),
        metadata=Metadata(
            formula=f"R(ω, x_a) on share a, ω_t = {base:g}^(−2tA/d)",
            source="Heo et al. 2024",
            invariant=width is None,
            monotone=False,
            frequencies=lambda _: jnp.array(frequencies),
        ),
    )


@register_encoding
def rope_mixed(
    *, head_size: int, num_heads: int, base: float = 10.0, axes: int = 2
) -> Part:
    """RoPE whose frequencies each have a direction of their own (RoPE-Mixed, Heo et al. 2024, arXiv
    2403.13298).

        pair m of head h is rotated by Σ_a ω_ahm x_a

    Logits depend on differences of positions, in diagonal directions as well. Pairs are neighbours,
    as in the authors' code. There each layer has frequencies of its own: `per_layer(rope_mixed)`.

    Params: `{"frequencies": [A, H, d/2]}` in radians per position, A = `axes`, which start as in
    the authors' code, up to reflections: the pairs are A groups, in each group pair t has a
    frequency of length base^(-2tA/d); the directions of a head's groups are at right angles, and
    random.

    Raises:
      ValueError: for a head that the axes cannot share.
    """
    lengths = by_share(head_size, axes, base)

    def init(rng: jax.Array) -> Params:
        directions = jax.random.orthogonal(rng, axes, (num_heads,))  # [H, A, groups]
        w = jnp.einsum("hag,t->ahgt", directions, lengths)
        return {"frequencies": w.reshape(axes, num_heads, head_size // 2)}

    def rotate(params: Params, x: Array, positions: Array) -> Array:
        w = params["frequencies"]
        angle = sum(angles(positions[..., axis], w[axis]) for axis in range(axes))
        return rotate_by(x, angle, "interleaved")

    return Part(
        init=init,
        map_qkv=both(rotate),
        traits=Traits(frequency_params=("frequencies",), axes=axes),
        metadata=Metadata(
            formula="R(Σ_a ω_a x_a), ω free",
            source="Heo et al. 2024",
            parameters="A·H·d/2",
            invariant=True,
            monotone=False,
            frequencies=lambda params: params["frequencies"].reshape(-1),
        ),
    )


@register_encoding
def mrope(
    *,
    head_size: int,
    sections: tuple[int, ...] | None = None,
    interleaved: bool = False,
    base: float = 10_000.0,
    fraction: float = 1.0,
    layout: Layout = "half",
) -> Part:
    """RoPE whose pairs use one axis each, of time, height and width (M-RoPE: Wang et al. 2024,
    arXiv 2409.12191, 2.1; Qwen2-VL).

    Pair m, of dimensions m and m + r/2 by default, is rotated by ω_m x_a(m), ω_m = base^(-2m/r):
    `rope` where a token's positions are the same on all axes, as those of text are. Logits depend
    on differences of positions, axis by axis. No parameters.

    Args:
      sections: how many pairs use each axis, r/2 in all; A is their number. Default: Qwen2-VL's
        shares, 1/4, 3/8, 3/8 (16, 24, 24 of 64), or with `interleaved` Qwen3-VL's 3/8, 5/16, 5/16.
      interleaved: pair m uses axis m mod A while that has pairs left, else the first axis
        (Qwen3-VL). By default the first pairs, the fastest, use the first axis, and so on.
      base: 1,000,000 in Qwen2-VL, 5,000,000 in Qwen3-VL.
      fraction: only the first r = int(fraction·d) dimensions are rotated (Qwen3.5: 1/4).
      layout: which dimensions make a pair, see `Layout` ("interleaved": GLM-4V).

    Raises:
      ValueError: for sections that are not r/2 in all, or cannot be interleaved.
    """
    w = frequencies(head_size, base, fraction)
    if sections is None:
        share_of_image = 5 / 16 if interleaved else 3 / 8
        pairs = round(w.size * share_of_image)
        sections = (w.size - 2 * pairs, pairs, pairs)
    count = len(sections)
    if sum(sections) != w.size or min(sections) < 0:
        raise ValueError(
            f"sections must add up to {w.size}, the pairs of a head of size {head_size}; got "
            f"{reprlib.repr(sections)}, which adds up to {sum(sections)}."
        )
    axis_of = np.repeat(np.arange(count), sections)
    if interleaved:
        turn, axis = np.divmod(np.arange(w.size), count)
        has_pairs_left = turn < np.array(sections)[axis]
        axis_of = np.where(has_pairs_left, axis, 0)
        if (np.bincount(axis_of, minlength=count) != sections).any():
            raise ValueError(
                f"sections {sections} cannot be interleaved: the first takes every {count}th pair "
                "and all that the others leave, so it must be the largest."
            )
    sorted_by_axis = np.argsort(axis_of, kind="stable")
    places = np.argsort(sorted_by_axis)

    def rotate(params: Params, x: Array, positions: Array) -> Array:
        by_axis = [angles(positions[..., a], w[axis_of == a]) for a in range(count)]
        angle = jnp.concatenate(by_axis, axis=-1)[..., places]
        return rotate_by(x, angle[..., None, :], layout)

    return Part(
        map_qkv=both(rotate),
        traits=Traits(axes=count),
        metadata=Metadata(
            formula=f"R(ω_m x_a(m)), ω_m = {base:g}^(−2m/r)",
            source="Wang et al. 2024 (Qwen2-VL), 2.1",
            invariant=True,
            monotone=False,
            frequencies=lambda _: jnp.array(w),
        ),
    )


def by_share(head_size: int, axes: int, base: float) -> Float[np.ndarray, " F"]:
    """Return the frequencies of each of `axes` equal shares of a head.

    Raises:
      ValueError: for a head size that is no multiple of 2·axes.
    """
    if axes < 1 or head_size % (2 * axes):
        raise ValueError(
            f"head_size must be a multiple of {2 * axes} for pairs of {axes} axes, got {head_size}."
        )
    return np.asarray(default_frequencies(head_size // axes, base))


def check_width(width: int | None, axes: int) -> None:
    """Raise a ValueError for the `width` of an image whose positions have not two axes."""
    if width is not None and (axes != 2 or width < 1):
        raise ValueError(
            f"With width, axes must be 2 and width at least 1, got axes={axes}, width={width}. For "
            "other numbers of axes, leave out width and pass positions as arrays."
        )


def of_patch(positions: Real[Array, "*B"], width: int) -> Real[Array, "*B 2"]:
    """Return row and column of patches counted row by row, in an image of `width` columns."""
    stack = np.stack if isinstance(positions, np.ndarray) else jnp.stack
    return stack([positions // width, positions % width], axis=-1)
