"""Learnable Fourier features: sinusoids of learnable frequencies, mixed by a small network."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.absolute.position_vectors import absolute
from pe_jax.encodings.part import Metadata, Params, Part, Traits
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.sinusoid import angles


@register_encoding
def fourier_features(
    *,
    hidden_size: int,
    features: int | None = None,
    width: int = 32,
    gamma: float = 100.0,
    axes: int = 1,
    stddev: float = 0.02,
) -> Part:
    """Learnable Fourier features (Li et al. 2021, arXiv 2106.02795, algorithm 1).

        r_x = [cos x W, sin x W] / sqrt(F)
        P(x) = GELU(r_x W_1 + b_1) W_2 + b_2

    r_x·r_y starts near a Gaussian kernel exp(-|x - y|² / 2γ²) / 2; the network is free to leave it.
    For a position of several axes each frequency is a vector (all axes are one group here).

    Params: `{"frequencies": [A, F/2], "hidden": {"kernel": [F, width], "bias": [width]}, "out":
    {"kernel": [width, D], "bias": [D]}}`: frequencies, radians per position, from a normal of 1/γ,
    the hidden kernel of 1, the other of `stddev`; biases zeros.

    Args:
      features: F, even; default D.
      width: of the hidden layer.
      gamma: γ, the distance at which positions become dissimilar before training. The paper draws
        from N(0, γ^-2); some code that follows it takes γ^-2 for the standard deviation.
      axes: A; positions are `[L]`, or `[L, A]` for more than one.
    """
    count = hidden_size if features is None else features
    if count < 2 or count % 2 or axes < 1 or not gamma > 0:
        raise ValueError(
            "features must be even (sines and cosines), gamma positive and axes at least 1, got "
            f"features={count}, gamma={gamma}, axes={axes}."
        )

    def init(rng: jax.Array) -> Params:
        shapes = (axes, count // 2), (count, width), (width, hidden_size)
        w, hidden, out = map(jax.random.normal, jax.random.split(rng, 3), shapes)
        return {
            "frequencies": w / gamma,
            "hidden": {"kernel": hidden, "bias": jnp.zeros(width)},
            "out": {"kernel": stddev * out, "bias": jnp.zeros(hidden_size)},
        }

    def vectors(params: Params, x: Real[Array, "..."]) -> Float[Array, "... D"]:
        by_axis = [x] if axes == 1 else [x[..., axis] for axis in range(axes)]
        angle = sum(map(angles, by_axis, params["frequencies"]))
        r = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1) / math.sqrt(
            count
        )
        hidden, out = params["hidden"], params["out"]
        units = jax.nn.gelu(r @ hidden["kernel"] + hidden["bias"], approximate=False)
        return units @ out["kernel"] + out["bias"]

    metadata = Metadata(
        formula="MLP([cos xW, sin xW] / √F), W free",
        source="Li et al. 2021 (Fourier features), algorithm 1",
        parameters="A·F/2 + (F + 1)·width + (width + 1)·D",
        monotone=False,
    )
    traits = Traits(frequency_params=("frequencies",), axes=axes)
    return absolute(vectors, metadata, init=init, traits=traits)
