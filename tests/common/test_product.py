"""`product`: matrix products in float32, whatever the dtype of the operands."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.compiled import value_and_pullback

from pe_jax.common.product import product

SIZES = dict(b=2, h=3, q=5, k=4, d=6, m=7)


@functools.cache
def einsum_and_gradients(spec):
    """The product in float32 and its gradients, one program for the inputs of every dtype."""

    def run(a, b, to):
        out, pull_back = jax.vjp(functools.partial(jnp.einsum, spec), a, b)
        return out, pull_back(to)

    return jax.jit(run)


@pytest.mark.parametrize(
    "spec",
    [
        "bqhd,bkhd->bhqk",
        "bhqk,bkhd->bqhd",
        "bhqk,qkd->bqhd",  # The axes of one operand are not adjacent in the result.
        "bqhd,md->bhqm",
        "qd,kd->kq",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_value_and_gradients_are_those_of_einsum(spec, dtype):
    rng = np.random.default_rng(0)
    terms = spec.replace("->", ",").split(",")
    a, b, to = (
        jnp.asarray(rng.normal(size=[SIZES[axis] for axis in term]), dtype)
        for term in terms
    )
    a32, b32, to = (x.astype(jnp.float32) for x in (a, b, to))
    out, grads = value_and_pullback(lambda *args: product(spec, *args), (a, b), to)
    expected, expected_grads = einsum_and_gradients(spec)(a32, b32, to)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    for grad, wanted in zip(grads, expected_grads, strict=True):
        assert grad.dtype == dtype
        tolerance = (
            1e-5 if dtype == "float32" else 1e-2
        )  # Gradients are rounded to bfloat16.
        np.testing.assert_allclose(
            grad.astype(jnp.float32), wanted, rtol=tolerance, atol=tolerance
        )


def test_derivatives_of_every_kind_and_vmap():
    """Forward mode, second derivatives, and either operand mapped, as of einsum."""
    rng = np.random.default_rng(0)
    a, b = (
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((3, 2, 4), (3, 5, 4))
    )
    loss = lambda dot, a, b: (dot(a, b) ** 3).sum()
    ours = functools.partial(loss, functools.partial(product, "qd,kd->qk"))
    formula = functools.partial(loss, lambda a, b: jnp.einsum("qd,kd->qk", a, b))

    def numbers(loss, a, b):
        slope = jax.jvp(loss, (a[0], b[0]), (a[1], b[1]))
        bend = jax.jvp(jax.grad(loss, argnums=(0, 1)), (a[0], b[0]), (a[1], b[1]))
        mapped = [
            jax.vmap(jax.value_and_grad(loss), axes)(
                *(
                    x if axis == 0 else x[0]
                    for x, axis in zip((a, b), axes, strict=True)
                )
            )
            for axes in ((0, None), (None, 0), (0, 0))
        ]
        return slope, bend, mapped

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-3),
        jax.jit(functools.partial(numbers, ours))(a, b),
        jax.jit(functools.partial(numbers, formula))(a, b),
    )
    constant = np.asarray(b[0])
    mapped = jax.jit(jax.vmap(lambda a: product("qd,kd->qk", a, constant)))
    np.testing.assert_allclose(mapped(a), a @ constant.T, rtol=1e-5)


@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn"])
def test_gradients_of_kernels_on_a_cpu_with_bfloat16_units(spec, monkeypatch):
    """Each transposes an operand in a loop, also in a scan with jax.checkpoint, under vmap and over
    devices, and is what it is without."""
    rng = np.random.default_rng(0)
    x, to = (jnp.asarray(rng.normal(size=(8, 6)), jnp.bfloat16) for _ in range(2))
    kernels = jnp.asarray(rng.normal(size=(2, 2, 6, 6)), jnp.bfloat16)

    def loss(kernels, x):
        layer = jax.checkpoint(lambda x, w: (product(spec, x, w).astype(x.dtype), None))
        out, _ = jax.lax.scan(layer, x, kernels)
        return (out * to).astype(jnp.float32).sum()

    grad = jax.grad(loss, argnums=(0, 1))
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("rows"))
    for function, args in (
        (grad, (kernels[0], x)),
        (grad, (kernels[0], jax.device_put(x, rows))),
        (jax.vmap(grad, (0, None)), (kernels, x)),
    ):
        grads, loops = [], []
        for has in (True, False):
            monkeypatch.setattr(
                "pe_jax.common.product.multiplies_bfloat16", lambda has=has: has
            )
            anew = functools.partial(
                function
            )  # Another function, so JAX traces it again.
            compiled = jax.jit(anew).lower(*args).compile()
            grads.append(compiled(*args))
            loops.append(compiled.as_text().count(" while("))
        assert loops[0] > loops[1]
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0.02, atol=0.05), *grads
        )
