"""FLOATER: position vectors are the path of a learned differential equation."""

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
    """Flow-based encoder of positions (Liu et al. 2020, arXiv 2003.09229, eq. 7).

        dp/dτ = h(τ, p),    P(x) = p(x·Δ),    h(τ, p) = W_2 [relu(W_1 [p, τ] + b_1), τ] + b_2

    with p(0) free. `max_length` is only how far the path is computed, by one Runge-Kutta step of
    order 4 for each position (the authors' code takes five, the same to 1e-6), one after the other.
    The paper adds vectors in every block, each with its own start and one network for all;
    `per_layer(floater)` has a network each too.

    Params: `{"start": [D], "hidden": {"kernel": [D + 1, width], "bias": [width]}, "out": {"kernel":
    [width + 1, D], "bias": [D]}}`, drawn from a normal of `stddev`, biases zeros.

    Args:
      step: Δ, 0.01 in the authors' code.
      width: of the hidden layer; default D, as there.
    """
    size = hidden_size if width is None else width
    check_at_least(1, width=size)
    check_positive(step=step)

    kernels = {"hidden": (hidden_size + 1, size), "out": (size + 1, hidden_size)}
    draw = normal_init(stddev, start=(hidden_size,), **kernels)

    def init(rng: jax.Array) -> Params:
        drawn = draw(rng)
        layers = {
            x: {"kernel": drawn[x], "bias": jnp.zeros(kernels[x][1])} for x in kernels
        }
        return {"start": drawn["start"], **layers}

    def path(params: Params) -> Float[Array, "L D"]:
        """P(x) for x = 0 .. max_length - 1."""

        def layer(name: str, x: Array, t: Array) -> jax.Array:
            return jnp.append(x, t) @ params[name]["kernel"] + params[name]["bias"]

        def h(t: Array, p: Array) -> jax.Array:
            return layer("out", jax.nn.relu(layer("hidden", p, t)), t)

        def follow(p: Array, t: Array) -> tuple[Array, Array]:
            a = h(t, p)
            b = h(t + step / 2, p + step / 2 * a)
            c = h(t + step / 2, p + step / 2 * b)
            d = h(t + step, p + step * c)
            return p + step / 6 * (a + 2 * b + 2 * c + d), p

        times = step * jnp.arange(max_length, dtype=params["start"].dtype)
        return jax.lax.scan(follow, params["start"], times)[1]

    def vectors(params: Params, x: Real[Array, "*B"]) -> Float[Array, "*B D"]:
        is_concrete = not isinstance(x, jax.core.Tracer) and x.size
        if is_concrete and not 0 <= np.min(x) <= np.max(x) < max_length:
            raise ValueError(
                f"floater was built for max_length={max_length}, got positions {np.min(x)} to "
                f"{np.max(x)}. Build it with a greater max_length and the same parameters."
            )
        return look_up(path(params), x)

    formula, parameters = "p(xΔ), dp/dτ = h(τ, p)", "2·(D + 1)·width + 3·D"
    metadata = Metadata(
        formula=formula, source="Liu et al. 2020, eq. 7", parameters=parameters
    )
    return absolute(vectors, metadata, init=init, traits=Traits(max_length=max_length))
