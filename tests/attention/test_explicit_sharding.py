"""Encodings under meshes of explicit axes, where shardings are part of an array's type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pe_jax import encodings
from pe_jax.attention import attention, attention_weights, cached_attention, init_cache

B, L, H, d = 2, 3, 2, 8
SIZES = dict(hidden_size=H * d, head_size=d, num_heads=H, max_length=16)
HEADS = PartitionSpec("data", None, "model", None)
KERNEL = PartitionSpec(None, "model", None)


def explicit_mesh():
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


@pytest.fixture
def mesh():
    mesh = explicit_mesh()
    with jax.set_mesh(mesh):
        yield mesh


def draw(*shape):
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def loss(encoding, params, x, kernel):
    """A layer with the embedding of an encoding, and projections that are split by heads."""
    x = encodings.embed(
        x, encoding, params, encodings.Context(tokens=jnp.zeros((B, L), jnp.int32))
    )

    def project(x):
        return jnp.einsum("...d,dhe->...he", x, kernel)

    q = k = v = project(x)
    context = encodings.Context(x_q=x, x_k=x, projections=(project, project))
    acting = encoding.in_attention
    out = attention(q, k, v, acting if acting.parts else None, params, context)
    return (out**2).sum(), out


@pytest.mark.parametrize(
    "name",
    [
        *(
            "learned_absolute",
            "sinusoidal_absolute+rope",
            "alibi",
            "t5",
            "learned_relative",
        ),
        *(
            "sinusoidal_relative(max_distance=None)",
            "deberta",
            "tupe",
            "fox",
            "path_attention+causal",
        ),
    ],
)
def test_types_of_outputs_and_gradients(name, mesh):
    """Everything that explicit sharding can refuse, it refuses while tracing."""
    encoding = encodings.from_name(name, **SIZES)
    params = jax.eval_shape(encoding.init, jax.random.key(0))
    x, kernel = (
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in (
            ((B, L, H * d), PartitionSpec("data")),
            ((H * d, H, d), KERNEL),
        )
    )

    grad = jax.grad(
        lambda *args: loss(encoding, *args), argnums=(0, 1, 2), has_aux=True
    )
    (of_params, of_x, of_kernel), out = jax.eval_shape(grad, params, x, kernel)
    assert out.sharding.spec == HEADS and of_kernel.sharding.spec == KERNEL
    assert of_x.sharding.spec == PartitionSpec("data", None, None)
    assert jax.tree.structure(of_params) == jax.tree.structure(params)


@pytest.mark.parametrize("name", ["learned_absolute+t5", "deberta"])
def test_numbers_are_those_without_a_mesh(name):
    encoding = encodings.from_name(name, **SIZES)
    params, x, kernel = (
        encoding.init(jax.random.key(0)),
        draw(B, L, H * d),
        draw(H * d, H, d) / 4,
    )

    def differentiate(*args):
        grad = jax.grad(
            lambda *args: loss(encoding, *args), argnums=(0, 1, 2), has_aux=True
        )
        return jax.jit(grad)(*args)

    expected = differentiate(params, x, kernel)
    with jax.set_mesh(explicit_mesh()):
        x, kernel = jax.reshard(x, PartitionSpec("data")), jax.reshard(kernel, KERNEL)
        results = differentiate(params, x, kernel)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), results, expected
    )


def test_a_cache_and_weights(mesh):
    """Arrays of positions, a mask and typed keys go in as well."""
    encoding = encodings.rope(head_size=d) + encodings.causal()
    q = jax.reshard(draw(B, L, H, d), HEADS)
    context = encodings.Context(
        positions_q=jnp.arange(L), position_rng=jax.random.key(0)
    )
    mask = jnp.ones((1, 1, 1, L), bool)
    weights = attention_weights(q, q, encoding, {}, context, mask=mask)
    assert weights.sharding.spec == PartitionSpec("data", "model", None, None)
    cache = init_cache(encoding, B, L, num_kv_heads=H, head_size=d, hidden_size=H * d)
    keys, values = (jax.reshard(x, HEADS) for x in (cache.keys, cache.values))
    cache = cache.replace(keys=keys, values=values)
    out, longer = jax.jit(lambda q, cache: cached_attention(q, q, q, cache, encoding))(
        q, cache
    )
    assert out.sharding.spec == HEADS and longer.keys.sharding.spec == HEADS
    np.testing.assert_allclose(out, attention(q, q, q, encoding), atol=1e-5)
