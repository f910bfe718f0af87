"""The paper's three properties of any position encoding, measured in a layer of random weights.

Proximities are the dot products P·Pᵀ of an encoding whose position vectors are added to the input
(paper, section 5.1). For any other they are the attention logits of an input that repeats one word
(section 3.1), with a random projection that queries and keys share. Equal projections show what the
encoding itself prefers; with unequal random ones, the logits of an untrained RoPE are noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import encodings
from pe_jax.attention import attention_logits
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float, Int
from pe_jax.encodings import Context, OffsetTerms, Params, Part, PositionEncoding
from pe_jax.encodings.parameters import split_params
from pe_jax.properties.metrics import (
    monotonicity,
    proximity,
    symmetry,
    translation_invariance,
)
from pe_jax.properties.toeplitz import psi, turning_point

WORDS = 4  # Each repeated over an input.
SIZES = {"hidden_size": 768, "head_size": 64, "num_heads": 12}  # BERT-base.
MAX_LENGTH = 512


class Measures(Record, pytree=True):
    """Properties of an encoding. Violations are 0 if a property holds exactly, and means over words
    and heads where proximities are logits.

    Attributes:
      by: what proximities are, `"P·Pᵀ"` or `"logits"`.
      translation_invariance, monotonicity, symmetry: the violations, see the functions of these
        names; symmetry is None where queries attend to one side only.
      monotonicity_near: monotonicity within `window` offsets.
      turning_point: up to this offset the ψ of its frequencies decreases; None without frequencies.
      parameter_count: the numbers that it learns in one layer.
    """

    by: str
    translation_invariance: float
    monotonicity: float
    monotonicity_near: float
    symmetry: float | None
    turning_point: int | None
    parameter_count: int


def measure(
    encoding: PositionEncoding | str,
    params: Params | None = None,
    *,
    length: int = 128,
    window: int = 10,
    layer: int = 0,
    seed: int = 0,
) -> Measures:
    """Measure the paper's three properties of an encoding, by P·Pᵀ or by attention logits.

    Windows and other limits of what queries attend to are left out of Φ; where they attend to the
    left only, Φ is that side mirrored. Positions of several axes are equal on all of them.

    Args:
      encoding: an encoding, or a name such as `"rope(base=500)+alibi"`, which is built in the sizes
        of BERT-base. It is joined with `causal` if it is for causal attention alone.
      params: what `encoding.init` returned, possibly trained since; default those of `seed`.
      length: number of positions.
      window: offsets of `monotonicity_near`.
      layer: index of the layer, where layers differ.
      seed: draws parameters.

    Raises:
      ValueError: for a name that is not known, for more positions than the encoding has or fewer
        than three, or a window that does not fit.

    Example:
      >>> from pe_jax import properties
      >>> measures = properties.measure("sinusoidal_absolute", length=64)
      >>> measures.by, round(measures.translation_invariance, 3), measures.turning_point
      ('P·Pᵀ', 0.0, 43)
    """
    if isinstance(encoding, str):
        encoding = encodings.from_name(
            encoding, **SIZES, max_length=max(length, MAX_LENGTH)
        )
    count = encodings.parameter_count(encoding)
    encoding, params = one_layer(encoding, params, layer=layer, seed=seed)
    by, (phi,) = proximities(encoding, params, [length])
    near = _mean(monotonicity(phi, window))
    turn = None
    w = frequencies(encoding, params)
    if w is not None and len(encoding.parts) == 1:
        turn = int(turning_point(psi(w, np.arange(length))))
    return Measures(
        by=by,
        **violations(encoding, phi),
        monotonicity_near=near,
        turning_point=turn,
        parameter_count=count,
    )


def one_layer(
    encoding: PositionEncoding, params: Params | None, *, layer: int = 0, seed: int = 0
) -> tuple[PositionEncoding, Params]:
    """Return a layer of an encoding, joined as in `measure`, and its parameters."""
    if params is None:
        init = jax.jit(encoding.init, static_argnums=1)
        params = init(jax.random.key(seed), layer + 1)
    params = encoding.layer_params(params, layer)
    encoding = encoding.layer(layer)
    needs_causal = any(part.traits.causal_only for part in encoding.parts)
    if needs_causal and not encoding.is_causal:
        encoding += encodings.causal()
    return encoding, params


def violations(
    encoding: PositionEncoding, phi: Float[Array, "N L L"]
) -> dict[str, Any]:
    """Return the mean violations by the name of their field in `Measures`."""
    return {
        "translation_invariance": _mean(translation_invariance(phi)),
        "monotonicity": _mean(monotonicity(phi)),
        "symmetry": None if encoding.is_causal else _mean(symmetry(phi)),
    }


def _mean(x: Float[Array, " N"]) -> float:
    return float(jnp.mean(x))


def proximities(
    encoding: PositionEncoding, params: Params, lengths: Sequence[int]
) -> tuple[str, list[Float[jax.Array, "N L L"]]]:
    """Return what proximities of a layer are, `"P·Pᵀ"` or `"logits"`, and Φ for each length.

    Raises:
      ValueError: for more positions than the encoding has.
    """
    longest = encoding.max_length
    if longest is not None and max(lengths) > longest:
        raise ValueError(
            f"length must be at most {longest}, the positions of {encoding.name}, got "
            f"{max(lengths)}."
        )
    sizes = sizes_of(encoding)
    inputs = [np.arange(length, dtype=np.int32) for length in lengths]
    vectors = position_vectors(encoding, sizes["hidden_size"])
    if vectors is not None:
        products = [proximity(vectors(params, positions)) for positions in inputs]
        return "P·Pᵀ", [phi[None] for phi in products]
    logits = jax.jit(functools.partial(logits_of_copies, encoding))
    layer = random_layer(sizes, tied=True)
    matrices = [logits(params, layer, positions) for positions in inputs]
    return "logits", [mirrored(encoding, phi) for phi in matrices]


def frequencies(
    encoding: PositionEncoding, params: Params
) -> Float[jax.Array, " F"] | None:
    """Return the frequencies of the first part of a layer that has any, in radians per position."""
    for part, values in split_params(encoding, params):
        if part.metadata and part.metadata.frequencies:
            return jnp.asarray(part.metadata.frequencies(values)).ravel()
    return None


def sizes_of(encoding: PositionEncoding) -> dict[str, int]:
    """Return D, d and H that an encoding was built for; those of BERT-base where it takes any."""
    sizes = {}
    for name, default in SIZES.items():
        known = [getattr(part.traits, name) for part in encoding._all_parts]
        sizes[name] = next((size for size in known if size is not None), default)
    return sizes


class RandomLayer(NamedTuple):
    """Embeddings of words, and the projections of queries and keys."""

    words: Float[Array, "W D"]
    w_q: Float[Array, "D H d"]
    w_k: Float[Array, "D H d"]


def random_layer(sizes: Mapping[str, int], *, tied: bool) -> RandomLayer:
    """Draw a layer; with `tied`, keys are projected as queries are."""
    rng = np.random.default_rng(0)
    width = sizes["hidden_size"]
    shape = (width, sizes["num_heads"], sizes["head_size"])
    scale = np.float32(width**-0.5)
    w_q = rng.normal(size=shape).astype(np.float32) * scale
    w_k = rng.normal(size=shape).astype(np.float32) * scale
    words = rng.normal(size=(WORDS, width)).astype(np.float32)
    return RandomLayer(words=words, w_q=w_q, w_k=w_q if tied else w_k)


def logits_of_copies(
    encoding: PositionEncoding,
    params: Params,
    layer: RandomLayer,
    positions: Int[Array, " L"],
) -> Float[jax.Array, "N L L"]:
    """Return the attention logits of inputs that repeat one word each; N is words × heads."""
    length = len(positions)
    positions = on_all_axes(positions, encoding)
    words = jnp.repeat(layer.words[:, None], length, axis=1)
    tokens = jnp.repeat(jnp.arange(len(words))[:, None], length, axis=1)
    at_input = Context(positions_q=positions, tokens=tokens)
    x = encodings.embed(words, encoding, params, at_input)

    def to_queries(x: Array) -> jax.Array:
        return jnp.einsum("...D,Dhd->...hd", x, layer.w_q)

    def to_keys(x: Array) -> jax.Array:
        return jnp.einsum("...D,Dhd->...hd", x, layer.w_k)

    context = Context(
        positions_q=positions,
        positions_k=positions,
        x_q=x,
        x_k=x,
        projections=(to_queries, to_keys),
    )
    logits = attention_logits(
        to_queries(x), to_keys(x), encoding.in_attention, params, context
    )
    return logits.reshape(-1, length, length)


def mirrored(
    encoding: PositionEncoding, phi: Float[Array, "N L L"]
) -> Float[jax.Array, "N L L"]:
    """Return Φ, of causal attention with the proximities to keys on the left on both sides."""
    if not encoding.is_causal:
        return jnp.asarray(phi)
    left = jnp.tril(phi, -1)
    return jnp.tril(phi) + jnp.swapaxes(left, -1, -2)


def position_vectors(
    encoding: PositionEncoding, hidden_size: int
) -> Callable[[Params, Int[Array, " L"]], Float[jax.Array, "L D"]] | None:
    """Return `(params, positions) -> P`, the vectors added to the input; None for an encoding that
    adds none, or acts on logits in addition."""
    if not any(map(_adds_vectors, encoding.parts)):
        return None
    if any(map(_acts_on_logits, encoding.parts)):
        return None

    @jax.jit
    def vectors(params: Params, positions: Int[Array, " L"]) -> Float[jax.Array, "L D"]:
        nothing = jnp.zeros((1, len(positions), hidden_size))
        context = Context(positions_q=on_all_axes(positions, encoding))
        return encodings.embed(nothing, encoding, params, context)[0]

    return vectors


def _adds_vectors(part: Part) -> bool:
    metadata = part.metadata
    if part.embed is None or metadata is None:
        return False
    return metadata.vectors is not None and metadata.kind == "absolute"


def _acts_on_logits(part: Part) -> bool:
    terms = part.offsets or OffsetTerms()
    has_terms = terms.key_vectors or terms.query_vectors or terms.bias
    return bool(part.map_qkv or part.logits or part.map_logits or has_terms)


def on_all_axes(
    positions: Int[Array, " L"], encoding: PositionEncoding
) -> Int[Array, " L *A"]:
    """Return positions that are equal on all axes of an encoding, where it has several."""
    if encoding.axes == 1:
        return positions
    return positions[:, None].repeat(encoding.axes, axis=1)
