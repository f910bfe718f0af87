"""Inputs of a function that has a backward pass by hand, and so no forward-mode derivative.

JAX refuses to push tangents through `jax.custom_vjp`, and cannot know what to use instead.
"""

from __future__ import annotations

from typing import NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from pe_jax.common.shapes import Array

reverse_only_p = Primitive("reverse_only")


@jax.custom_jvp
def reverse_only(x: Array) -> Array:
    """Return `x` itself. Its tangents can be transposed, as by `jax.grad`, but not computed, as by
    `jax.jvp`: that is a TypeError. A compiled program contains nothing of it."""
    return x


@reverse_only.defjvp
def _reverse_only_jvp(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    return primals[0], reverse_only_p.bind(tangents[0])


@jax.custom_jvp
def first_order(x: Array) -> Array:
    """Return `x` itself, in a `jax.custom_vjp` whose two passes cannot be differentiated, as by
    `jax.hessian`: that is a TypeError."""
    return x


@first_order.defjvp
def _first_order_jvp(*_: object) -> NoReturn:
    raise TypeError(
        "attention has no second derivatives (jax.hessian, jax.grad of jax.grad) in the TPU "
        'kernel: pass implementation="naive", to Bert as well.'
    )


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError(
        "attention has no forward mode (jax.jvp, jax.jacfwd, jax.linearize) in this "
        'implementation. For it, pass implementation="naive", to Bert as well.'
    )


reverse_only_p.def_impl(_refuse)
reverse_only_p.def_abstract_eval(lambda x: x)
ad.deflinear(reverse_only_p, lambda cotangent: [cotangent])
batching.primitive_batchers[reverse_only_p] = lambda x, axes: (
    reverse_only_p.bind(*x),
    *axes,
)
mlir.register_lowering(reverse_only_p, _refuse)
