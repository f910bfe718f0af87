"""Products of matrices: operands of any dtype, sums in float32 at least, backward as forward.

Accelerators sum bfloat16 products in float32 anyway. CPUs with bfloat16 units (AMX) use them only
for products whose result is asked for in float32: asked for bfloat16, XLA widens the operands, and
in a backward pass it would widen whatever meets a float32 gradient. So the product is a new
primitive. JAX differentiates it as any bilinear function, forward, backward and to any order, and
takes its transposes from here, which round cotangents to the dtype of the operand that they meet.

On these CPUs XLA nevertheless widens both operands of a kernel's gradient, as both begin with the
axis that is summed. Products of this kind, of two matrices or a batch, transpose one of them first.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import DTypeLike

from pe_jax.common.cpu import multiplies_bfloat16
from pe_jax.common.dtypes import wide_dtype
from pe_jax.common.mesh_axes import vary_alike
from pe_jax.common.shapes import Array, Float

_ONES = 8  # Rows of ones: of a product with a single one XLA makes a sum again.

product_p = Primitive("product")


def product(spec: str, a: Array, b: Array) -> jax.Array:
    """Return `jnp.einsum(spec, a, b)` in float32, in float64 where an operand is.

    A gradient is rounded to the dtype of the operands before it goes back.

    Args:
      spec: letters only, each in two of the three terms at least, as in `"bqd,kd->bqk"`.
      a, b: of one dtype.
    """
    return product_p.bind(*vary_alike((a, b)), spec=spec)


def head_product(
    spec: str,
    a: Array,
    b: Array,
    heads: int,
    *,
    multiply: Callable[..., jax.Array] = product,
) -> jax.Array:
    """Return the product of terms of which some have fewer heads, the axis `h`, than others.

    Each head of these serves as many consecutive heads of the others. None is repeated in memory.

    Args:
      spec: as of `product`, of terms with equal heads; `r` is taken.
      heads: of the result.
      multiply: the product itself.
    """
    a_axes, b_axes, out_axes = _terms(spec)
    groups = min(a.shape[a_axes.index("h")], b.shape[b_axes.index("h")], heads)

    def split_heads(x: Array, axes: str) -> tuple[Array, str]:
        """Heads as groups and heads of a group, the axes `h` and `r`, if they are more."""
        axis = axes.index("h")
        if x.shape[axis] == groups:
            return x, axes
        shape = *x.shape[:axis], groups, -1, *x.shape[axis + 1 :]
        return x.reshape(shape), axes.replace("h", "hr")

    a, a_axes = split_heads(a, a_axes)
    b, b_axes = split_heads(b, b_axes)
    if heads == groups:
        return multiply(f"{a_axes},{b_axes}->{out_axes}", a, b)
    split_out = out_axes.replace("h", "hr")
    out = multiply(f"{a_axes},{b_axes}->{split_out}", a, b)
    axis = out_axes.index("h")
    return out.reshape(*out.shape[:axis], -1, *out.shape[axis + 2 :])


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def add_row(
    x: Float[Array, "M N"], row: Float[Array, " N"], dtype: DTypeLike
) -> jax.Array:
    """Return `x + row`, float32 as both are.

    The gradient of the row is a sum over rows, rounded to `dtype` before and computed as a product
    with ones, as XLA's sum of rows is slow on CPUs and TPUs. Beside other products it costs
    nothing.
    """
    return x + row


@add_row.defjvp
def _add_row_jvp(
    dtype: DTypeLike, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[jax.Array, jax.Array]:
    dx, drow = tangents
    rows = jnp.pad(drow[None], ((0, _ONES - 1), (0, 0)))
    ones = jnp.ones((_ONES, len(dx)), dtype)
    return add_row(*primals, dtype), dx + product("om,on->mn", ones, rows)


def is_product_of_layers(
    primitive: Primitive, *_: object, spec: str = "", **__: object
) -> bool:
    """Select products without a batch, for `jax.checkpoint(policy=...)`: those of dense layers."""
    if primitive is not product_p:
        return False
    a_axes, b_axes, out_axes = _terms(spec)
    return not set(a_axes) & set(b_axes) & set(out_axes)


def _terms(spec: str) -> tuple[str, str, str]:
    operands, out_axes = spec.split("->")
    a_axes, b_axes = operands.split(",")
    return a_axes, b_axes, out_axes


# Traced once for each kind of product: a model has the same few in all of its layers.
@functools.partial(jax.jit, static_argnames="spec", inline=True)
def _einsum(a: Array, b: Array, *, spec: str) -> jax.Array:
    a_axes, b_axes, out_axes = _terms(spec)
    common = "".join(axis for axis in a_axes if axis in b_axes and axis in out_axes)

    def others(axes: str) -> str:
        return "".join(axis for axis in axes if axis not in common)

    def kept(axes: str) -> str:
        return "".join(axis for axis in others(axes) if axis in out_axes)

    order = common + kept(a_axes) + kept(b_axes)
    swapped = common + kept(b_axes) + kept(a_axes)
    # Shared axes come first in operands and result, as in a batch of products of matrices: XLA
    # cannot run other bfloat16 products on a CPU (jax 0.10.2 to 0.12: UNIMPLEMENTED, BF16 x BF16 =
    # F32), and `jnp.einsum` would swap the operands of one that is transposed afterwards, for which
    # a CPU transposes both.
    first = swapped if out_axes == swapped else order
    a_first = common + others(a_axes)
    b_first = common + others(b_axes)
    a = jnp.einsum(f"{a_axes}->{a_first}", a)
    b = jnp.einsum(f"{b_axes}->{b_first}", b)
    out = jnp.einsum(
        f"{a_first},{b_first}->{first}", a, b, preferred_element_type=wide_dtype(a, b)
    )
    return jnp.einsum(f"{first}->{out_axes}", out)


def _einsum_on_cpu(a: Array, b: Array, *, spec: str) -> Array:
    """Return the same, of a gradient of a kernel with an operand that is transposed first."""
    a_axes, b_axes, out_axes = _terms(spec)
    batch = len(out_axes) - 2
    are_matrices = (
        a_axes[:batch] == b_axes[:batch] == out_axes[:batch]
        and len(a_axes) == len(b_axes) == batch + 2
    )
    sums_first_axis = are_matrices and a_axes[-2] == b_axes[-2]
    if sums_first_axis and a.dtype == jnp.bfloat16 and multiplies_bfloat16():
        if out_axes[-2] == a_axes[-1]:
            a = _transposed(a)
            a_axes = f"{a_axes[:-2]}{a_axes[-1]}{a_axes[-2]}"
        else:
            b = _transposed(b)
            b_axes = f"{b_axes[:-2]}{b_axes[-1]}{b_axes[-2]}"
    return _einsum(a, b, spec=f"{a_axes},{b_axes}->{out_axes}")


def _transposed(x: Float[Array, "*B M N"]) -> Float[Array, "*B N M"]:
    """Transpose in a loop of one turn. XLA merges any other transposition into the product."""
    turns = jax.lax.optimization_barrier(jnp.int32(1))  # Or XLA would remove the loop.
    moved = functools.partial(jnp.swapaxes, x, -1, -2)
    return jax.lax.fori_loop(0, turns, lambda *_: moved(), jnp.zeros_like(moved()))


def _transpose_a(g, a, b, *, spec):
    a_axes, b_axes, out_axes = _terms(spec)
    da = product(f"{out_axes},{b_axes}->{a_axes}", g.astype(b.dtype), b)
    return da.astype(a.aval.dtype)


def _transpose_b(g, a, b, *, spec):
    a_axes, b_axes, out_axes = _terms(spec)
    db = product(f"{a_axes},{out_axes}->{b_axes}", a, g.astype(a.dtype))
    return db.astype(b.aval.dtype)


def _batch(
    operands: Sequence[Array], axes: Sequence[int | None], *, spec: str
) -> tuple[jax.Array, int]:
    """Add a letter to the terms of the operands that `jax.vmap` maps, and to the result."""
    *terms, out_axes = _terms(spec)
    letter = next(letter for letter in string.ascii_letters if letter not in spec)
    for i, axis in enumerate(axes):
        if axis is not None:
            terms[i] = f"{terms[i][:axis]}{letter}{terms[i][axis:]}"
    return product(f"{terms[0]},{terms[1]}->{letter}{out_axes}", *operands), 0


def _abstract(a, b, *, spec):
    return _einsum.trace(a, b, spec=spec).jaxpr.out_avals[0]


product_p.def_impl(_einsum)
product_p.def_abstract_eval(_abstract)
ad.defbilinear(product_p, _transpose_a, _transpose_b)
batching.primitive_batchers[product_p] = _batch
mlir.register_lowering(product_p, mlir.lower_fun(_einsum, multiple_results=False))
mlir.register_lowering(
    product_p, mlir.lower_fun(_einsum_on_cpu, multiple_results=False), platform="cpu"
)
