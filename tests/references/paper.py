"""The encodings of "On Position Embeddings in BERT" (Wang et al. 2021), equation 4 and table 1."""

import jax.numpy as jnp
import numpy as np

from pe_jax.testing import Reference
from pe_jax.testing.reference import joined


def sinusoid(frequencies, x):
    """[sin(w_0 x), cos(w_0 x), sin(w_1 x), ...], with the fixed w_i = 10000^(-2i/d) of table 1."""
    angle = jnp.asarray(frequencies) * x
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(-1)


def fixed(dim, base=10_000.0):
    return np.array([base ** (-2 * i / dim) for i in range(dim // 2)])


def added(vector, scale=1.0):
    """Equation 4, left: x + P(position)."""
    return Reference(
        embed=lambda params, x, position, _: (
            x + scale * vector(params, position, x.shape[-1])
        )
    )


def relative(
    vector, clip=64, of_key=lambda params: params, of_value=lambda params: params
):
    """Equation 4, right: q·(k + P(j - i)) / sqrt(d), and v + P(j - i)."""

    def p(params, pair, dim):
        offset = pair.j - pair.i
        return vector(
            params, offset if clip is None else jnp.clip(offset, -clip, clip), dim
        )

    def score(params, pair):
        dim = len(pair.q)
        return pair.q @ (pair.k + p(of_key(params), pair, dim)) / np.sqrt(dim)

    return Reference(
        score=score,
        value=lambda params, pair: pair.v + p(of_value(params), pair, len(pair.v)),
    )


def table_row(first):
    """P(x) is a row of a table whose first is that of x = first."""
    return lambda params, x, dim: params["table"][(x - first).astype(int)]


def fixed_vector(base=10_000.0):
    return lambda params, x, dim: sinusoid(fixed(dim, base), x)


def learned_vector(params, x, dim):
    return sinusoid(params["frequencies"], x)


def nezha_vector(clip):
    """Row m + clip of a sinusoid, as the authors' code has it."""
    return lambda params, x, dim: sinusoid(fixed(dim), x + clip)


KEY, VALUE = (lambda params: params["key"]), (lambda params: params["value"])

SINGLE = {
    "none": Reference(),
    "learned_absolute": added(table_row(0)),
    "sinusoidal_absolute": added(fixed_vector()),
    "learnable_sinusoidal_absolute": added(learned_vector),
    "learned_relative": relative(table_row(-64), 64),
    "sinusoidal_relative": relative(fixed_vector()),
    "learnable_sinusoidal_relative": relative(learned_vector),
}
ABSOLUTE = ("learned_absolute", "learnable_sinusoidal_absolute")
RELATIVE = ("learned_relative", "sinusoidal_relative", "learnable_sinusoidal_relative")

REFERENCES = {
    **SINGLE,
    **{
        f"{a}+{r}": joined({a: SINGLE[a], r: SINGLE[r]})
        for a in ABSOLUTE
        for r in RELATIVE
    },
    "sinusoidal_absolute(base=500, scale=0.5)": added(fixed_vector(500.0), 0.5),
    "learned_relative(max_distance=3)": relative(table_row(-3), 3),
    "learned_relative(max_distance=3, separate=True)": relative(
        table_row(-3), 3, KEY, VALUE
    ),
    "nezha": relative(nezha_vector(64)),
    "nezha(max_distance=3)": relative(nezha_vector(3), 3),
    "sinusoidal_relative(max_distance=None, base=100)": relative(
        fixed_vector(100.0), None
    ),
    "learnable_sinusoidal_relative(max_distance=3, separate=True)": relative(
        learned_vector, 3, KEY, VALUE
    ),
    "learnable_sinusoidal_relative(max_distance=None)": relative(learned_vector, None),
}
