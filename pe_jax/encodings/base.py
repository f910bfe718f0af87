"""What a position encoding is: a tuple of pure functions, and how two of them combine."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax

from pe_jax.shapes import Array

Params = dict[str, Any]  # A plain pytree; learnable frequencies are ordinary leaves of it.


class Relative(NamedTuple):
    """Vectors P(j - i) that join keys and values: what the fast forms of the term are made from.

    Attributes:
      clip: offsets are clipped to -clip .. clip; None leaves them as they are.
      keys, values: `(params, offsets[...]) -> [..., d]`, the vectors of signed offsets.
      key_frequencies, value_frequencies: `params -> [F]`, where the vectors are made of waves.
    """

    clip: int | None
    keys: Callable[[Params, jax.Array], jax.Array]
    values: Callable[[Params, jax.Array], jax.Array]
    key_frequencies: Callable[[Params], jax.Array] | None = None
    value_frequencies: Callable[[Params], jax.Array] | None = None


class PositionEncoding(NamedTuple):
    """A position encoding as pure functions; a hook that is None costs nothing.

    Shapes: B batch, L length, D hidden size, H heads, d head size. Positions are integers
    `[L]` (shared by the batch) or `[B, L]` (one row per example, as packing needs).

    Attributes:
      name: the name a config uses, such as `"learned_absolute"`.
      kind: what the position vectors are indexed by: `"absolute"` positions, `"relative"` offsets,
        or `"none"` where there are no position vectors (no encoding, or a combination of several).
      init: `init(key) -> params`, a dict with no entry that the encoding does not use.
      embed: `embed(params, positions) -> [..., L, D]`, added once to the token embeddings.
      rotate: `rotate(params, x[B, L, H, d], positions) -> x`, applied to queries and keys.
      logits: `logits(params, q, k, positions_q, positions_k) -> [B, H, Lq, Lk]`, added to q·k
        before scaling by 1/sqrt(d).
      values: `values(params, weights[B, H, Lq, Lk], positions_q, positions_k) -> [B, Lq, H, d]`,
        added to weights·v.
      vectors: `vectors(params, x[...]) -> [..., D or d]`, the position vectors P(x) themselves,
        for figures and metrics; x are positions or offsets, as `kind` says.
      frequencies: `frequencies(params) -> [F]`, radians per position, of an encoding made of waves.
      relative: what `logits` and `values` are made from, where they are a relative term. Attention
        then has faster forms of the two hooks to choose from.
      parts: the encodings that a combination is made of; empty for a single one.
    """

    name: str
    kind: Literal["none", "absolute", "relative"]
    init: Callable[[jax.Array], Params]
    embed: Callable[..., jax.Array] | None = None
    rotate: Callable[..., jax.Array] | None = None
    logits: Callable[..., jax.Array] | None = None
    values: Callable[..., jax.Array] | None = None
    vectors: Callable[..., jax.Array] | None = None
    frequencies: Callable[[Params], jax.Array] | None = None
    relative: Relative | None = None
    parts: tuple[PositionEncoding, ...] = ()


def no_parameters(key: jax.Array) -> Params:
    """The `init` of an encoding that learns nothing."""
    del key
    return {}


def none() -> PositionEncoding:
    """No position information at all: the bag-of-words baseline (paper, tables 2 and 3)."""
    return PositionEncoding("none", "none", no_parameters)


def combine(*encodings: PositionEncoding) -> PositionEncoding:
    """Joins encodings into one: embeddings, logits and values add up, rotations follow one another.

    Args:
      *encodings: single encodings with distinct names. Combinations are flattened first.

    Returns:
      An encoding whose params are nested by name, `{name: params of that encoding}`, with no
      entry for an encoding without parameters.

    Raises:
      ValueError: when nothing is given, or a name occurs twice (its params would collide).

    Example:
      >>> from pe_jax import encodings
      >>> both = encodings.combine(
      ...     encodings.learned_absolute(length=512, dim=768),
      ...     encodings.learnable_sinusoidal_relative(dim=64))
      >>> both.name
      'learned_absolute+learnable_sinusoidal_relative'
    """
    singles = tuple(part for encoding in encodings for part in encoding.parts or (encoding,))
    names = [single.name for single in singles]
    if not singles:
        raise ValueError("combine() needs at least one encoding; for no positions use none().")
    if len(set(names)) < len(names):
        raise ValueError(f"combine() got {names}: each encoding may occur once, give each a name.")
    if len(singles) == 1:
        return singles[0]

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, len(singles))
        params = {single.name: single.init(k) for single, k in zip(singles, keys, strict=True)}
        return {name: value for name, value in params.items() if value}

    def having(hook: str) -> list[tuple[str, Callable[..., jax.Array]]]:
        return [(single.name, f) for single in singles if (f := getattr(single, hook))]

    def summed(hook: str) -> Callable[..., jax.Array] | None:
        terms = having(hook)

        def total(params: Params, *args: Array) -> jax.Array:
            each = (f(params.get(name, {}), *args) for name, f in terms)
            return functools.reduce(operator.add, each)

        return total if terms else None

    rotations = having("rotate")

    def rotate(params: Params, x: Array, positions: Array) -> jax.Array:
        for name, f in rotations:
            x = f(params.get(name, {}), x, positions)
        return x

    return PositionEncoding(
        name="+".join(names),
        kind="none",
        init=init,
        embed=summed("embed"),
        rotate=rotate if rotations else None,
        logits=summed("logits"),
        values=summed("values"),
        parts=singles,
    )


def split(encoding: PositionEncoding, params: Params) -> list[tuple[PositionEncoding, Params]]:
    """The single encodings inside `encoding`, each with its own params."""
    if not encoding.parts:
        return [(encoding, params)]
    return [(part, params.get(part.name, {})) for part in encoding.parts]


def parameter_count(encoding: PositionEncoding) -> int:
    """How many numbers `encoding` learns, from the shapes of its `init`."""
    shapes = jax.eval_shape(encoding.init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))
