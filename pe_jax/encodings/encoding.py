"""A position encoding of a model: parts that act together, in all layers or by layer.

`pe_jax.encodings.part` has the formula that parts are terms of.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.dtypes import check_floats
from pe_jax.encodings.part import Context, Params, Part, moved
from pe_jax.encodings.positions import AttentionWindow, Positions, checked_positions
from pe_jax.explicit_sharding import automatic_sharding, spec_of
from pe_jax.promotion import standard_promotion
from pe_jax.shapes import Array, Real


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class PositionEncoding:
    """A position encoding of a model: parts that act together, joined with `+`. None is `none`.

    Embeddings and maps follow one another, terms add up, factors multiply, every reach holds. Two
    builds of one encoding are equal. To JAX, an encoding is a tree without leaves.

    Attributes:
      parts: they embed the input once and act in every layer, their parameters shared by all.
      layers: what layers have in addition, by `cycle` or `per_layer`: layer i has
        `layers[i % len(layers)]`, which embeds at its input.
      per_layer: every layer has parameters of its own for `layers`; else layers that take the same
        encoding share them.

    Example:
      >>> from pe_jax import encodings
      >>> (encodings.sinusoidal_absolute(hidden_size=768) + encodings.rope(head_size=64)).name
      'sinusoidal_absolute+rope'
    """

    parts: tuple[Part, ...] = ()
    layers: tuple[PositionEncoding, ...] = ()
    per_layer: bool = False

    def __post_init__(self) -> None:
        if any(layer.layers for layer in self.layers):
            raise ValueError(f"{self.name}: 'cycle' and 'per_layer' cannot contain each other.")
        for extra in [layer.parts for layer in self.layers] or [()]:
            keys = [part.key for part in self.parts + extra]
            if not all(keys):
                raise ValueError("A part of an encoding needs a name: Part(name=...).")
            if len(set(keys)) < len(keys):
                raise ValueError(
                    f"{self.name} joins encodings of the same family, whose parameters would "
                    "collide. Use each family once, or set Part.params_key."
                )

    @property
    def name(self) -> str:
        """Name in a config; parses back to the same encoding."""
        return "+".join(self._terms(lambda x: x.name)) or "none"

    def __repr__(self) -> str:
        return " + ".join(self._terms(repr)) or "none()"

    def _terms(self, text: Callable[[Any], str]) -> list[str]:
        layers = ", ".join(map(text, self.layers))
        by_layer = [f"{'per_layer' if self.per_layer else 'cycle'}({layers})"] if layers else []
        return [*map(text, self.parts), *by_layer]

    def __add__(self, other: PositionEncoding) -> PositionEncoding:
        if callable(other):
            raise TypeError(f"An encoding was added to a function. Call it: {_hint(other)}.")
        if not isinstance(other, PositionEncoding):
            return NotImplemented
        if self.layers and other.layers:
            raise ValueError(f"{self.name}+{other.name} has more than one 'cycle' or 'per_layer'.")
        layered = self if self.layers else other
        return PositionEncoding(
            parts=self.parts + other.parts, layers=layered.layers, per_layer=layered.per_layer
        )

    def __radd__(self, other: object) -> PositionEncoding:
        return self + other  # type: ignore[operator]  # A function, or an error.

    def map_parts(self, function: Callable[[Part], Part]) -> PositionEncoding:
        """The encoding with `function(part)` in the place of each part."""
        layers = tuple(layer.map_parts(function) for layer in self.layers)
        return PositionEncoding(
            parts=tuple(map(function, self.parts)), layers=layers, per_layer=self.per_layer
        )

    @property
    def in_attention(self) -> PositionEncoding:
        """The parts that act in attention; itself if all do."""
        parts = tuple(part for part in self.parts if part.effects)
        return self if parts == self.parts else dataclasses.replace(self, parts=parts)

    @property
    def at_input(self) -> PositionEncoding:
        """The parts that act at the input of a model."""
        return PositionEncoding(parts=tuple(part for part in self.parts if part.embed))

    def layer(self, index: int) -> PositionEncoding:
        """Return what acts in a layer; itself unless layers differ."""
        return (
            PositionEncoding(parts=self.parts + self.at_layer(index).parts) if self.layers else self
        )

    def at_layer(self, index: int) -> PositionEncoding:
        """Return a layer's encoding without `parts`; its `embed` acts at the layer's input."""
        return self.layers[index % len(self.layers)] if self.layers else PositionEncoding()

    # --- parameters ---

    def init(self, rng: jax.Array, num_layers: int | None = None) -> Params:
        """Draw parameters `{part.key: params of that part}`, those of `layers` under `cycle_0` and
        so on or, with `per_layer`, `layer_0` and so on; nothing for a part that learns nothing.

        Raises:
          ValueError: if layers differ and `num_layers` is missing, or `rng` is no key.
        """
        check_key(rng)
        params: Params = {}
        if not self.layers:
            inits = {part.key: part.init for part in self.parts}
            rngs = jax.random.split(rng, len(inits)) if len(inits) > 1 else [rng]
        elif num_layers is None:
            raise ValueError(f"The layers of {self.name} differ: call init(rng, num_layers).")
        else:
            inits = {self._entry(i): self.at_layer(i).init for i in range(num_layers)}
            rng, *rngs = jax.random.split(rng, 1 + len(inits))
            params = PositionEncoding(parts=self.parts).init(rng)
        params |= {name: inits[name](rng) for name, rng in zip(inits, rngs)}
        return {name: value for name, value in params.items() if value}

    def layer_params(self, params: Params, index: int) -> Params:
        """The parameters of `layer(index)` within those of the whole encoding."""
        if not self.layers:
            return params
        shared = {part.key: params[part.key] for part in self.parts if part.key in params}
        return {**shared, **params.get(self._entry(index), {})}

    def split(self, params: Params | None) -> list[tuple[Part, Params]]:
        """`parts`, each with its own parameters.

        Raises:
          ValueError: if parameters of a part are missing, or have other shapes; a table that
            limits positions and can be resized may have any number of rows.
        """
        params = {} if params is None else params
        if not isinstance(params, Mapping):
            raise ValueError(
                "params must be the dict that encoding.init(rng) returned, got "
                f"{type(params).__name__}."
            )
        split = [(part, params.get(part.key, {})) for part in self.parts]
        missing, strange = [], []
        for part, part_params in split:
            shapes = _shapes(part_params)
            for path, expected in _expected_shapes(part.init).items():
                place, shape = f"{part.key}/{path}", shapes.get(path)
                rows = int(path == "table" and bool(part.traits.resize and part.traits.max_length))
                if shape is None:
                    missing.append(place if part.key in params else part.key)
                elif shape[rows:] != expected[rows:] or len(shape) != len(expected):
                    strange.append(f"{place} has shape {shape}, {part!r} has {expected}")
        if missing:
            raise ValueError(
                f"params lacks the parameters of {', '.join(dict.fromkeys(missing))}; got "
                f"{', '.join(params) or 'none'}. Pass what encoding.init(rng) returned."
            )
        if strange:
            raise ValueError(
                f"params has parameters of another encoding: {'; '.join(strange)}. Pass what "
                "encoding.init(rng) returned."
            )
        return split

    def bind(self, params: Params) -> dict[str, tuple[Part, Params]]:
        """All parts with their parameters, by place: `rope`, or `cycle_1/rope` in some layers."""
        bound = {part.key: (part, values) for part, values in self.split(params)}
        names = params.keys() - bound.keys() if self.per_layer else ()
        numbers = sorted(int(name.removeprefix("layer_")) for name in names)
        entries = {self._entry(number): self.at_layer(number) for number in numbers} or {
            self._entry(i): layer
            for i, layer in enumerate(self.layers)
            if self._entry(i) in params or not parameter_count(layer)
        }
        for name, layer in entries.items():
            for part, values in layer.split(params.get(name, {})):
                bound[f"{name}/{part.key}"] = part, values
        return bound

    def resize(self, params: Params, length: int, method: str) -> Params:
        """Parameters for another number of positions, see `resize_table`.

        Args:
          method: empty resizes only tables that do not limit positions, which need none.
        """

        def resize_part(part: Part, params: Params) -> Params:
            resize, longest = part.traits.resize, part.traits.max_length
            return resize(params, length, method) if resize and (method or not longest) else params

        return self._map_params(resize_part, params)

    def frequency_mask(self, params: Params) -> Params:
        """A tree like `params`: True for parameters that are frequencies."""

        def mask(part: Part, params: Params) -> Params:
            is_frequency = lambda path, _: path[-1].key in part.traits.frequency_params
            return jax.tree_util.tree_map_with_path(is_frequency, params)

        return self._map_params(mask, params)

    def _map_params(self, function: Callable[[Part, Params], Params], params: Params) -> Params:
        mapped: Params = {}
        for place, (part, values) in self.bind(params).items():
            entry, _, key = place.rpartition("/")
            if values:
                inside = mapped.setdefault(entry, {}) if entry else mapped
                inside[key] = function(part, values)
        return mapped

    def _entry(self, index: int) -> str:
        """The key of a layer's parameters; encodings of one name share an entry."""
        if self.per_layer:
            return f"layer_{index}"
        names = [layer.name for layer in self.layers]
        return f"cycle_{names.index(self.at_layer(index).name)}"

    # --- traits ---

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """`parts`, and those of all layers."""
        return self.parts + tuple(part for layer in self.layers for part in layer.parts)

    @property
    def max_length(self) -> int | None:
        """The number of positions that all parts have; None without a limit."""
        limits = (part.traits.max_length for part in self.all_parts)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def axes(self) -> int:
        """A, of the positions that all parts take; 1 without a part.

        Raises:
          ValueError: if parts take positions of different numbers of axes.
        """
        axes = {part.traits.axes for part in self.all_parts} or {1}
        if len(axes) > 1:
            raise ValueError(
                f"The parts of {self.name} need positions of different numbers of axes: "
                f"{sorted(axes)}."
            )
        return axes.pop()

    @property
    def reads_hidden_states(self) -> bool:
        """True if attention needs hidden states of keys."""
        return any(part.traits.reads_hidden_states for part in self.all_parts)

    @property
    def reach(self) -> AttentionWindow:
        """Reach that every part allows a query."""
        limits = [
            part.offsets.window for part in self.parts if part.offsets and part.offsets.window
        ]
        return functools.reduce(AttentionWindow.within, limits, AttentionWindow())

    @property
    def is_causal(self) -> bool:
        """True if no query attends to keys to its right."""
        return self.reach.right == 0

    def check_layer(self) -> None:
        """Raise a ValueError unless attention of one layer can take this encoding."""
        if self.layers:
            raise ValueError(
                f"The layers of {self.name} differ. Pass attention encoding.layer(i) and "
                "encoding.layer_params(params, i)."
            )
        for part in self.parts:
            if part.traits.causal_only and not self.is_causal:
                raise ValueError(
                    f"{part.name} needs causal attention: {part.traits.causal_only}. Combine it "
                    f"with causal: {self.name + '+causal'!r}."
                )
        adds_to_values = any(part.offsets and part.offsets.value_vectors for part in self.parts)
        if adds_to_values and any(part.map_output for part in self.parts):
            raise ValueError(
                f"{self.name} adds vectors to the values and undoes a map of the values (hook "
                "`output`), which would map these vectors too. Use one of them."
            )

    def check_acts_in_attention(self) -> None:
        """Raise a ValueError if all of this encoding acts at the input of a model."""
        if self.at_input.parts and not self.in_attention.parts:
            raise ValueError(
                f"encoding {self.name} acts only at the input of a model, by encodings.embed, not "
                "in attention. Pass encoding.in_attention, which leaves out such parts."
            )


