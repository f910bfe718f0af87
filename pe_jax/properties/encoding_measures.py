"""The paper's three properties of any position encoding, measured in a layer of random weights.

Proximities are the dot products P·Pᵀ of an encoding whose position vectors are added to the input
(paper, section 5.1). For any other they are the attention logits of an input that repeats one word
(section 3.1), with random projections of queries and keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import encodings
from pe_jax.attention import attention_logits
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float, Int
from pe_jax.encodings import Context, Params, Part, PositionEncoding
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
    invariance, monotone, symmetric = violations(encoding, phi)
    w, turn = frequencies(encoding, params), None
    if w is not None and len(encoding.parts) == 1:
        turn = int(turning_point(psi(w, np.arange(length))))
    return Measures(
        by=by,
        translation_invariance=invariance,
        monotonicity=monotone,
        monotonicity_near=near,
        symmetry=symmetric,
        turning_point=turn,
        parameter_count=count,
    )


def one_layer(
    encoding: PositionEncoding, params: Params | None, *, layer: int = 0, seed: int = 0
) -> tuple[PositionEncoding, Params]:
    """Return a layer of an encoding, joined as in `measure`, and its parameters."""
    if params is None:
        params = jax.jit(encoding.init, static_argnums=1)(
            jax.random.key(seed), layer + 1
        )
    encoding, params = encoding.layer(layer), encoding.layer_params(params, layer)
    if (
        any(part.traits.causal_only for part in encoding.parts)
        and not encoding.is_causal
    ):
        encoding += encodings.causal()
    return encoding, params


def violations(
    encoding: PositionEncoding, phi: Float[Array, "N L L"]
) -> tuple[float, float, float | None]:
    """Return the mean violations in the order of `Measures`, see there."""
    both_sides = None if encoding.is_causal else _mean(symmetry(phi))
    return _mean(translation_invariance(phi)), _mean(monotonicity(phi)), both_sides


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
        return "P·Pᵀ", [
            proximity(vectors(params, positions))[None] for positions in inputs
        ]
    logits = jax.jit(functools.partial(logits_of_copies, encoding))
    layer = random_layer(sizes, tied=True)
    return "logits", [mirrored(encoding, logits(params, layer, x)) for x in inputs]


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
    traits = [part.traits for part in encoding._all_parts]
    return {
        name: next((x for t in traits if (x := getattr(t, name)) is not None), default)
        for name, default in SIZES.items()
    }


# Embeddings of words, and the projections of queries and keys.
RandomLayer = tuple[Float[Array, "W D"], Float[Array, "D H d"], Float[Array, "D H d"]]


def random_layer(sizes: Mapping[str, int], *, tied: bool) -> RandomLayer:
    """Draw a layer; with `tied`, keys are projected as queries are."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: np.asarray(rng.normal(size=shape), np.float32)
    width, size, heads = (sizes[name] for name in SIZES)
    w_q, w_k = (normal(width, heads, size) * np.float32(width**-0.5) for _ in range(2))
    return normal(WORDS, width), w_q, w_q if tied else w_k


def logits_of_copies(
    encoding: PositionEncoding,
    params: Params,
    layer: RandomLayer,
    positions: Int[Array, " L"],
) -> Float[jax.Array, "N L L"]:
    """Return the attention logits of inputs that repeat one word each; N is words × heads."""
    words, w_q, w_k = layer
    length, positions = len(positions), on_all_axes(positions, encoding)
    x = jnp.repeat(words[:, None], length, axis=1)
    tokens = jnp.repeat(jnp.arange(len(words))[:, None], length, axis=1)
    x = encodings.embed(
        x, encoding, params, Context(positions_q=positions, tokens=tokens)
    )
    project = lambda w: lambda x: jnp.einsum("...D,Dhd->...hd", x, w)
    maps = (project(w_q), project(w_k))
    context = Context(
        positions_q=positions, positions_k=positions, x_q=x, x_k=x, projections=maps
    )
    out = attention_logits(
        maps[0](x), maps[1](x), encoding.in_attention, params, context
    )
    return out.reshape(-1, length, length)


def mirrored(
    encoding: PositionEncoding, phi: Float[Array, "N L L"]
) -> Float[jax.Array, "N L L"]:
    """Return Φ, of causal attention with the proximities to keys on the left on both sides."""
    if not encoding.is_causal:
        return jnp.asarray(phi)
    return jnp.tril(phi) + jnp.swapaxes(jnp.tril(phi, -1), -1, -2)


def position_vectors(
    encoding: PositionEncoding, hidden_size: int
) -> Callable[[Params, Int[Array, " L"]], Float[jax.Array, "L D"]] | None:
    """Return `(params, positions) -> P`, the vectors added to the input; None for an encoding that
    adds none, or acts on logits in addition."""
    cards = [part.metadata for part in encoding.parts if part.embed]
    adds = any(
        metadata and metadata.vectors and metadata.kind == "absolute"
        for metadata in cards
    )
    if not adds or any(map(_acts_on_logits, encoding.parts)):
        return None

    @jax.jit
    def vectors(params: Params, positions: Int[Array, " L"]) -> Float[jax.Array, "L D"]:
        nothing = jnp.zeros((1, len(positions), hidden_size))
        context = Context(positions_q=on_all_axes(positions, encoding))
        return encodings.embed(nothing, encoding, params, context)[0]

    return vectors


def _acts_on_logits(part: Part) -> bool:
    terms = part.offsets
    from_offsets = terms and (terms.key_vectors or terms.query_vectors or terms.bias)
    return bool(part.map_qkv or part.logits or part.map_logits or from_offsets)


def on_all_axes(
    positions: Int[Array, " L"], encoding: PositionEncoding
) -> Int[Array, " L *A"]:
    """Return positions that are equal on all axes of an encoding, where it has several."""
    axes = encoding.axes
    return positions if axes == 1 else positions[:, None].repeat(axes, axis=1)
