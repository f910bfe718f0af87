"""Position vectors at the input: scales and starts."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.small_encodings import SMALL, build_clipped, embedded

from pe_jax import encodings


def view(encoding):
    """How the one part of `encoding` is measured."""
    (part,) = encoding.parts
    return part.metadata


def test_scale_of_absolute_sinusoids():
    for make in (
        encodings.sinusoidal_absolute,
        encodings.learnable_sinusoidal_absolute,
    ):
        small, full = make(hidden_size=8, scale=0.5), make(hidden_size=8)
        params = full.init(jax.random.key(0))
        x = range(5)
        half = embedded(full, params, x) / 2
        np.testing.assert_allclose(embedded(small, params, x), half, rtol=1e-6)
        seen = view(small).vectors(params.get(small.parts[0].key, {}), np.arange(5))
        np.testing.assert_array_equal(seen, embedded(small, params, x))
    named = encodings.from_name("sinusoidal_absolute(scale=0.5)", **SMALL)
    expected = embedded(encodings.sinusoidal_absolute(hidden_size=8, scale=0.5), {}, x)
    np.testing.assert_array_equal(embedded(named, {}, x), expected)


def test_learnable_sinusoids_start_at_the_fixed_ones():
    for kind in ("absolute", "relative"):
        fixed, learnable = (
            build_clipped(f"sinusoidal_{kind}"),
            build_clipped(f"learnable_sinusoidal_{kind}"),
        )
        x = jnp.arange(-2, 3)
        (start,) = learnable.init(jax.random.key(0)).values()
        np.testing.assert_array_equal(
            view(fixed).vectors({}, x), view(learnable).vectors(start, x)
        )
