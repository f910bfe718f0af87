"""An encoding of all heads of a model, in attention of some of them (`Context.first_head`).

What depends on the number of all heads, such as slopes, is computed for all and cut to the heads
here. Parameters of heads are cut before the hooks that act on queries and keys see them. Their axis
is the one that doubles when the encoding is built for twice as many heads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.encodings.encoding import PositionEncoding
from pe_jax.encodings.part import LogitTerms, OffsetTerms, Params, Part
from pe_jax.shapes import Array

_NO_AXIS = -1


def part_of_shard(part: Part, params: Params, first: ArrayLike, heads: int) -> tuple[Part, Params]:
    """Return a part for `heads` of its heads, from `first` on, and what its hooks take as
    parameters: those of all heads, and `first`.

    Raises:
      ValueError: for a part that mixes heads, one that no function of `pe_jax.encodings` made, or
        heads that it does not have.
    """
    total = part.traits.num_heads
    if total is None or total == heads:
        return part, params
    if isinstance(first, int) and not 0 <= first <= total - heads:
        raise ValueError(
            f"Context.first_head={first} and {heads} heads of queries do not fit {part!r}, which "
            f"has {total} heads: pass the number of the first query head of this shard."
        )
    if part.logit_map or part.constructor is None:
        reason = "mixes heads" if part.logit_map else "was not made by a named function"
        raise ValueError(
            f"Context.first_head is not possible with {part.name}, which {reason}: run its "
            "attention with all heads on each device."
        )
    hooks: dict[str, Any] = {
        name: _with_own_params(hook, part, heads, total)
        for name in ("heads", "output", "logits")
        if (hook := getattr(part, name))
    }
    hooks |= _cut_results(part, {"factor": -2, "sink": -1}, heads, total)
    if part.offsets:
        axes = {"keys": -2, "queries": -2, "values": -2, "bias": -1}
        axes |= {"frequencies": -2, "value_frequencies": -2}
        cut_terms = _cut_results(part.offsets, axes, heads, total)
        hooks["offsets"] = part.offsets._replace(**cut_terms)
    return part._replace(**hooks), {"all": params, "first": jnp.asarray(first, jnp.int32)}


def _cut_results(
    owner: Part | OffsetTerms, axes: dict[str, int], heads: int, total: int
) -> dict[str, Any]:
    """The hooks of `owner` by name; results that have an axis of heads are cut to the shard's.

    Args:
      axes: of heads. Results of hooks that take offsets begin with the axes of the offsets.
    """

    def cut(hook: Callable[..., ArrayLike], axis: int, params: Params, *args: Any) -> Array:
        result = jnp.asarray(hook(params["all"], *args))
        of_offsets = np.ndim(args[0]) if len(args) > 1 else 0
        has_heads = result.ndim - of_offsets >= -axis
        return _cut(result, params["first"], heads, total, axis) if has_heads else result

    hooks = {name: (getattr(owner, name), axis) for name, axis in axes.items()}
    return {name: functools.partial(cut, *hook) for name, hook in hooks.items() if hook[0]}


def _with_own_params(hook: Callable, part: Part, heads: int, total: int) -> Callable:
    """`hook` that gets the parameters of the shard's heads, and whose `LogitTerms` are cut."""

    def run(params: Params, *args: Any) -> Any:
        leaves, tree = jax.tree.flatten(params["all"])
        own = [
            x if axis == _NO_AXIS else jax.lax.dynamic_slice_in_dim(x, params["first"], heads, axis)
            for x, axis in zip(leaves, _head_axes(part), strict=True)
        ]
        result = hook(jax.tree.unflatten(tree, own), *args)
        if not isinstance(result, LogitTerms):
            return result
        function = functools.partial(_cut_logits, result.function, heads, total)
        shared = result.shared, params["first"]
        return dataclasses.replace(result, function=function, shared=shared)

    return run


def _cut_logits(
    function: Callable[..., Array], heads: int, total: int, q: Any, k: Any, shared: Any, mask: Any
) -> Array:
    shared, first = shared
    logits = function(q, k, shared, mask)
    return _cut(logits, first, heads, total, -3) if logits.ndim > 2 else logits


def _cut(x: Array, first: Array, heads: int, total: int, axis: int) -> Array:
    if x.shape[axis] != total:  # One for all heads, or of this shard's already.
        return x
    return jax.lax.dynamic_slice_in_dim(x, first, heads, x.ndim + axis)


@functools.lru_cache(maxsize=256)
def _head_axes(part: Part) -> tuple[int, ...]:
    """The axis of heads of each parameter of a part, `_NO_AXIS` for none."""
    total = part.traits.num_heads
    assert total is not None
    shapes, wider = (
        [x.shape for x in jax.tree.leaves(jax.eval_shape(init, jax.random.key(0)))]
        for init in (part.init, _with_num_heads(part, 2 * total).init)
    )
    axes = []
    for shape, wide in zip(shapes, wider, strict=True):
        different = [i for i, (m, n) in enumerate(zip(shape, wide, strict=True)) if m != n]
        if different and shape[different[0]] != total:
            raise ValueError(
                f"Context.first_head is not possible with {part!r}, which has parameters of "
                f"{shape} that are not those of single heads."
            )
        axes.append(different[0] if different else _NO_AXIS)
    return tuple(axes)


def _with_num_heads(part: Part, num_heads: int) -> Part:
    """The part as its function makes it for another number of heads."""
    assert part.constructor is not None
    inside = [
        encoding.map_parts(lambda inner: _with_num_heads(inner, num_heads))
        for encoding in part.constructor.args
        if isinstance(encoding, PositionEncoding)
    ]
    options = dict(part.constructor.keywords)
    options |= {"num_heads": num_heads} if "num_heads" in options else {}
    return part.constructor.func(*inside, **options).parts[0]
