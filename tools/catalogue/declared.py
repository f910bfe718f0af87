"""What encodings say of themselves, and what attention can do with them: nothing is compiled."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from catalogue.entries import SIZES, Entry, Sizes
from pe_jax.attention import inputs, xla
from pe_jax.encodings import Context, Metadata, Positions

_ACTS = {
    "maps queries, keys or values": "q, k, v",
    "adds terms to the attention logits": "logits",
    "adds position vectors to the values": "values",
    "limits how far a query attends": "reach",
    "changes the temperature of the softmax": "temperature",
    "adds to the denominator of the softmax": "denominator",
    "maps the finished logits": "finished logits",
}


def cards(row: Entry) -> list[Metadata]:
    """Of the parts, without the `causal` that a part may need.

    Raises:
      ValueError: for a part that says nothing of itself.
    """
    parts = row.encoding.parts[:1]
    if missing := [part.name for part in parts if part.metadata is None]:
        raise ValueError(f"{missing} have no metadata: a row of the catalogue needs it.")
    return [part.metadata for part in parts if part.metadata]


def acts(row: Entry) -> str:
    """Where an encoding acts, in short."""
    found = []
    for part in row.encoding.parts[:1]:
        found += ["positions"] * (part.positions is not None)
        found += ["input"] * (part.embed is not None)
        found += [_ACTS[what] for what in part.effects]
    return ", ".join(found) or "–"


def invariant(row: Entry) -> bool:
    """Whether attention depends on differences of positions alone."""
    return all(metadata.invariant for metadata in cards(row))


def monotone(row: Entry) -> bool | None:
    """See `Metadata`; without any part all proximities are equal."""
    return next((metadata.monotone for metadata in cards(row)), False)


def symmetric(row: Entry) -> bool | None:
    """See `Metadata`."""
    return next((metadata.symmetric for metadata in cards(row)), True)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class TermForms:
    """How attention can compute an encoding at some positions; static, so that tracing returns it.

    Attributes:
      terms: how its terms of the offset are computed fast; None where it has no such terms.
      kernel: whether the TPU kernel supports it.
    """

    terms: tuple[str, ...] | None
    kernel: bool


def at_ranges(row: Entry, sizes: Sizes = SIZES) -> TermForms:
    """TermForms at consecutive positions."""
    length, axes = sizes["max_length"], row.encoding.axes
    if axes > 1:  # Such positions are never ranges.
        return _forms(row, jax.ShapeDtypeStruct((1, length, axes), jnp.int32), sizes)
    return _forms(row, range(length), sizes)


def at_packed(row: Entry, sizes: Sizes = SIZES) -> TermForms:
    """TermForms at positions that start again with each document of a row."""
    last = () if row.encoding.axes == 1 else (row.encoding.axes,)
    return _forms(row, jax.ShapeDtypeStruct((1, sizes["max_length"], *last), jnp.int32), sizes)


def _forms(row: Entry, positions: range | jax.ShapeDtypeStruct, sizes: Sizes) -> TermForms:
    from pe_jax.attention.tpu_kernel import adapter  # Pallas takes long to import.

    width, size, heads, length = sizes.values()
    encoding = row.encoding
    struct = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    x, q, w = struct(1, length, width), struct(1, length, heads, size), struct(width, heads, size)
    params = jax.eval_shape(encoding.init, jax.random.key(0))

    def term_forms(params: Any, x: Any, q: Any, w: Any, packed_positions: Any) -> TermForms:
        here: Positions = positions if isinstance(positions, range) else packed_positions
        project = lambda x: jnp.einsum("...D,Dhd->...hd", x, w)
        context = Context(here, here, x, x, (project, project))
        made = inputs.apply_encoding(encoding, params, q, q, q, context, None)
        computed = [xla.computation(term, made) for term in made.terms]
        fits = not xla.unsupported_reason(made)
        computes = tuple(dict.fromkeys(way for way in computed if way != "added")) if fits else ()
        any_terms = bool(made.terms)
        return TermForms(computes if any_terms else None, adapter.supports(made))

    packed_positions = None if isinstance(positions, range) else positions
    return jax.eval_shape(term_forms, params, x, q, w, packed_positions)
