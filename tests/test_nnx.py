"""Modules of NNX under its transforms and on meshes."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from pe_jax import encodings
from pe_jax.nnx import MultiHeadAttention

ENCODING = encodings.learned_relative(head_size=4, max_distance=2)
LAYERS = 2


def table_of(tree):
    return nnx.to_pure_dict(nnx.state(tree))["position"]["learned_relative"]["table"]


def test_scanned_layers_share_one_position():
    """`StateAxes` says that `position` has no axis of layers."""
    axes = nnx.StateAxes({nnx.PathContains("position"): None, ...: 0})
    position = MultiHeadAttention(2, 8, ENCODING, rngs=nnx.Rngs(1)).position

    @nnx.split_rngs(splits=LAYERS)
    @nnx.vmap(in_axes=(0, None), out_axes=axes)
    def stack(rngs, position):
        return MultiHeadAttention(2, 8, ENCODING, position=position, rngs=rngs)

    @nnx.scan(in_axes=(axes, nnx.Carry), out_axes=nnx.Carry)
    def run(layer, x):
        return x + layer(x)

    layers = stack(nnx.Rngs(0), position)
    x = jax.random.normal(jax.random.key(0), (1, 4, 8))
    out, grads = nnx.jit(nnx.value_and_grad(lambda layers: run(layers, x).sum()))(
        layers
    )
    graph, shared, separate = nnx.split(layers, nnx.PathContains("position"), ...)

    @jax.jit
    def one_by_one(shared):
        y = x
        for i in range(LAYERS):
            of_layer = jax.tree.map(operator.itemgetter(i), separate)
            y = y + nnx.merge(graph, shared, of_layer)(y)
        return y.sum()

    expected, of_shared = jax.value_and_grad(one_by_one)(shared)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    of_table = nnx.to_pure_dict(of_shared)["position"]["learned_relative"]["table"]
    np.testing.assert_allclose(table_of(grads), of_table, atol=1e-4)
    assert table_of(grads).shape == (5, 4)


def test_parameters_of_an_encoding_are_sharded_by_name():
    with jax.set_mesh(jax.make_mesh((2, 2), ("data", "model"))):

        @nnx.jit
        def build():
            position = jax.tree.map(
                lambda table: nnx.Param(table, out_sharding=(None, "model")),
                ENCODING.init(jax.random.key(0)),
            )
            return MultiHeadAttention(
                2, 8, ENCODING, position=position, rngs=nnx.Rngs(0)
            )

        layer = build()
        assert table_of(layer).sharding.spec == PartitionSpec(None, "model")
        specs = nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(layer)))
        assert specs["position"]["learned_relative"]["table"] == PartitionSpec(
            None, "model"
        )
        out = nnx.eval_shape(lambda layer: layer(jnp.ones((2, 4, 8))), layer)
        assert out.shape == (2, 4, 8)