@functools.lru_cache(maxsize=512)
def _expected_shapes(init: Callable[[jax.Array], Params]) -> dict[str, tuple[int, ...]]:
    return _shapes(jax.eval_shape(lambda: init(jax.random.key(0))))


def _shapes(params: Params) -> dict[str, tuple[int, ...]]:
    """Shapes of a part's parameters by path, `hidden/kernel`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.shape(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


def none() -> PositionEncoding:
    """No position information at all: the bag-of-words baseline (paper, tables 2 and 3)."""
    return PositionEncoding()


def cycle(*layers: PositionEncoding) -> PositionEncoding:
    """Let the layers of a model take encodings in turn; those that take the same one share its
    parameters.

    Example:
      >>> from pe_jax import encodings
      >>> near, far = (encodings.rope(head_size=64, base=base) for base in (10_000.0, 160_000.0))
      >>> modern = encodings.cycle(far, near + encodings.window(max_distance=64), near)
    """
    return PositionEncoding(layers=tuple(map(checked_encoding, layers)))


def per_layer(*layers: PositionEncoding) -> PositionEncoding:
    """Do as `cycle`, with separate parameters for every layer."""
    return PositionEncoding(layers=tuple(map(checked_encoding, layers)), per_layer=True)


def parameter_count(encoding: PositionEncoding, num_layers: int = 1) -> int:
    """Count the numbers that `encoding` learns in a model of `num_layers`; nothing is computed."""
    checked_encoding(encoding)
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), num_layers))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def checked_encoding(encoding: object) -> PositionEncoding:
    """`encoding` itself; a ValueError if it is not a `PositionEncoding`."""
    if not isinstance(encoding, PositionEncoding):
        name = type(encoding).__name__
        hint = "encodings.from_name builds one from a name."
        if callable(encoding):
            hint = f"Call it: {_hint(encoding)}."
        raise ValueError(f"encoding must be a PositionEncoding, got {name}. {hint}")
    return encoding


def check_key(rng: object) -> None:
    """Raise a ValueError unless something is an array, as keys are."""
    if not isinstance(rng, jax.Array | np.ndarray):
        raise ValueError(f"rng must be a key, such as jax.random.key(0), got {rng!r}.")


def _hint(make: Callable[..., object]) -> str:
    """A function that makes an encoding, as a call."""
    return f"{getattr(make, '__name__', type(make).__name__)}(...)"


@automatic_sharding(lambda encoding, params, x, *_, **__: spec_of(x, 0, 1, 2))
@standard_promotion()
def embed(
    encoding: PositionEncoding,
    params: Params | None,
    x: Real[Array, "B L D"],
    positions: Positions | None = None,
    *,
    tokens: Array | None = None,
    rng: jax.Array | None = None,
) -> Real[jax.Array, "B L D"]:
    """Apply what `encoding` does to the input of a model; sums are float32 and rounded once.

    Args:
      params: what `encoding.init` returned, possibly trained since.
      x: embeddings of the tokens: float16, bfloat16, float32 or float64, unless the encoding does
        nothing to them.
      positions: see `Positions`; default range(L).
      tokens, rng: see `Context`.

    Returns:
      `[B, L, D]` in the dtype of `x`; `x` itself if the encoding does nothing to it.

    Raises:
      ValueError: for another dtype of `x`, positions of another length or that are not finite, past
        the longest position of the encoding, or missing parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import encodings
      >>> absolute = encodings.sinusoidal_absolute(hidden_size=4)
      >>> encodings.embed(absolute, {}, jnp.zeros((1, 1, 4))).tolist()  # sin 0, cos 0, ...
      [[[0.0, 1.0, 0.0, 1.0]]]
    """
    if not any(part.embed for part in checked_encoding(encoding).parts):
        return jnp.asarray(x)
    check_floats(x=x)
    for part in encoding.parts:
        size = part.traits.hidden_size
        if part.embed and size not in (None, x.shape[-1]):
            raise ValueError(f"x must be [B, L, {size}] for {part!r}, got {list(x.shape)}.")
    positions = checked_positions(positions, x.shape[:2], encoding.axes, "x", encoding.max_length)
    context, out = Context(positions_q=positions, positions_k=positions, tokens=tokens, rng=rng), x
    for part, part_params in encoding.split(params):
        if part.embed:
            out = part.embed(part_params, out, moved(part, context, x.shape[0]))
    return out.astype(x.dtype)


def check_heads(encoding: PositionEncoding, q: ArrayLike, k: ArrayLike, v: ArrayLike) -> None:
    """Raise a ValueError unless the shapes of q, k and v fit one another and the encoding."""
    shapes = [np.shape(x) for x in (q, k, v)]
    problem = ""
    if any(len(shape) != 4 for shape in shapes):
        problem = "they have four axes"
    elif len({shape[0] for shape in shapes}) > 1 or shapes[1][1:3] != shapes[2][1:3]:
        problem = "all have one batch size, keys and values the same length and heads"
    elif shapes[0][3] != shapes[1][3] or shapes[0][2] % shapes[1][2]:
        problem = "queries and keys have one head size, and heads of keys divide those of queries"
    else:
        _, _, heads, size = shapes[0]
        for part in encoding.parts:
            traits = part.traits
            if traits.num_heads not in (None, heads) or traits.head_size not in (None, size):
                expected = [traits.num_heads or heads, traits.head_size or size]
                fix = (
                    "Build it for the sizes of the model; split heads among devices by jax.jit, "
                    "not by jax.shard_map"
                )
                if expected == [shapes[0][1], size]:
                    fix = "jnp.swapaxes(x, 1, 2) makes them from [B, H, L, d]"
                problem = f"{part!r} is for {expected[0]} heads of size {expected[1]}. {fix}"
    if problem:
        lists = ", ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"q, k and v must be [B, L, H, d], got {lists}: {problem}.")
