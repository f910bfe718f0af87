"""Rotary encodings (RoPE): queries and keys are rotated by angles proportional to their positions.

    q_i -> c R(ω i) q_i        k_j -> c R(ω j) k_j        so that q_i·k_j -> c² q_i·R(ω (j - i)) k_j

R rotates each pair (a, b) of dimensions by one angle, to (a cos - b sin, a sin + b cos). All rotary
encodings are this one map: they differ in the frequencies ω and in the scale c, which is 1 but for
YaRN and LongRoPE (see `rope_scaling`).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.encoding import PositionEncoding, map_parts
from pe_jax.encodings.part import QKV, HookContext, Metadata, Params, Part, Traits
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.rotary.rotation import Layout, pairs, rotate_by
from pe_jax.encodings.sinusoid import angles, default_frequencies

FrequencyFactors = Callable[[Float[Array, "#H F"]], Float[Array, "#H F"]]


@register_encoding
def rope(
    *,
    head_size: int,
    num_heads: int | None = None,
    base: float = 10_000.0,
    layout: Layout = "half",
    fraction: float = 1.0,
    proportional: float = 1.0,
    learnable: bool = False,
    per_head: bool = False,
) -> Part:
    """Rotary encoding (RoPE): turn pairs of dimensions by angles ω_m x, ω_m = base^(-2m/r).

    Source: Su et al. 2021, equations 14 to 16.

    Logits depend on positions only through j - i.

    Args:
      head_size: Size d of a head.
      num_heads: H, for `per_head` only.
      base: of the frequencies.
      layout: which dimensions make a pair, see `Layout` and `convert_layout`.
      fraction: only the first r = int(fraction·d) dimensions, r even, are rotated (GPT-NeoX).
      proportional: keep only the fastest int(proportional·r/2) frequencies and set the rest to 0;
        exponents still use all r dimensions (p-RoPE: Barbero et al. 2024; Gemma 4).
      learnable: params `{"frequencies": [r/2]}`, which start at the fixed ones.
      per_head: learn separate frequencies for each head, `[H, r/2]`; needs `learnable` and
        `num_heads`.

    Raises:
      ValueError: for options that leave no even number of dimensions to rotate, shares outside
        (0, 1], or one of `per_head` and `num_heads` without the other.
    """
    w = frequencies(head_size, base, fraction, proportional)
    if per_head and not learnable:
        raise ValueError(
            "per_head=True needs learnable=True: fixed frequencies are the same in all heads."
        )
    check_per_head(num_heads, per_head)
    rotation = "q_i → R(ω i) q_i, k_j → R(ω j) k_j"
    metadata = Metadata(
        formula=f"{rotation}, ω_m = {base:g}^(−2m/r)",
        source="Su et al. 2021, eqs. 14–16",
        invariant=True,
    )
    if not learnable:
        return fixed_rotary(w, layout, metadata)
    start = np.tile(w, (num_heads, 1)) if num_heads else w
    metadata = metadata.replace(
        formula=f"{rotation}, ω free", parameters="H·r/2" if per_head else "r/2"
    )
    part = rotary(lambda params: params["frequencies"], w.size, layout, metadata)
    return part.replace(
        init=lambda rng: {"frequencies": jnp.array(start)},
        traits=Traits(frequency_params=("frequencies",)),
    )


def rotary(
    frequencies: Callable[[Params], jax.Array],
    count: int,
    layout: Layout,
    metadata: Metadata,
    *,
    scale: float = 1.0,
    by_length: Callable[[Array], Array] | None = None,
) -> Part:
    """Return the part that rotates queries and keys.

    Args:
      frequencies: `params -> [F]` or `[#H, F]`; those of short inputs, where there is `by_length`.
      count: Number F of frequencies.
      layout: which dimensions make a pair.
      metadata: what is known of it before its rotations.
      scale: c, which multiplies sines and cosines of queries and of keys.
      by_length: `n -> [#B, 1, F]`, the frequencies where they depend on the length n `[#B, 1, 1]`
        of the input. Those of all cached keys change then when the sequence grows.
    """

    def short_frequencies(params: Params) -> jax.Array:
        return jnp.atleast_2d(frequencies(params))

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        short = short_frequencies(params)
        w = short
        if by_length is not None:
            w = by_length(context.span()[..., None, None])
        if context.frequency_factors is not None:
            w = w * context.frequency_factors(short)
        i, j = context.arrays()
        q = rotate_heads(q, i, w, layout, scale)
        k = rotate_heads(k, j, w, layout, scale)
        return q, k, v

    return Part(
        map_qkv=map_qkv,
        traits=Traits(cacheable=by_length is None),
        metadata=metadata.replace(
            monotone=False,  # A sum of cosines of the offset, see `sinusoidal_absolute`.
            frequencies=short_frequencies,
            pairs=pairs(count, layout),
        ),
        params_key="rope",
    )


def fixed_rotary(
    w: Float[np.ndarray, " F"], layout: Layout, metadata: Metadata, scale: float = 1.0
) -> Part:
    """Return the `rotary` part with the frequencies `w`, for any parameters and input."""
    return rotary(lambda _: jnp.array(w), w.size, layout, metadata, scale=scale)


def check_per_head(num_heads: int | None, per_head: bool) -> None:
    """Raise a ValueError for one of `num_heads` and `per_head` without the other."""
    if per_head != (num_heads is not None):
        raise ValueError(
            f"num_heads and per_head=True need each other, got num_heads={num_heads}, "
            f"per_head={per_head}."
        )


def frequencies(
    head_size: int, base: float, fraction: float = 1.0, proportional: float = 1.0
) -> Float[np.ndarray, " F"]:
    """Return the fixed frequencies of a head, float64; see `rope` for arguments and errors."""
    for name, share in (("fraction", fraction), ("proportional", proportional)):
        if not 0 < share <= 1:
            raise ValueError(
                f"{name} must be a share of a head's dimensions in (0, 1], got {share}."
            )
    dims = int(head_size * fraction)
    if dims < 2 or dims % 2:
        raise ValueError(
            f"Rotations need an even number of dimensions, got {dims} (fraction={fraction} of "
            f"head_size={head_size}). Use fraction={max(2, dims - dims % 2) / head_size:g}."
        )
    w = default_frequencies(dims, base, np.float64)
    w[int(proportional * dims // 2) :] = 0
    return w


def rotate_heads(
    x: Float[Array, "B L H d"],
    positions: Real[Array, "*P"],
    frequencies: Float[Array, "*R #H F"],
    layout: Layout = "half",
    scale: float = 1.0,
) -> Float[jax.Array, "B L H d"]:
    """Return c R(ω · position) x: the first 2F dimensions are rotated, see `rotate_by`.

    Args:
      x: queries or keys.
      positions: `[L]` or `[B, L]`, integer or real.
      frequencies: ω, radians per position: `[#H, F]`, or `[B, #H, F]` for rows of their own.
      layout: which dimensions make a pair.
      scale: Factor c of the sines and cosines.
    """
    if frequencies.ndim == 3:
        rows = jnp.broadcast_to(jnp.asarray(positions), x.shape[:2])
        w = jnp.broadcast_to(frequencies, (x.shape[0], *frequencies.shape[1:]))
        angle = jax.vmap(angles)(rows, w)
    else:
        angle = angles(positions, frequencies)  # [#B, L, #H, F]
    return rotate_by(x, angle, layout, scale)


def convert_layout(
    kernel: Float[Array, "*B d"], to: Layout, *, fraction: float = 1.0
) -> Float[jax.Array, "*B d"]:
    """Return a projection of queries or keys for the other layout.

    Dimensions of a head are reordered, so that logits with the layout `to` are what they were with
    the other one. Both queries and keys need it; values do not.

    Args:
      kernel: the projection `[D, H, d]`, or its bias `[H, d]`.
      to: the layout that the result is for; `kernel` is for the other one.
      fraction: as in `rope`.
    """
    size = kernel.shape[-1]
    dims = int(size * fraction)
    unfolded = {"interleaved": (2, dims // 2), "half": (dims // 2, 2)}[to]
    rotated = np.arange(dims).reshape(unfolded).T.reshape(-1)
    unrotated = np.arange(dims, size)
    return jnp.asarray(kernel)[..., np.append(rotated, unrotated)]


def with_factors(
    encoding: PositionEncoding, factors: FrequencyFactors
) -> PositionEncoding:
    """Return `encoding` with every frequency ω of its rotations multiplied by a factor.

    Its rotations are those of parts with `Metadata.pairs`. Parameters stay as they are. A factor of
    0 removes position from a pair of dimensions and keeps its content. Factors may be traced.
    Changed parts have no `Metadata`, so they cannot be measured.

    Args:
      encoding: a position encoding, with or without rotations.
      factors: `ω -> factors`, both `[#H, F]`.
    """

    def change(part: Part) -> Part:
        if part.metadata is None or not part.metadata.pairs:
            return part
        return with_part_factors(part, lambda params: factors).replace(metadata=None)

    return map_parts(change, encoding)


def no_rotation(wrapper: str, part: Part) -> ValueError:
    """Return the error of a wrapper whose encoding does not rotate pairs of dimensions."""
    return ValueError(
        f"{wrapper} takes an encoding that rotates pairs of dimensions, such as rope, rope_yarn or "
        f"rope_slice; got {part.name}."
    )


def with_part_factors(
    part: Part, factors: Callable[[Params], FrequencyFactors]
) -> Part:
    """Return `part` with every frequency of its rotations multiplied by a factor, see
    `with_factors`, that may depend on its parameters."""
    inner_map_qkv = part.map_qkv
    inner_map_output = part.map_output
    assert inner_map_qkv

    def with_these_factors(params: Params, context: HookContext) -> HookContext:
        inner = factors(params)
        outer = context.frequency_factors

        def product(w: Array) -> Array:
            return inner(w) if outer is None else inner(w) * outer(inner(w) * w)

        return context.replace(frequency_factors=product)

    def map_qkv(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        return inner_map_qkv(params, q, k, v, with_these_factors(params, context))

    def map_output(params: Params, o: Array, context: HookContext) -> jax.Array:
        assert inner_map_output
        return inner_map_output(params, o, with_these_factors(params, context))

    return part.replace(
        map_qkv=map_qkv, map_output=map_output if inner_map_output else None
    )
