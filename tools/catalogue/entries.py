"""Which encodings the catalogue has, and what they declare of themselves; nothing is compiled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.attention import cudnn, inputs, xla
from pe_jax.encodings import (
    ENCODINGS,
    WRAPPERS,
    HookContext,
    Metadata,
    PositionEncoding,
    Positions,
    from_name,
)
from pe_jax.encodings.registry import REQUIRED, call_text, options_of

Sizes = Mapping[str, int]

# BERT-base.
SIZES = {"hidden_size": 768, "head_size": 64, "num_heads": 12, "max_length": 512}

# Options that change what the tables say, next to the encoding with its defaults.
VARIANTS = (
    "learned_relative(separate=True)",
    "rope(learnable=True)",
    "alibi(learnable=True)",
    "alibi(directed=True, learnable=True)",
    "t5(bidirectional=False)",
    "fire(directed=True)",
)
WRAPPED = "rope"  # What wrappers are shown with.


class Entry(NamedTuple):
    """An encoding of the catalogue.

    Attributes:
      name: as a config writes it, options that it requires included.
      encoding: built for BERT-base.
      options: those that have a default, with it.
      required: examples of the others.
    """

    name: str
    encoding: PositionEncoding
    options: Mapping[str, Any] = MappingProxyType({})
    required: Mapping[str, Any] = MappingProxyType({})

    @property
    def title(self) -> str:
        """The name without the options that are examples."""
        inside = call_text("", dict(self.required))[1:-1]
        return self.name.replace(inside, "…") if inside else self.name

    @property
    def key(self) -> str:
        """The name that is registered."""
        return self.name.partition("+")[0].partition("(")[0]


def rows(sizes: Sizes = SIZES) -> list[Entry]:
    """A row for each registered encoding, for each wrapper around `rope`, and for each variant."""
    found = []
    for key, make in ENCODINGS.items():
        variants = [name for name in VARIANTS if name.partition("(")[0] == key]
        required = _required(key, options_of(make), sizes)
        for name in (call_text(key, required), *variants):
            found.append(_entry(name, make, required, sizes))
    for key, make in WRAPPERS.items():
        required = _required(key, options_of(make), sizes)
        _, bracket, inside = call_text(key, required).partition("(")
        name = f"{key}({WRAPPED}{', ' if bracket else ')'}{inside}"
        found.append(_entry(name, make, required, sizes))
    return found


def _entry(
    name: str,
    make: Callable[..., PositionEncoding],
    required: Mapping[str, Any],
    sizes: Sizes,
) -> Entry:
    encoding = from_name(name, **sizes)
    if any(part.traits.causal_only for part in encoding.parts):
        name = f"{name}+causal"
        encoding = from_name(name, **sizes)
    defaults = {k: v for k, v in options_of(make).items() if v is not REQUIRED}
    return Entry(name, encoding, defaults, required)


def _required(key: str, options: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Values for the options of an encoding that have no default."""
    pairs = sizes["head_size"] // 2
    # Of an image of max_length patches.
    height = 2 ** ((sizes["max_length"].bit_length() - 1) // 2)
    examples = {
        "factor": 4.0,
        "height": height,
        "long": (4.0,) * pairs,
        "max_distance": sizes["max_length"] // 8,
        "original_length": sizes["max_length"] // (8 if key == "log_n" else 4),
        "short": (1.0,) * pairs,
        "size": sizes["max_length"] // 8,
        "width": sizes["max_length"] // height,
    }
    needed = [option for option, default in options.items() if default is REQUIRED]
    if missing := [option for option in needed if option not in examples]:
        raise ValueError(
            f"{key!r} requires the options {missing}: give the catalogue an example of each, in "
            "catalogue.entries."
        )
    return {option: examples[option] for option in needed}


_ACTS = {
    "maps queries, keys or values": "q, k",
    "adds terms to the attention logits": "logits",
    "adds position vectors to the values": "values",
    "limits how far a query attends": "mask",
    "changes the temperature of the softmax": "temperature",
    "adds to the denominator of the softmax": "softmax denominator",
    "maps the finished logits": "finished logits",
}


def cards(row: Entry) -> list[Metadata]:
    """Of the parts, without the `causal` that a part may need.

    Raises:
      ValueError: for a part that says nothing of itself.
    """
    parts = row.encoding.parts[:1]
    if missing := [part.name for part in parts if part.metadata is None]:
        raise ValueError(
            f"{missing} have no metadata: a row of the catalogue needs it."
        )
    return [part.metadata for part in parts if part.metadata]


def acts(row: Entry) -> str:
    """Where an encoding acts, in short."""
    found = []
    for part in row.encoding.parts[:1]:
        found += ["positions"] * (part.positions is not None)
        found += ["input"] * (part.embed is not None)
        found += [_ACTS[what] for what in part.effects]
        if part.map_qkv and term_forms(row.encoding).maps_values:
            found[found.index("q, k")] = "q, k, v"
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
      cudnn: whether cuDNN's attention supports it, in bfloat16.
      maps_values: whether it maps the values, and not only queries and keys.
    """

    terms: tuple[str, ...] | None
    kernel: bool
    cudnn: bool
    maps_values: bool


@functools.cache
def term_forms(encoding: PositionEncoding, *, packed: bool = False) -> TermForms:
    """Return the forms at consecutive positions, or at those that start again with each document
    of a row."""
    from pe_jax.attention.tpu_kernel import adapter  # Pallas takes long to import.

    width, size, heads, length = SIZES.values()
    last = () if encoding.axes == 1 else (encoding.axes,)
    positions: range | jax.ShapeDtypeStruct = range(length)
    if packed or last:  # Such positions are never ranges.
        positions = jax.ShapeDtypeStruct((1, length, *last), jnp.int32)
    struct = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    x, q, w = (
        struct(1, length, width),
        struct(1, length, heads, size),
        struct(width, heads, size),
    )
    params = jax.eval_shape(encoding.init, jax.random.key(0))

    def forms(params: Any, x: Any, q: Any, w: Any, packed_positions: Any) -> TermForms:
        here: Positions = (
            positions if isinstance(positions, range) else packed_positions
        )
        project = lambda x: jnp.einsum("...D,Dhd->...hd", x, w)
        context = HookContext(
            positions_q=here,
            positions_k=here,
            x_q=x,
            x_k=x,
            projections=(project, project),
        )
        made = inputs.apply_encoding(encoding, params, q, q, q, context, None)
        computed = [xla.computation(term, made) for term in made.terms]
        fits = not xla.unsupported_reason(made)
        computes = (
            tuple(dict.fromkeys(way for way in computed if way != "added"))
            if fits
            else ()
        )
        half = q.astype(jnp.bfloat16)
        in_half = inputs.apply_encoding(
            encoding, params, half, half, half, context, None
        )
        terms = computes if made.terms else None
        return TermForms(
            terms,
            not adapter.unsupported_reason(made),
            not cudnn.unsupported_reason(in_half, None),
            made.v is not q,
        )

    packed_positions = None if isinstance(positions, range) else positions
    return jax.eval_shape(forms, params, x, q, w, packed_positions)
