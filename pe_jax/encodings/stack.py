"""What an encoder takes: which encoding acts at the input, and which in each layer."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax

from pe_jax.encodings.base import (
    Card,
    Params,
    Part,
    PositionEncoding,
    common_axes,
    least_longest,
    not_an_encoding,
)


class Placed(NamedTuple):
    """A part of a stack, by the name of its place: `rope`, or `cycle_1/rope` in some layers."""

    name: str
    part: Part
    params: Params

    @property
    def card(self) -> Card:
        """How it is measured; nothing to measure if the part does not say."""
        return self.part.card or Card()


@dataclasses.dataclass(frozen=True)
class Stack:
    """Encodings over the layers of a model.

    Attributes:
      common: embeds the input once and acts in every layer, its parameters shared by all (paper).
      layers: what the layers have in addition, in turn: layer i takes `layers[i % len(layers)]`.
        One of these that embeds does so at the input of each layer that takes it.
      own: every layer has parameters of its own for these; else the layers that take the same one
        share them.

    Example:
      >>> from pe_jax import encodings
      >>> near, far = (encodings.rope(head_size=64, base=base) for base in (10_000.0, 160_000.0))
      >>> modern = encodings.Stack(layers=(far, near + encodings.window(reach=64), near))
    """

    common: PositionEncoding = dataclasses.field(default_factory=PositionEncoding)
    layers: tuple[PositionEncoding, ...] = ()
    own: bool = False

    def __post_init__(self) -> None:
        for one in self.layers:
            _ = self.common + one  # Families that collide are an error here.

    @property
    def name(self) -> str:
        """As a config writes it; parses back to the same stack."""
        if not self.layers:
            return self.common.name
        turn = f"{'own' if self.own else 'cycle'}({', '.join(one.name for one in self.layers)})"
        return f"{self.common.name}+{turn}" if self.common.parts else turn

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those of all encodings that occur."""
        return tuple(part for one in (self.common, *self.layers) for part in one.parts)

    @property
    def longest(self) -> int | None:
        """The number of positions, where a part has a limit."""
        return least_longest(self.parts)

    @property
    def axes(self) -> int:
        """A, of the positions that all of them take.

        Raises:
          ValueError: if they take positions of different numbers of axes.
        """
        return common_axes(self.parts, self.name)

    def init(self, key: jax.Array, num_layers: int) -> Params:
        """Parameters: those of `common` by name, and those of the layers under `cycle_0` and so on
        or, each layer its own, `layer_0` and so on; no entry for what learns nothing."""
        if not self.layers:
            return self.common.init(key)
        names = {self._entry(i): self._extra(i) for i in range(num_layers)}
        for_common, *keys = jax.random.split(key, 1 + len(names))
        layers = {name: one.init(own) for (name, one), own in zip(names.items(), keys, strict=True)}
        return {**self.common.init(for_common), **{k: v for k, v in layers.items() if v}}

    def at_layer(self, params: Params, layer: int) -> tuple[PositionEncoding, Params]:
        """What attention of a layer takes, with its parameters."""
        extra, own = self.extra(params, layer)
        if not self.layers:
            return self.common, params
        shared = {part.key: params[part.key] for part in self.common.parts if part.key in params}
        return self.common + extra, {**shared, **own}

    def extra(self, params: Params, layer: int) -> tuple[PositionEncoding, Params]:
        """What a layer has beside `common`, with its parameters; its `embed` acts in the layer."""
        return self._extra(layer), params.get(self._entry(layer), {}) if self.layers else {}

    def _extra(self, layer: int) -> PositionEncoding:
        return self.layers[layer % len(self.layers)] if self.layers else PositionEncoding()

    def _entry(self, layer: int) -> str:
        """Under which the parameters of a layer are; equal encodings share an entry."""
        if self.own:
            return f"layer_{layer}"
        names = [one.name for one in self.layers]
        return f"cycle_{names.index(self._extra(layer).name)}" if names else ""

    def placed(self, params: Params) -> list[Placed]:
        """All parts with their parameters; those that layers share occur once."""
        found = [Placed(part.key, part, own) for part, own in self.common.split(params)]
        for name, layer in self._sets(params):
            split = self._extra(layer).split(params.get(name, {}))
            found += [Placed(f"{name}/{part.key}", part, own) for part, own in split]
        return found

    def _sets(self, params: Params) -> list[tuple[str, int]]:
        """The entries of the layers in order, each with the number of a layer that reads it."""
        if self.own:
            learned = sorted(self._entries(params), key=lambda entry: entry[1])
            return learned or [(self._entry(i), i) for i in range(len(self.layers))]
        return list({self._entry(i): i for i in reversed(range(len(self.layers)))}.items())[::-1]

    def resize(self, params: Params, length: int, method: str) -> Params:
        """Parameters for another number of positions, see `resize_table`."""
        resized = self.common.resize(params, length, method)
        for name, layer in self._entries(params):
            resized[name] = self._extra(layer).resize(params[name], length, method)
        return resized

    def frequencies(self, params: Params) -> Params:
        """A tree like `params`: True for parameters that are frequencies."""
        marks = _frequencies(self.common, params)
        for name, layer in self._entries(params):
            marks[name] = _frequencies(self._extra(layer), params[name])
        return marks

    def _entries(self, params: Params) -> list[tuple[str, int]]:
        """The entries of the layers, each with the number of a layer that reads it."""
        names = params.keys() - {part.key for part in self.common.parts}
        return [(name, int(name.rpartition("_")[2])) for name in names]


def as_stack(encoding: PositionEncoding | Stack) -> Stack:
    """A plain encoding is the stack of itself.

    Raises:
      ValueError: for something else.
    """
    if not isinstance(encoding, Stack | PositionEncoding):
        raise ValueError(not_an_encoding(encoding))
    return encoding if isinstance(encoding, Stack) else Stack(encoding)


def _frequencies(encoding: PositionEncoding, params: Params) -> Params:
    def marks(leaves: tuple[str, ...], own: Params) -> Params:
        is_one = lambda path, _: path[-1].key in leaves
        return jax.tree_util.tree_map_with_path(is_one, own)

    return {
        part.key: marks(part.traits.frequency_params, own)
        for part, own in encoding.split(params)
        if own
    }


def parameter_count(encoding: PositionEncoding | Stack, num_layers: int = 1) -> int:
    """How many numbers `encoding` learns in a model of `num_layers`, from the shapes of `init`."""
    initial = lambda key: as_stack(encoding).init(key, num_layers)
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(initial, jax.random.key(0))))
