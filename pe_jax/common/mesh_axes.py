"""Computing on mesh axes that are explicit or manual, where an array's type says how it is sharded.

On mesh axes that are `AxisType.Explicit`, JAX refuses results whose sharding does not follow from
that of their operands. Position encodings have many: terms without a batch axis that are added to
logits with one, gradients that are sums over the batch, hooks that know of no mesh. A function
decorated with `automatic_sharding` is computed as on axes that are `AxisType.Auto`, where the
compiler chooses shardings, and its results get the sharding that its caller expects.

Inside `jax.shard_map`, whose axes are manual, the type of an array says over which of them it
varies; see `vary_alike`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pe_jax.common.shapes import Array

_P = ParamSpec("_P")
_T = TypeVar("_T")
Tree = TypeVar("Tree")


def automatic_sharding(
    specs: Callable[..., Any],
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a function so that explicit axes of the mesh are automatic inside of it.

    Without such axes the function is called as it is. Functions among its arguments, such as
    projections, run with the axes explicit again, on replicated arrays.

    Args:
      specs: called with the arguments, returns the tree of what the function returns with a
        `PartitionSpec` for each array.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            axes = jax.sharding.get_abstract_mesh().explicit_axes
            if not axes:
                return function(*args, **kwargs)
            leaves, tree = jax.tree.flatten((args, kwargs))
            arrays = {
                i: x
                for i, x in enumerate(leaves)
                if isinstance(x, jax.Array | np.ndarray)
            }
            called: list[Callable] = []

            def inside(arrays: dict[int, Array]) -> _T:
                functions = [
                    _explicit(x, axes, called) if callable(x) else x for x in leaves
                ]
                inputs = [arrays.get(i, x) for i, x in enumerate(functions)]
                args, kwargs = jax.tree.unflatten(tree, inputs)
                return function(*args, **kwargs)

            out_sharding = specs(*args, **kwargs)
            if jax.sharding.get_abstract_mesh().manual_axes:
                return _recomputed(inside, axes, out_sharding, arrays, called)
            return jax.sharding.auto_axes(inside, axes=axes, out_sharding=out_sharding)(
                arrays
            )

        return call

    return decorate


def _recomputed(
    function: Callable[[dict[int, Array]], _T],
    axes: tuple[str, ...],
    out_sharding: Any,
    arrays: dict[int, Array],
    called: list[Callable],
) -> _T:
    """`function(arrays)` with automatic axes, which the backward pass computes again.

    Inside a `shard_map` over other axes, jax 0.10 to 0.12 cannot save what it computes there for a
    backward pass ("context mesh ... should match the aval mesh"), so all of that runs in one go.

    Args:
      called: the functions among the arguments that `function` has called.

    Raises:
      ValueError: for a gradient, if a function was called: the arrays that it closes over are no
        arguments, so they would have none.
    """
    inexact = {i: x for i, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
    others = {i: x for i, x in arrays.items() if i not in inexact}

    @jax.custom_vjp
    def run(inexact: dict[int, Array], others: dict[int, Array]) -> _T:
        automatic = jax.sharding.auto_axes(
            lambda inexact, others: function(inexact | others),
            axes=axes,
            out_sharding=out_sharding,
        )
        return automatic(inexact, others)

    def forward(inexact, others):
        out = run(inexact, others)
        if called:
            raise ValueError(
                "Context.projections cannot be differentiated in a shard_map over some axes beside "
                f"explicit ones ({', '.join(axes)}): make these AxisType.Auto, or map over all."
            )
        return out, (inexact, others)

    def backward(residuals, g):
        def pull_back(inexact, others, g):
            return jax.vjp(lambda inexact: function(inexact | others), inexact)[1](g)[0]

        shardings = {i: spec_of(x, *range(x.ndim)) for i, x in residuals[0].items()}
        automatic = jax.sharding.auto_axes(pull_back, axes=axes, out_sharding=shardings)
        return automatic(*residuals, g), None

    run.defvjp(forward, backward)
    return run(inexact, others)


def spec_of(x: Array, *axes: int) -> PartitionSpec:
    """Return the sharding of some axes of an array, for a result that begins with them."""
    spec = jax.typeof(x).sharding.spec
    return PartitionSpec(*(spec[axis] for axis in axes))


def _explicit(
    function: Callable, axes: tuple[str, ...], called: list[Callable]
) -> Callable:
    """`function` with explicit `axes` of the mesh, on replicated arrays; adds it to `called`."""
    explicit = jax.sharding.explicit_axes(
        function, axes=axes, in_sharding=PartitionSpec()
    )

    def call(*args: Any) -> Any:
        called.append(function)
        return explicit(*args)

    return call


def vary_alike(arrays: Tree, *others: object) -> Tree:
    """Let all arrays of a tree vary over the mesh axes that any of them, or of `others`, does.

    JAX does so for the operands of its own operations, and sums the gradients of an array over the
    axes that it was cast to. A function with a derivative of its own has to do it first. Outside of
    `shard_map`, or with `check_vma=False`, nothing changes.
    """
    axes = frozenset().union(*map(_varying_axes, jax.tree.leaves((arrays, others))))
    return jax.tree.map(lambda x: _cast(x, axes), arrays) if axes else arrays


def varies(*arrays: Array) -> bool:
    """True if any array varies over a mesh axis, as inside `shard_map` with its default check."""
    return any(map(_varying_axes, arrays))


def _cast(x: Array, axes: frozenset[str]) -> Array:
    missing = tuple(sorted(axes - _varying_axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _varying_axes(x: Array) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying
