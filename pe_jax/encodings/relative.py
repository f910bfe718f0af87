"""Relative encodings: P(j - i) joins key j and value j as query i sees them (paper, eq. 4 right).

    logit_ij = q_i · (k_j + P(j - i)) / sqrt(d)        out_i = sum_j a_ij (v_j + P(j - i))

**The sign**: the offset is `position of the key - position of the query`, positive for keys to the
right of the query. (Eq. 4 writes P_{x-y} and leaves open which is which.) Offsets are clipped to
-clip .. clip, and one set of vectors of the head's size d serves all heads and layers (paper, A.3;
Shaw et al. 2018). The key's and the value's vectors are the same P; `separate=True` learns two.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.base import Params, PositionEncoding, no_parameters
from pe_jax.encodings.sinusoid import default_frequencies, rotate_pairs, sinusoid
from pe_jax.shapes import Array, Float, Int


def offsets(
    positions_q: Int[Array, "*B Lq"], positions_k: Int[Array, "*B Lk"]
) -> Int[Array, "*B Lq Lk"]:
    """Signed offsets j - i, positive where the key is to the right of the query."""
    return jnp.asarray(positions_k)[..., None, :] - jnp.asarray(positions_q)[..., :, None]


def learned_relative(dim: int, *, clip: int = 64, separate: bool = False) -> PositionEncoding:
    """One free vector per clipped offset (Shaw et al. 2018).

    Params: `{"table": [2 clip + 1, dim]}`, row `clip + offset`; with `separate`,
    `{"key": {...}, "value": {...}}`. Drawn by Glorot's rule, as Shaw et al. did: the table is added
    to keys and values, and with BERT's 0.02 it would hardly be seen beside them at first.
    """

    def init(key: jax.Array) -> Params:
        draw = jax.nn.initializers.glorot_uniform()
        return {"table": draw(key, (2 * clip + 1, dim), jnp.float32)}

    def vectors(params: Params, x: Int[Array, "*B"]) -> Float[Array, "*B d"]:
        return params["table"][jnp.clip(x, -clip, clip) + clip]

    def logits(params, q, k, positions_q, positions_k):
        del k
        p = vectors(params, offsets(positions_q, positions_k)).astype(q.dtype)  # [*B, Lq, Lk, d]
        return jnp.einsum("...qhd,...qkd->...hqk", q, p, preferred_element_type=jnp.float32)

    def values(params, weights, positions_q, positions_k):
        p = vectors(params, offsets(positions_q, positions_k)).astype(weights.dtype)
        return jnp.einsum("...hqk,...qkd->...qhd", weights, p)

    return _relative("learned_relative", init, logits, values, vectors, clip, separate)


def sinusoidal_relative(
    dim: int, *, clip: int | None = 64, base: float = 10_000.0
) -> PositionEncoding:
    """The fixed sinusoid of the signed, clipped offset (Wei et al. 2019); no parameters.

    `clip=None` leaves offsets unclipped.
    """
    frequencies = default_frequencies(dim, base)
    return _sinusoidal(
        "sinusoidal_relative", no_parameters, lambda _: jnp.array(frequencies), clip, False
    )


def learnable_sinusoidal_relative(
    dim: int, *, clip: int | None = 64, separate: bool = False, base: float = 10_000.0
) -> PositionEncoding:
    """The sinusoid of the signed, clipped offset with learnable frequencies (paper, section 3.2).

    Params: `{"frequencies": [dim/2]}` in radians per position, starting at the fixed ones; with
    `separate`, `{"key": {...}, "value": {...}}`. `clip=None` leaves offsets unclipped.
    """
    start = default_frequencies(dim, base)

    def init(key: jax.Array) -> Params:
        del key  # The start is the fixed sinusoid: nothing to draw.
        return {"frequencies": jnp.array(start)}

    return _sinusoidal(
        "learnable_sinusoidal_relative", init, lambda p: p["frequencies"], clip, separate
    )


def _sinusoidal(
    name: str,
    init: Callable[[jax.Array], Params],
    frequencies: Callable[[Params], jax.Array],
    clip: int | None,
    separate: bool,
) -> PositionEncoding:
    """Relative terms by rotation: exact, without an [Lq, Lk, d] array (see `rotate_pairs`).

    Clipping makes all keys farther than `clip` to one side share one vector, P(clip) or P(-clip):
    their part of the term is one number per query and side.
    """

    def vectors(params: Params, x: Int[Array, "*B"]) -> Float[Array, "*B d"]:
        x = jnp.asarray(x)
        return sinusoid(x if clip is None else jnp.clip(x, -clip, clip), frequencies(params))

    def beyond(positions_q, positions_k):
        """(right, left): where the key lies past the clip, or None if no key can."""
        concrete = not any(isinstance(p, jax.core.Tracer) for p in (positions_q, positions_k))
        if clip is None or (concrete and _spread(positions_q, positions_k) <= clip):
            return None
        off = offsets(positions_q, positions_k)[..., None, :, :]  # [*B, 1, Lq, Lk]
        return off > clip, off < -clip

    def far_vectors(params, dtype):
        ends = [] if clip is None else [clip, -clip]
        return vectors(params, jnp.array(ends)).astype(dtype)  # [2, d]: right, left

    def logits(params, q, k, positions_q, positions_k):
        del k
        w = frequencies(params)
        turned = rotate_pairs(q, jnp.asarray(positions_q)[..., None], w).astype(q.dtype)
        p = sinusoid(jnp.asarray(positions_k), w).astype(q.dtype)  # [*B, Lk, d]
        near = jnp.einsum("...qhd,...kd->...hqk", turned, p, preferred_element_type=jnp.float32)
        if (far := beyond(positions_q, positions_k)) is None:
            return near
        ends = jnp.einsum(
            "...qhd,sd->s...hq", q, far_vectors(params, q.dtype), preferred_element_type=jnp.float32
        )[..., None]  # [side, *B, H, Lq, 1]
        return jnp.where(far[0], ends[0], jnp.where(far[1], ends[1], near))

    def values(params, weights, positions_q, positions_k):
        w = frequencies(params)
        far = beyond(positions_q, positions_k)
        near = weights if far is None else jnp.where(far[0] | far[1], 0, weights)
        p = sinusoid(jnp.asarray(positions_k), w).astype(weights.dtype)
        summed = jnp.einsum("...hqk,...kd->...qhd", near, p)
        out = rotate_pairs(summed, -jnp.asarray(positions_q)[..., None], w)
        if far is not None:
            ends = far_vectors(params, out.dtype)
            mass = [jnp.where(side, weights, 0).sum(-1, dtype=out.dtype) for side in far]
            out += sum(jnp.einsum("...hq,d->...qhd", m, end) for m, end in zip(mass, ends))
        return out.astype(weights.dtype)

    return _relative(name, init, logits, values, vectors, clip, separate, frequencies)


def _spread(positions_q, positions_k) -> int:
    """The largest |offset| between concrete positions."""
    q, k = np.asarray(positions_q), np.asarray(positions_k)
    return int(max(k.max() - q.min(), q.max() - k.min())) if q.size and k.size else 0


def _relative(
    name, init, logits, values, vectors, clip, separate, frequencies=None
) -> PositionEncoding:
    if clip is not None and clip < 1:
        raise ValueError(f"clip is the largest offset told apart and must be >= 1, got {clip}.")
    if not separate:
        return PositionEncoding(
            name,
            "relative",
            init,
            logits=logits,
            values=values,
            vectors=vectors,
            frequencies=frequencies,
        )

    def init_both(key: jax.Array) -> Params:
        for_key, for_value = jax.random.split(key)
        return {"key": init(for_key), "value": init(for_value)}

    return PositionEncoding(
        name,
        "relative",
        init_both,
        logits=lambda params, *args: logits(params["key"], *args),
        values=lambda params, *args: values(params["value"], *args),
        vectors=lambda params, x: vectors(params["key"], x),
        frequencies=frequencies and (lambda params: frequencies(params["key"])),
    )
