"""FLOATER: position vectors are the path of a learned differential equation.

Liu et al. 2020, "Learning to encode position for transformer with continuous dynamical model",
arXiv 2003.09229.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.common.errors import check_at_least, check_positive
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.absolute.position_vectors import absolute
from pe_jax.encodings.part import Metadata, Params, Part, Traits, normal_init
from pe_jax.encodings.registry import register_encoding
from pe_jax.encodings.tables import look_up


@register_encoding
def floater(
    *,
    hidden_size: int,
    max_length: int,
    step: float = 0.01,
    width: int | None = None,
    stddev: float = 0.02,
) -> Part:
    """Flow-based encoder of positions: position vectors are the path of a learned dynamical system.

        dp/dτ = h(τ, p),    P(x) = p(x·Δ),    h(τ, p) = W_2 [relu(W_1 [p, τ] + b_1), τ] + b_2

    with p(0) free (Liu et al. 2020, arXiv 2003.09229, eq. 7). The number of parameters does not
    depend on the length: `max_length` is only how far the path is computed, and a model built for
    more positions has the same first ones.

    The path is solved by one Runge-Kutta step of order 4 for each position. (The authors' code
    takes five; the result is the same to 1e-6.) Each step starts from the one before, so all
    positions take `max_length` steps in sequence, which is slow on accelerators.

    The paper adds vectors in every block, each with its own start and one network for all;
    `per_layer(floater)` has a network each too.

    Params: `{"start": [D], "hidden": {"kernel": [D + 1, width], "bias": [width]}, "out": {"kernel":
    [width + 1, D], "bias": [D]}}`, drawn from a normal of `stddev`, biases zeros.

    Args:
      step: Δ, 0.01 in the authors' code.
      width: of the hidden layer; default D, as there.

    Raises:
      ValueError: for a width below 1, or a step that is not positive; at the input, for positions
        outside 0 .. max_length - 1 (traced ones give NaN).
    """
    if width is None:
        width = hidden_size
    check_at_least(1, width=width)
    check_positive(step=step)

    draw = normal_init(
        stddev,
        start=(hidden_size,),
        hidden=(hidden_size + 1, width),
        out=(width + 1, hidden_size),
    )

    def init(rng: jax.Array) -> Params:
        drawn = draw(rng)
        return {
            "start": drawn["start"],
            "hidden": {"kernel": drawn["hidden"], "bias": jnp.zeros(width)},
            "out": {"kernel": drawn["out"], "bias": jnp.zeros(hidden_size)},
        }

    def path(params: Params) -> Float[Array, "L D"]:
        """P(x) for x = 0 .. max_length - 1."""

        def layer(layer_params: Params, x: Array, t: Array) -> jax.Array:
            return jnp.append(x, t) @ layer_params["kernel"] + layer_params["bias"]

        def h(t: Array, p: Array) -> jax.Array:
            units = jax.nn.relu(layer(params["hidden"], p, t))
            return layer(params["out"], units, t)

        def runge_kutta_step(p: Array, t: Array) -> tuple[Array, Array]:
            k1 = h(t, p)
            k2 = h(t + step / 2, p + step / 2 * k1)
            k3 = h(t + step / 2, p + step / 2 * k2)
            k4 = h(t + step, p + step * k3)
            return p + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4), p

        times = step * jnp.arange(max_length, dtype=params["start"].dtype)
        _, vectors = jax.lax.scan(runge_kutta_step, params["start"], times)
        return vectors

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        is_concrete = not isinstance(x, jax.core.Tracer) and x.size
        if is_concrete and not 0 <= np.min(x) <= np.max(x) < max_length:
            raise ValueError(
                f"floater was built for max_length={max_length}, got positions {np.min(x)} to "
                f"{np.max(x)}. Build it with a greater max_length and the same parameters."
            )
        return look_up(path(params), x)

    metadata = Metadata(
        formula="p(xΔ), dp/dτ = h(τ, p)",
        source="Liu et al. 2020, eq. 7",
        parameters="2·(D + 1)·width + 3·D",
    )
    return absolute(vectors, metadata, init=init, traits=Traits(max_length=max_length))
