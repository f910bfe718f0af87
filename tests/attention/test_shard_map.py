"""Attention inside `jax.shard_map`, with its default check of what varies over the mesh."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.joined_encodings import JOINED, SIZES, H, draws, loss, shapes
from jax.sharding import AxisType, PartitionSpec

from pe_jax import encodings
from pe_jax.attention import attention, implementations

pytestmark = pytest.mark.usefixtures("small_blocks")
# The same function with other frequencies, or as `self_extend` with other offsets.
ROPE = (
    *("rope_linear", "rope_ntk", "rope_yarn", "rope_llama3", "rope_longrope"),
    *("rerope", "dual_chunk"),
)
FEW = "learned_relative+t5+fire+sink"
ROWS = PartitionSpec(), PartitionSpec("data"), PartitionSpec()
NO_ERF = pytest.mark.xfail(
    jax.__version_info__ >= (0, 12),
    reason="jax 0.12 refuses the gradient of erf",
    strict=True,
)
ALL = [
    pytest.param(name, id=key, marks=[NO_ERF] if "convolutional" in name else [])
    for key, name in JOINED.items()
]


def mesh_of(kind):
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind,) * 2)


def gradient(name, implementation, **how):
    """The gradient of a loss by all arguments; the batch is sharded, parameters replicated."""

    def of_rows(*args):
        return loss(name, *args, implementation=implementation)[None]

    out = PartitionSpec("data")
    mapped = jax.shard_map(of_rows, in_specs=ROWS, out_specs=out, **how)

    def total(params, x, kernel):
        if jax.sharding.get_abstract_mesh().explicit_axes:
            x = jax.reshard(x, out)
        return mapped(params, x, kernel).sum()

    return jax.grad(total, argnums=(0, 1, 2))


def without_projections(name):
    """The joined encodings but DeBERTa, see `test_projections_beside_explicit_axes`."""
    return re.sub(r"\+deberta\([^)]*\)", "", name)


def test_all_registered_encodings_are_in_the_joined_ones():
    known = {
        key for name in JOINED.values() for key in re.findall(r"(?:^|\+)(\w+)", name)
    }
    assert {*encodings.ENCODINGS} - known == {"none", *ROPE}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "implementation",
    [
        "table",
        pytest.param("naive", marks=pytest.mark.slow),
        pytest.param("fused", marks=pytest.mark.slow),
    ],
)
def test_types_of_every_gradient(name, implementation):
    """What the check refuses, it refuses while tracing."""
    args = shapes(name)
    for how in (
        dict(),
        dict(axis_names={"data"}),
    ):  # All axes of the mesh are manual, or one.
        with jax.set_mesh(mesh_of(AxisType.Auto)):
            got = jax.eval_shape(gradient(name, implementation, **how), *args)
        assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, args)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "implementation", ["table", pytest.param("fused", marks=pytest.mark.slow)]
)
def test_types_beside_explicit_axes(name, implementation):
    name = without_projections(name)
    args = shapes(name)
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        got = jax.eval_shape(gradient(name, implementation, axis_names={"data"}), *args)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, args)


def test_projections_beside_explicit_axes():
    """DeBERTa's table goes through the layer's projections, whose kernels are no arguments."""
    name = "deberta(num_buckets=4, max_distance=8)"
    with (
        jax.set_mesh(mesh_of(AxisType.Explicit)),
        pytest.raises(
            ValueError,
            match="Context.projections cannot be differentiated.*AxisType.Auto",
        ),
    ):
        jax.eval_shape(gradient(name, "table", axis_names={"data"}), *shapes(name))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(
    ("name", "implementation"),
    [(FEW, "fused")]
    + [
        pytest.param(n, f, marks=pytest.mark.slow)
        for n in JOINED.values()
        for f in ("table", "fused")
    ],
)
def test_gradients_are_those_without_a_mesh(name, implementation, kind):
    if kind == AxisType.Explicit:
        name = without_projections(name)
    args, expected = gradients_without_a_mesh(name, implementation)
    with jax.set_mesh(mesh_of(kind)):
        got = jax.jit(gradient(name, implementation, axis_names={"data"}))(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * (1 + np.abs(b).max()))


@functools.cache
def gradients_without_a_mesh(name, implementation):
    """Arguments of the loss, and its gradients by all of them."""
    args = draws(name)
    without_mesh = functools.partial(loss, name, implementation=implementation)
    return args, jax.jit(jax.grad(without_mesh, (0, 1, 2)))(*args)


def test_an_encoding_of_all_heads_refuses_a_part_of_them():
    """As inside `jax.shard_map` over heads, where slopes would be those of fewer heads."""
    q = jnp.ones((1, 3, 2, 8))
    encoding = encodings.from_name("alibi", **SIZES)
    assert q.shape[2] < H
    with pytest.raises(
        ValueError, match=r"for 4 heads of size 8\. .*split heads .* by jax\.jit"
    ):
        attention(q, q, q, encoding)


@pytest.mark.parametrize("name", JOINED.values(), ids=JOINED)
def test_all_parts_with_parameters_of_heads_know_their_number(name):
    """By which they refuse another one: parameters might broadcast to it."""
    few, many = (
        encodings.from_name(name, **SIZES | {"num_heads": n}) for n in (H, 2 * H)
    )
    for part, larger in zip(few.parts, many.parts, strict=True):
        drawn = [
            jax.eval_shape(each.init, jax.random.key(0)) for each in (part, larger)
        ]
        same = jax.tree.map(jnp.shape, drawn[0]) == jax.tree.map(jnp.shape, drawn[1])
        assert same or part.traits.num_heads == H, part.name


def test_the_kernel_is_left_out_under_the_check(monkeypatch):
    """A kernel's results would have to say what they vary over; blocks of queries need not."""
    q = jax.ShapeDtypeStruct((2, 130, 2, 8), jnp.float32)

    def run(implementation):
        rows = PartitionSpec("data")
        local = lambda q: attention(q, q, q, implementation=implementation)
        mapped = jax.shard_map(
            local, mesh=mesh_of(AxisType.Auto), in_specs=rows, out_specs=rows
        )
        return jax.eval_shape(mapped, q)

    monkeypatch.setattr(implementations, "target_platform", lambda: "tpu")
    with implementations.kernel_in_auto():
        assert run("auto").shape == q.shape
    with pytest.raises(
        ValueError, match="implementation='kernel' needs .*check_vma=False"
    ):
        run("kernel")
