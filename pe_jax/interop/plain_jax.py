"""A function rewritten to JAX's own primitives, for converters to other formats."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun

from pe_jax.attention.relative_shift import relative_shift_p, relative_shift_transpose_p
from pe_jax.common.product import product_p
from pe_jax.common.shapes import Array

# Names of primitives that run the program in their parameters once.
_CALLS = (
    "jit",
    "closed_call",
    "checkpoint",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
)


def plain(
    function: Callable[..., Sequence[jax.Array]], *inputs: jax.ShapeDtypeStruct
) -> Callable[..., list[jax.Array]]:
    """Return a function that computes the same, for inputs of these shapes (may be symbolic), from
    primitives of JAX alone.

    Primitives of pe_jax become what they stand for, and branches by platform those of CPUs. Calls
    are inlined, and what depends on no input is computed.
    """
    program = jax.make_jaxpr(function)(*inputs)
    return jaxpr_as_fun(jax.make_jaxpr(functools.partial(_evaluate, program))(*inputs))


def _evaluate(program: ClosedJaxpr, *inputs: Array) -> list[jax.Array]:
    values = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    values |= zip(program.jaxpr.invars, inputs, strict=True)

    def value(variable: Any) -> Any:
        return variable.val if isinstance(variable, Literal) else values[variable]

    for equation in program.jaxpr.eqns:
        operands = [value(variable) for variable in equation.invars]
        if _is_constant(equation, operands):
            with jax.ensure_compile_time_eval():
                results = _apply(equation, operands)
        else:
            results = _apply(equation, operands)
        values |= zip(equation.outvars, results, strict=True)
    return [value(variable) for variable in program.jaxpr.outvars]


def _is_constant(equation: JaxprEqn, operands: list[Any]) -> bool:
    """Return whether an equation can be computed now: without inputs, and to known shapes."""
    if equation.primitive.name == "dim_as_value":
        return False
    if any(isinstance(x, jax.core.Tracer) for x in operands):
        return False
    for variable in equation.outvars:
        shape = getattr(variable.aval, "shape", ())
        if not all(isinstance(size, int) for size in shape):
            return False
    return True


def _apply(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    primitive, params = equation.primitive, dict(equation.params)
    if primitive.name == "dot_general":
        return [_dot_general(*operands, **params)]
    if primitive.name in _MEANINGS:
        meaning = functools.partial(_MEANINGS[primitive.name], **params)
        return _evaluate(jax.make_jaxpr(meaning)(*operands), *operands)
    if primitive.name in _CALLS:
        body = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
        if not isinstance(body, ClosedJaxpr):
            body = ClosedJaxpr(body, ())
        return _evaluate(body, *operands)
    if primitive.name == "platform_index":
        for i, names in enumerate(params["platforms"]):
            if names is None or "cpu" in names:
                return [i]
    if primitive.name == "cond" and isinstance(operands[0], int):
        return _evaluate(params["branches"][operands[0]], *operands[1:])
    if primitive.name == "scan":
        body = params["jaxpr"]
        step = functools.partial(_evaluate, body)
        params["jaxpr"] = jax.make_jaxpr(step)(*body.in_avals)
    results = primitive.bind(*operands, **params)
    return results if primitive.multiple_results else [results]


def _dot_general(
    a: Array, b: Array, *, dimension_numbers: Any, **options: Any
) -> Array:
    """A product of matrices or of batches of these: others become ONNX's Einsum, which is slow."""
    (sum_a, sum_b), (batch_a, batch_b) = dimension_numbers
    free_a = _other_axes(a, (*sum_a, *batch_a))
    free_b = _other_axes(b, (*sum_b, *batch_b))
    batch = [a.shape[i] for i in batch_a]
    summed = math.prod(a.shape[i] for i in sum_a)
    rows = [a.shape[i] for i in free_a]
    columns = [b.shape[i] for i in free_b]
    a = lax.transpose(a, [*batch_a, *free_a, *sum_a])
    a = a.reshape(*batch, math.prod(rows), summed)
    b = lax.transpose(b, [*batch_b, *sum_b, *free_b])
    b = b.reshape(*batch, summed, math.prod(columns))
    n = len(batch)
    batch_axes = tuple(range(n))
    numbers = ((n + 1,), (n,)), (batch_axes, batch_axes)
    out = lax.dot_general(a, b, numbers, **options)
    return out.reshape(*batch, *rows, *columns)


def _other_axes(x: Array, axes: Sequence[int]) -> list[int]:
    return [axis for axis in range(x.ndim) if axis not in axes]


# jax2onnx 0.17.1 converts the next three only where all sizes are known.


def _cummax(x: Array, *, axis: int, reverse: bool) -> Array:
    steps = jnp.arange(x.shape[axis])
    x = jnp.moveaxis(x, axis, -1)
    before = (steps[:, None] <= steps) if reverse else (steps[:, None] >= steps)
    largest = jnp.where(before, x[..., None, :], x.min()).max(-1)
    return jnp.moveaxis(largest, -1, axis)


def _pad(
    x: Array, value: Array, *, padding_config: Sequence[tuple[int, int, int]]
) -> Array:
    for axis, (before, after, between) in enumerate(padding_config):
        if between or before < 0 or after < 0:
            raise NotImplementedError(f"pad of {(before, after, between)}")
        outer, inner = x.shape[:axis], x.shape[axis + 1 :]
        start = lax.full((*outer, before, *inner), value)
        end = lax.full((*outer, after, *inner), value)
        x = lax.concatenate([start, x, end], axis)
    return x


def _rem(x: Array, y: Array) -> Array:
    ratio = lax.div(x, y)
    if jnp.issubdtype(x.dtype, jnp.floating):
        ratio = lax.sign(ratio) * lax.floor(lax.abs(ratio))
    return x - y * ratio


# What primitives stand for, by their names.
_MEANINGS: dict[str, Callable[..., Any]] = {
    product_p.name: product_p.impl,
    relative_shift_p.name: relative_shift_p.impl,
    relative_shift_transpose_p.name: relative_shift_transpose_p.impl,
    "optimization_barrier": lambda *operands: operands,
    "cummax": _cummax,
    "pad": _pad,
    "rem": _rem,
}
