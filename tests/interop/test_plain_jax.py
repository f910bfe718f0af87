"""Functions rewritten to JAX's own primitives give the same values."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pe_jax.attention.relative_shift import relative_shift, relative_shift_p
from pe_jax.common.product import product, product_p
from pe_jax.encodings.rotary.rotation import rotate_by
from pe_jax.interop.plain_jax import plain

X = jax.random.normal(jax.random.key(0), (4, 5))


def rotated(x):
    return rotate_by(x[None, :, None, :4], x[:, None, :2])


FUNCTIONS = {
    "product": lambda x: product("ab,cb->ac", x, x),
    "relative shift": lambda x: relative_shift(2, 3, x, 1),
    "platform": rotated,
    "scan": lambda x: lax.scan(
        lambda c, row: (c + product("ab,b->a", X, row), c.sum()), X[:, 0], x
    ),
    "call": jax.jit(lambda x: jax.checkpoint(jnp.tanh)(x) + jax.nn.relu(x)),
    "cummax": lambda x: (lax.cummax(x, 1), lax.cummax(x, 0, reverse=True)),
    "pad": lambda x: jnp.pad(x, ((1, 0), (2, 3)), constant_values=7.0),
    "remainder": lambda x: (
        lax.rem(100 * x, jnp.full(x.shape, 0.5)),
        lax.rem((9 * x).astype(int), jnp.full(x.shape, 4)),
    ),
}


def primitives(jaxpr):
    names = {equation.primitive.name for equation in jaxpr.eqns}
    return names.union(*(primitives(sub) for sub in jax.extend.core.subjaxprs(jaxpr)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_values_are_the_same(name):
    function = lambda x: jax.tree.leaves(FUNCTIONS[name](x))
    rewritten = plain(function, X)
    for got, want in zip(rewritten(X), function(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    used = primitives(jax.make_jaxpr(rewritten)(X).jaxpr)
    assert not used & {
        product_p.name,
        relative_shift_p.name,
        "jit",
        "cond",
        "platform_index",
        "cummax",
        "pad",
        "rem",
    }


def test_what_depends_on_no_input_is_computed():
    program = jax.make_jaxpr(
        plain(lambda x: [x + jnp.linalg.inv(jnp.eye(5)).sum(0)], X)
    )(X)
    assert primitives(program.jaxpr) <= {"broadcast_in_dim", "reshape", "add"}


def test_a_symbolic_length():
    (length,) = jax.export.symbolic_shape("n", constraints=["n >= 2"])
    inputs = jax.ShapeDtypeStruct((length, 5), jnp.float32)
    rewritten = plain(lambda x: [relative_shift(2, 3, x, 0), lax.cummax(x, 0)], inputs)
    exported = jax.export.export(jax.jit(rewritten))(inputs)
    for got, want in zip(
        exported.call(X), [relative_shift(2, 3, X, 0), lax.cummax(X, 0)], strict=True
    ):
        np.testing.assert_array_equal(got, want)
