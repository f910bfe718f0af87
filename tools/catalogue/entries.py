"""Which encodings the catalogue has: all that are registered, and options that change an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pe_jax.encodings import ENCODINGS, WRAPPERS, PositionEncoding, from_name
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
