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

Frequencies = Callable[[Params, HookContext], jax.Array]
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
    """Rotary encoding with ω_m = base^(-2m/r) (Su et al. 2021, eqs. 14-16).

    Logits depend on positions only through j - i.

    Args:
      head_size: d.
      num_heads: H, for `per_head` only.
      base: of the frequencies.
      layout: which dimensions make a pair, see `Layout` and `convert_layout`.
      fraction: only the first r = int(fraction·d) dimensions, r even, are rotated (GPT-NeoX).
      proportional: keep only the fastest int(proportional·r/2) frequencies and set the rest to 0;
        exponents still use all r dimensions (p-RoPE: Barbero et al. 2024; Gemma 4).
      learnable: params `{"frequencies": [r/2]}`, which start at the fixed ones.
      per_head: learn separate frequencies for each head, `[H, r/2]`; needs `learnable` and
        `num_heads`.
    """
    w = frequencies(head_size, base, fraction, proportional)
    if per_head and not learnable:
        raise ValueError(
            "per_head=True needs learnable=True: fixed frequencies are the same in all heads."
        )
    if per_head != (num_heads is not None):
        raise ValueError(
            f"num_heads and per_head=True need each other, got num_heads={num_heads}, "
            f"per_head={per_head}."
        )
    metadata = Metadata(
        formula="q_i → R(ω i) q_i, k_j → R(ω j) k_j, "
        + ("ω free" if learnable else f"ω_m = {base:g}^(−2m/r)"),
        source="Su et al. 2021, eqs. 14–16",
        parameters="H·r/2" if per_head else "r/2" if learnable else "0",
        invariant=True,
    )
    if not learnable:
        return rotary(lambda params, context: jnp.array(w), w.size, layout, metadata)
    start = np.tile(w, (num_heads, 1)) if num_heads else w
    init = lambda rng: {"frequencies": jnp.array(start)}
    part = rotary(
        lambda params, context: params["frequencies"], w.size, layout, metadata
    )
    return part.replace(init=init, traits=Traits(frequency_params=("frequencies",)))


def rotary(
    frequencies: Frequencies,
    count: int,
    layout: Layout,
    metadata: Metadata,
    *,
    scale: float = 1.0,
    short: np.ndarray | None = None,
) -> Part:
    """The part that rotates queries and keys.

    Args:
      frequencies: `(params, HookContext) -> [F]`, `[#H, F]` or `[B, #H, F]`.
      count: F.
      scale: c, which multiplies sines and cosines of queries and of keys.
      short: `[F]`, frequencies of short inputs, if `frequencies` depends on the context.
    """

    def heads(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        w = jnp.atleast_2d(frequencies(params, context))
        if context.frequency_factors is not None:
            w = w * context.frequency_factors(without_context(params))
        i, j = context.arrays()
        return (
            rotate_heads(q, i, w, layout, scale),
            rotate_heads(k, j, w, layout, scale),
            v,
        )

    def without_context(params: Params) -> jax.Array:
        w = (
            frequencies(params, HookContext(positions_q=range(0), positions_k=range(0)))
            if short is None
            else jnp.array(short)
        )
        return jnp.atleast_2d(w)

    return Part(
        map_qkv=heads,
        metadata=metadata.replace(
            monotone=False,  # A sum of cosines of the offset, see `sinusoidal_absolute`.
            frequencies=without_context,
            pairs=pairs(count, layout),
        ),
        params_key="rope",
    )


def frequencies(
    head_size: int, base: float, fraction: float = 1.0, proportional: float = 1.0
) -> Float[np.ndarray, " F"]:
    """Fixed frequencies of a head, float64; see `rope` for the arguments."""
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
    """c R(ω · position) x, for the first 2F dimensions; the others stay as they are.

    Angles and the rotation are float32, float64 where `x` is; the result has the dtype of `x`.

    Args:
      positions: `[L]` or `[B, L]`, integer or real.
      frequencies: ω, radians per position: `[#H, F]`, or `[B, #H, F]` for rows of their own.
      scale: c.
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
    """A projection `[D, H, d]`, or its bias `[H, d]`, of queries or keys for the other layout.

    Dimensions of a head are reordered, so that logits with the layout `to` are what they were with
    the other one. Both queries and keys need it; values do not.

    Args:
      to: the layout that the result is for; `kernel` is for the other one.
      fraction: as in `rope`.
    """
    dims = int(kernel.shape[-1] * fraction)
    unfolded = {"interleaved": (2, dims // 2), "half": (dims // 2, 2)}[to]
    order = np.arange(dims).reshape(unfolded).T.reshape(-1)
    return jnp.asarray(kernel)[..., np.append(order, np.arange(dims, kernel.shape[-1]))]


def with_factors(
    encoding: PositionEncoding, factors: FrequencyFactors
) -> PositionEncoding:
    """`encoding` with every frequency ω of its rotations (`Metadata.pairs`) multiplied by a factor.

    Parameters stay those of `encoding`. A factor of 0 removes position from a pair of dimensions
    and keeps its content. Factors may be traced. Changed parts have no `Metadata`, so they cannot
    be measured.

    Args:
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
    """`part` with every frequency of its rotations multiplied by a factor, see `with_factors`, that
    may depend on its parameters."""
    map_qkv, map_output = part.map_qkv, part.map_output
    assert map_qkv

    def changed(params: Params, context: HookContext) -> HookContext:
        inner, outer = factors(params), context.frequency_factors
        if outer is None:
            return context.replace(frequency_factors=inner)
        return context.replace(
            frequency_factors=lambda w: inner(w) * outer(inner(w) * w)
        )

    def heads(
        params: Params, q: Array, k: Array, v: Array, context: HookContext
    ) -> QKV:
        return map_qkv(params, q, k, v, changed(params, context))

    def output(params: Params, o: Array, context: HookContext) -> jax.Array:
        assert map_output
        return map_output(params, o, changed(params, context))

    return part.replace(map_qkv=heads, map_output=map_output and output)
