"""Properties and requirements of untrained encodings, measured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from catalogue.entries import SIZES, Entry, Sizes, on_all_axes
from pe_jax import properties
from pe_jax.attention import attention_logits
from pe_jax.encodings import Context, Params, PositionEncoding, embed
from pe_jax.shapes import Array, Float, Int

LENGTH = 128  # Of the proximity matrices that properties are measured on.
WORDS = 4  # Each repeated over a whole input.


class Properties(NamedTuple):
    """Violations, means over words and heads: 0 if the property holds exactly.

    Attributes:
      by: what proximities are, `"P·Pᵀ"` or `"logits"`.
      invariance, monotonicity, symmetry: see `pe_jax.properties`; symmetry is None where queries
        attend to one side only.
      near: monotonicity within 10 offsets.
    """

    by: str
    invariance: float
    monotonicity: float
    near: float
    symmetry: float | None


class Requirements(NamedTuple):
    """See `pe_jax.properties.requirements`.

    Attributes:
      points: what stands for a position: `"P_x"`, `"P_m"` (vectors of positions, of offsets), or
        `"logits"`, of all keys for one query.
      distinctness: among all positions of BERT-base.
      size: root mean square of the numbers in the points of 64 positions.
      growth: from these to all positions of BERT-base, eight times as many.
      length: change of proximities in an input twice as long.
      shift: change of proximities at positions that are 256 larger.
    """

    points: str
    distinctness: float
    size: float
    growth: float
    length: float
    shift: float


Vectors = Callable[[Params, Int[Array, " L"]], Float[Array, "L D"]]


class _Layer(NamedTuple):
    """A layer before training: words, and the projections of queries and keys."""

    words: Float[Array, "W D"]
    w_q: Float[Array, "D H d"]
    w_k: Float[Array, "D H d"]


def _layer(sizes: Sizes, *, tied: bool) -> _Layer:
    rng = np.random.default_rng(0)
    normal = lambda *shape: np.asarray(rng.normal(size=shape), np.float32)
    width, size, heads, _ = sizes.values()
    w_q, w_k = (normal(width, heads, size) * np.float32(width**-0.5) for _ in range(2))
    return _Layer(normal(WORDS, width), w_q, w_q if tied else w_k)


def measure(row: Entry, sizes: Sizes = SIZES) -> tuple[Properties, Requirements]:
    """Both, of the parameters that `init` makes."""
    encoding = row.encoding
    params = jax.jit(encoding.init)(jax.random.key(0))
    logits = jax.jit(functools.partial(_logits, encoding))
    vectors = _position_vectors(encoding, sizes)
    tied, untied = (_layer(sizes, tied=tied) for tied in (True, False))

    def proximities(layer: _Layer, at: Int[Array, " L"]) -> Float[Array, "N L L"]:
        if vectors is not None:
            return properties.proximity(vectors(params, at))[None]
        return _seen(encoding, logits(params, layer, at))

    at = np.arange(LENGTH, dtype=np.int32)
    phi = proximities(tied, at)
    one_sided = encoding.is_causal
    found = Properties(
        "logits" if vectors is None else "P·Pᵀ",
        _mean(properties.translation_invariance(phi)),
        _mean(properties.monotonicity(phi)),
        _mean(properties.monotonicity(phi, 10)),
        None if one_sided else _mean(properties.symmetry(phi)),
    )

    few = at[: LENGTH // 2]
    name, points = _points(encoding, params, vectors, functools.partial(logits, params, untied))
    near, far = points(few), points(np.arange(sizes["max_length"], dtype=np.int32))
    short = proximities(untied, few)
    longer = proximities(untied, at)[:, : len(few), : len(few)]
    shifted = proximities(untied, few + sizes["max_length"] // 2)
    required = Requirements(
        name,
        float(properties.distinctness(far)),
        float(jnp.sqrt((near**2).mean())),
        float(properties.norm_growth(near, far)),
        _mean(properties.relative_change(short, longer)),
        _mean(properties.relative_change(short, shifted)),
    )
    return found, required


def _mean(x: Float[Array, " N"]) -> float:
    return float(jnp.mean(x))


def _seen(encoding: PositionEncoding, phi: Float[Array, "N L L"]) -> Float[Array, "N L L"]:
    """Proximities of keys to the left on both sides, where queries attend to no others."""
    if not encoding.is_causal:
        return phi
    left = jnp.tril(phi)
    return left + jnp.swapaxes(jnp.tril(phi, -1), -1, -2)


def _logits(
    encoding: PositionEncoding, params: Params, layer: _Layer, at: Int[Array, " L"]
) -> Float[Array, "N L L"]:
    """Of inputs that repeat one word; N words × heads."""
    positions = on_all_axes(at, encoding)
    words, length = len(layer.words), len(at)
    x = jnp.broadcast_to(layer.words[:, None], (words, length, layer.words.shape[-1]))
    tokens = jnp.broadcast_to(jnp.arange(words)[:, None], (words, length))
    x = embed(encoding, params, x, positions, tokens=tokens)
    project = lambda w: lambda x: jnp.einsum("...D,Dhd->...hd", x, w)
    maps = (project(layer.w_q), project(layer.w_k))
    context = Context(positions, positions, x, x, maps)
    out = attention_logits(maps[0](x), maps[1](x), encoding.in_attention, params, context)
    return out.reshape(-1, length, length)


def _position_vectors(encoding: PositionEncoding, sizes: Sizes) -> Vectors | None:
    """`(params, positions [L]) -> [L, D]`, what is added to embeddings; None for an encoding of
    another kind."""
    cards = [part.card for part in encoding.parts if part.embed]
    if not any(card and card.vectors and card.kind == "absolute" for card in cards):
        return None
    nothing = lambda length: jnp.zeros((1, length, sizes["hidden_size"]))

    @jax.jit
    def vectors(params: Params, at: Int[Array, " L"]) -> Float[Array, "L D"]:
        return embed(encoding, params, nothing(len(at)), on_all_axes(at, encoding))[0]

    return vectors


def _points(
    encoding: PositionEncoding,
    params: Params,
    absolute: Vectors | None,
    logits: Callable[[Int[Array, " L"]], Float[Array, "N L L"]],
) -> tuple[str, Callable[[Int[Array, " L"]], Float[Array, "M e"]]]:
    """What points are, and those of positions."""
    if absolute is not None:
        return "P_x", functools.partial(absolute, params)
    part = next((p for p in encoding.parts if p.card and p.card.vectors), None)
    if part is not None and part.card is not None and part.card.kind == "relative":
        vectors = part.card.vectors
        own = params.get(part.key, {})

        def both_sides(at: Int[Array, " L"]) -> Float[Array, "M e"]:
            assert vectors is not None
            offsets = np.concatenate([-at[:0:-1], at])
            return vectors(own, offsets).reshape(len(offsets), -1)

        return "P_m", both_sides

    def of_keys(at: Int[Array, " L"]) -> Float[Array, "L N"]:
        """What positions add to the logits of keys for the query in the middle, or, where it only
        attends to the left, for the last one."""
        phi = logits(at)
        query = len(at) - 1 if encoding.is_causal else len(at) // 2
        return (phi[:, query] - phi[:, query, query, None]).T

    return "logits", of_keys
