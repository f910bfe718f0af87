"""Learnable Fourier features: sinusoids of learnable frequencies, mixed by a small network.

Li et al. 2021, "Learnable Fourier features for multi-dimensional spatial positional encoding",
arXiv 2106.02795.
"""

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

    r_x·r_y = Σ cos((x - y) w_f) / F depends on the difference alone. It starts near a Gaussian
    kernel exp(-|x - y|² / 2γ²) / 2; the network is free to leave it. For a position of several axes
    each frequency is a vector, so diagonals count as rows and columns do (all axes are one group
    here).

    Params: `{"frequencies": [A, F/2], "hidden": {"kernel": [F, width], "bias": [width]}, "out":
    {"kernel": [width, D], "bias": [D]}}`: frequencies, radians per position, from a normal of 1/γ,
    the hidden kernel of 1, the other of `stddev`; biases zeros.

    Args:
      features: F, even; default D.
      width: of the hidden layer.
      gamma: γ, the distance at which positions become dissimilar before training. The paper draws
        from N(0, γ^-2); some code that follows it takes γ^-2 for the standard deviation.
      axes: A; positions are `[L]`, or `[L, A]` for more than one.

    Raises:
      ValueError: for an odd number of features, or fewer than 2; a gamma that is not positive; or
        fewer than 1 axis.
    """
    if features is None:
        features = hidden_size
    if features < 2 or features % 2 or axes < 1 or not gamma > 0:
        raise ValueError(
            "features must be even (sines and cosines), gamma positive and axes at least 1, got "
            f"features={features}, gamma={gamma}, axes={axes}."
        )

    def init(rng: jax.Array) -> Params:
        for_frequencies, for_hidden, for_out = jax.random.split(rng, 3)
        frequencies = jax.random.normal(for_frequencies, (axes, features // 2)) / gamma
        hidden = jax.random.normal(for_hidden, (features, width))
        out = stddev * jax.random.normal(for_out, (width, hidden_size))
        return {
            "frequencies": frequencies,
            "hidden": {"kernel": hidden, "bias": jnp.zeros(width)},
            "out": {"kernel": out, "bias": jnp.zeros(hidden_size)},
        }

    def vectors(params: Params, x: Real[Array, "..."]) -> Float[Array, "... D"]:
        coordinates = [x]
        if axes > 1:
            coordinates = [x[..., axis] for axis in range(axes)]
        angle = sum(map(angles, coordinates, params["frequencies"]))  # [..., F/2]
        pairs = [jnp.cos(angle), jnp.sin(angle)]
        r = jnp.concatenate(pairs, axis=-1) / math.sqrt(features)
        hidden = r @ params["hidden"]["kernel"] + params["hidden"]["bias"]
        units = jax.nn.gelu(hidden, approximate=False)
        return units @ params["out"]["kernel"] + params["out"]["bias"]

    metadata = Metadata(
        formula="MLP([cos xW, sin xW] / √F), W free",
        source="Li et al. 2021 (Fourier features), algorithm 1",
        parameters="A·F/2 + (F + 1)·width + (width + 1)·D",
        # No `frequencies`: once the network has mixed them, these are sinusoids no more.
        monotone=False,
    )
    traits = Traits(frequency_params=("frequencies",), axes=axes)
    return absolute(vectors, metadata, init=init, traits=traits)
