"""A position encoding of a model: parts that act together, in all layers or by layer.

`pe_jax.encodings.part` has the formula that parts are terms of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.common.dtypes import check_floats, standard_promotion
from pe_jax.common.errors import former_arguments
from pe_jax.common.mesh_axes import automatic_sharding, spec_of
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Real, Size
from pe_jax.encodings.parameters import map_params, split_params
from pe_jax.encodings.part import (
    Context,
    HookContext,
    Params,
    Part,
    apply_positions,
    split_key,
)
from pe_jax.encodings.positions import AttentionWindow, checked_positions


@jax.tree_util.register_static
class PositionEncoding(Record, renamed={"reach": "window"}):
    """A position encoding of a model: parts that act together, joined with `+`. None is `none`.

    Embeddings and maps follow one another, terms add up, scales multiply, every window holds. Two
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
            raise ValueError(
                f"{self.name}: 'cycle' and 'per_layer' cannot contain each other."
            )
        parts_by_layer = [self.parts + layer.parts for layer in self.layers]
        for parts in parts_by_layer or [self.parts]:
            keys = [part.key for part in parts]
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
        return "+".join(self._terms(lambda term: term.name)) or "none"

    def __repr__(self) -> str:
        return " + ".join(self._terms(repr)) or "none()"

    def _terms(self, text: Callable[[Any], str]) -> list[str]:
        terms = [text(part) for part in self.parts]
        if self.layers:
            layers = ", ".join(text(layer) for layer in self.layers)
            terms.append(f"{'per_layer' if self.per_layer else 'cycle'}({layers})")
        return terms

    def __add__(self, other: PositionEncoding) -> PositionEncoding:
        if callable(other):
            raise TypeError(
                f"An encoding was added to a function. Call it: {_hint(other)}."
            )
        if not isinstance(other, PositionEncoding):
            return NotImplemented
        if self.layers and other.layers:
            raise ValueError(
                f"{self.name}+{other.name} has more than one 'cycle' or 'per_layer'."
            )
        layered = self if self.layers else other
        return PositionEncoding(
            parts=self.parts + other.parts,
            layers=layered.layers,
            per_layer=layered.per_layer,
        )

    def __radd__(self, other: object) -> PositionEncoding:
        return self + other  # type: ignore[operator]  # A function, or an error.

    @property
    def in_attention(self) -> PositionEncoding:
        """The parts that act in attention; itself if all do."""
        parts = tuple(part for part in self.parts if part.effects)
        return self if parts == self.parts else self.replace(parts=parts)

    @property
    def at_input(self) -> PositionEncoding:
        """The parts that act at the input of a model."""
        return PositionEncoding(parts=tuple(part for part in self.parts if part.embed))

    def layer(self, index: int) -> PositionEncoding:
        """Return what acts in a layer; itself unless layers differ."""
        if not self.layers:
            return self
        return PositionEncoding(parts=self.parts + self._at_layer(index).parts)

    def _at_layer(self, index: int) -> PositionEncoding:
        """Return a layer's encoding without `parts`; its `embed` acts at the layer's input."""
        if not self.layers:
            return PositionEncoding()
        return self.layers[index % len(self.layers)]

    # --- parameters ---

    def init(self, rng: jax.Array, num_layers: int | None = None) -> Params:
        """Draw parameters `{part.key: params of that part}`, those of `layers` under `cycle_0` and
        so on or, with `per_layer`, `layer_0` and so on; nothing for a part that learns nothing.

        Args:
          rng: a key of `jax.random`.
          num_layers: of the model; needed if layers differ.

        Raises:
          ValueError: if layers differ and `num_layers` is missing, or `rng` is no key.
        """
        check_key(rng)
        if not self.layers:
            inits = {part.key: part.init for part in self.parts}
            return _draw(inits, split_key(rng, len(inits)))
        if num_layers is None:
            raise ValueError(
                f"The layers of {self.name} differ: call init(rng, num_layers)."
            )
        by_layer = {}
        for index in range(num_layers):
            by_layer[self._layer_key(index)] = self._at_layer(index).init
        shared_rng, *rngs = jax.random.split(rng, 1 + len(by_layer))
        shared = PositionEncoding(parts=self.parts).init(shared_rng)
        return shared | _draw(by_layer, rngs)

    def layer_params(self, params: Params, index: int) -> Params:
        """Return the parameters of `layer(index)` within those of the whole encoding."""
        if not self.layers:
            return params
        keys = [part.key for part in self.parts]
        shared = {key: params[key] for key in keys if key in params}
        return {**shared, **params.get(self._layer_key(index), {})}

    def resize(self, params: Params, length: int, method: str) -> Params:
        """Return parameters for another number of positions, see `resize_table`.

        Args:
          params: of this encoding.
          length: the new number of positions.
          method: empty resizes only tables that do not limit positions, which need none.

        Raises:
          ValueError: for parameters of another encoding, and see `resize_table`.
        """

        def resize_part(part: Part, part_params: Params) -> Params:
            traits = part.traits
            if traits.resize is None or (traits.max_length and not method):
                return part_params
            return traits.resize(part_params, length, method)

        return map_params(resize_part, self, params)

    def _layer_key(self, index: int) -> str:
        """The key of a layer's parameters; encodings of one name share an entry."""
        if self.per_layer:
            return f"layer_{index}"
        names = [layer.name for layer in self.layers]
        return f"cycle_{names.index(self._at_layer(index).name)}"

    # --- traits ---

    @property
    def _all_parts(self) -> tuple[Part, ...]:
        """`parts`, and those of all layers."""
        parts = self.parts
        for layer in self.layers:
            parts += layer.parts
        return parts

    @property
    def max_length(self) -> int | None:
        """The number of positions that all parts have; None without a limit."""
        limits = (part.traits.max_length for part in self._all_parts)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def axes(self) -> int:
        """A, of the positions that all parts take; 1 without a part.

        Raises:
          ValueError: if parts take positions of different numbers of axes.
        """
        axes = {part.traits.axes for part in self._all_parts} or {1}
        if len(axes) > 1:
            raise ValueError(
                f"The parts of {self.name} need positions of different numbers of axes: "
                f"{sorted(axes)}."
            )
        return axes.pop()

    @property
    def reads_hidden_states(self) -> bool:
        """True if attention needs hidden states of keys."""
        return any(part.traits.reads_hidden_states for part in self._all_parts)

    @property
    def window(self) -> AttentionWindow:
        """Window that every part allows a query."""
        window = AttentionWindow()
        for part in self.parts:
            if part.offsets:
                window = window.within(part.offsets.window)
        return window

    @property
    def is_causal(self) -> bool:
        """True if no query attends to keys to its right."""
        return self.window.right == 0


def map_parts(
    function: Callable[[Part], Part], encoding: PositionEncoding
) -> PositionEncoding:
    """Return `encoding` with `function(part)` in the place of each part."""
    return encoding.replace(
        parts=tuple(function(part) for part in encoding.parts),
        layers=tuple(map_parts(function, layer) for layer in encoding.layers),
    )


def _draw(
    inits: Mapping[str, Callable[[jax.Array], Params]], rngs: Iterable[jax.Array]
) -> Params:
    """Return the parameters of each name, without those that are empty."""
    drawn = {name: init(rng) for (name, init), rng in zip(inits.items(), rngs)}
    return {name: params for name, params in drawn.items() if params}


def check_layer(encoding: PositionEncoding) -> None:
    """Raise a ValueError unless attention of one layer can take this encoding."""
    if encoding.layers:
        raise ValueError(
            f"The layers of {encoding.name} differ. Pass attention encoding.layer(i) and "
            "encoding.layer_params(params, i)."
        )
    for part in encoding.parts:
        if part.traits.causal_only and not encoding.is_causal:
            raise ValueError(
                f"{part.name} needs causal attention: {part.traits.causal_only}. Combine it "
                f"with causal: {encoding.name + '+causal'!r}."
            )
    adds_to_values = any(
        part.offsets and part.offsets.value_vectors for part in encoding.parts
    )
    if adds_to_values and any(part.map_output for part in encoding.parts):
        raise ValueError(
            f"{encoding.name} adds vectors to the values and undoes a map of the values (hook "
            "`map_output`), which would map these vectors too. Use one of them."
        )


def check_acts_in_attention(encoding: PositionEncoding) -> None:
    """Raise a ValueError if all of an encoding acts at the input of a model."""
    if encoding.at_input.parts and not encoding.in_attention.parts:
        raise ValueError(
            f"encoding {encoding.name} acts only at the input of a model, by encodings.embed, not "
            "in attention. Pass encoding.in_attention, which leaves out such parts."
        )


def none() -> PositionEncoding:
    """No position information at all: the bag-of-words baseline (paper, tables 2 and 3)."""
    return PositionEncoding()


def cycle(*layers: PositionEncoding) -> PositionEncoding:
    """Let the layers of a model take encodings in turn; those that take the same one share its
    parameters.

    Raises:
      ValueError: for a layer that is no encoding, or has layers of its own.

    Example:
      >>> from pe_jax import encodings
      >>> near, far = (encodings.rope(head_size=64, base=base) for base in (10_000.0, 160_000.0))
      >>> modern = encodings.cycle(far, near + encodings.window(max_distance=64), near)
    """
    return PositionEncoding(layers=tuple(map(checked_encoding, layers)))


def per_layer(*layers: PositionEncoding) -> PositionEncoding:
    """Let the layers of a model take encodings in turn, as `cycle`, each with its own parameters.

    Raises:
      ValueError: for a layer that is no encoding, or has layers of its own.
    """
    return PositionEncoding(layers=tuple(map(checked_encoding, layers)), per_layer=True)


def parameter_count(encoding: PositionEncoding, num_layers: int = 1) -> int:
    """Count the numbers that `encoding` learns in a model of `num_layers`; nothing is computed.

    Raises:
      ValueError: for what is no encoding.
    """
    checked_encoding(encoding)
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), num_layers))
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def checked_encoding(encoding: object) -> PositionEncoding:
    """Return `encoding` itself; raise a ValueError if it is not a `PositionEncoding`."""
    if isinstance(encoding, PositionEncoding):
        return encoding
    hint = "encodings.from_name builds one from a name."
    if callable(encoding):
        hint = f"Call it: {_hint(encoding)}."
    raise ValueError(
        f"encoding must be a PositionEncoding, got {type(encoding).__name__}. {hint}"
    )


def check_context(context: object) -> Context:
    """Return `context`, by default an empty one.

    Raises:
      ValueError: if it is something else than a `Context`.
    """
    if context is None:
        return Context()
    if not isinstance(context, Context) or isinstance(context, HookContext):
        raise ValueError(
            f"context must be a Context, got {type(context).__name__}: pass "
            "context=Context(positions_q=..., positions_k=...)."
        )
    return context


def check_key(rng: object) -> None:
    """Raise a ValueError unless `rng` is an array, as keys are."""
    if not isinstance(rng, jax.Array | np.ndarray):
        raise ValueError(f"rng must be a key, such as jax.random.key(0), got {rng!r}.")


def _hint(make: Callable[..., object]) -> str:
    """Return a function that makes an encoding as a call."""
    return f"{getattr(make, '__name__', type(make).__name__)}(...)"


@former_arguments(
    tokens="Pass Context(tokens=...).",
    rng="Pass Context(position_rng=...).",
    positions="Pass Context(positions_q=...).",
)
@automatic_sharding(lambda x, *_, **__: spec_of(x, 0, 1, 2))
@standard_promotion()
def embed(
    x: Real[Array, "B L D"],
    encoding: PositionEncoding,
    params: Params | None = None,
    context: Context | None = None,
) -> Real[jax.Array, "B L D"]:
    """Apply what `encoding` does to the input of a model; sums are float32 and rounded once.

    Args:
      x: embeddings of the tokens: float16, bfloat16, float32 or float64, unless the encoding does
        nothing to them.
      encoding: a position encoding; parts of it that act in attention alone do nothing here.
      params: what `encoding.init` returned, possibly trained since.
      context: `positions_q`, by default range(L), and `tokens` and `position_rng` for encodings
        that need them.

    Returns:
      `[B, L, D]` in the dtype of `x`; `x` itself if the encoding does nothing to it.

    Raises:
      ValueError: for another dtype of `x`, positions of another length or that are not finite, past
        the longest position of the encoding, missing parameters, or document ids without positions.

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import encodings
      >>> absolute = encodings.sinusoidal_absolute(hidden_size=4)
      >>> encodings.embed(jnp.zeros((1, 1, 4)), absolute).tolist()  # sin 0, cos 0, ...
      [[[0.0, 1.0, 0.0, 1.0]]]
    """
    if isinstance(x, PositionEncoding):
        raise ValueError(
            "x must be an array, got an encoding. Pass the embeddings first: "
            "embed(x, encoding, params, context)."
        )
    if not any(part.embed for part in checked_encoding(encoding).parts):
        return jnp.asarray(x)
    check_floats(x=x)
    if x.ndim != 3:
        raise ValueError(f"x must be [B, L, D], got {list(x.shape)}.")
    for part in encoding.parts:
        size = part.traits.hidden_size
        if part.embed and size not in (None, x.shape[-1]):
            raise ValueError(
                f"x must be [B, L, {size}] for {part!r}, got {list(x.shape)}."
            )
    context = check_context(context)
    if context.document_ids is not None and context.positions_q is None:
        raise ValueError(
            "Context.document_ids are for attention; at the input, tokens need their positions "
            "within documents: Context(positions_q=document_positions(document_ids), ...), see "
            "pe_jax.attention.document_positions."
        )
    positions = checked_positions(
        context.positions_q, x.shape[:2], encoding.axes, "x", encoding.max_length
    )
    hook_context = HookContext.of(context, positions, positions)
    out = x
    for part, part_params in split_params(encoding, params):
        if part.embed:
            part_context = apply_positions(part, hook_context, x.shape[0])
            out = part.embed(part_params, out, part_context)
    return out.astype(x.dtype)


def check_heads(
    encoding: PositionEncoding, q: ArrayLike, k: ArrayLike, v: ArrayLike
) -> None:
    """Raise a ValueError unless the shapes of q, k and v fit one another and the encoding."""
    shapes = [np.shape(x) for x in (q, k, v)]
    problem = _heads_problem(encoding, *shapes)
    if problem:
        lists = ", ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"q, k and v must be [B, L, H, d], got {lists}: {problem}.")


def _heads_problem(
    encoding: PositionEncoding,
    q: tuple[Size, ...],
    k: tuple[Size, ...],
    v: tuple[Size, ...],
) -> str:
    """Return what is wrong with the shapes of q, k and v; empty if nothing is."""
    if not len(q) == len(k) == len(v) == 4:
        return "they have four axes"
    if not q[0] == k[0] == v[0] or k[1:3] != v[1:3]:
        return "all have one batch size, keys and values the same length and heads"
    _, length, heads, size = q
    if size != k[3] or heads % k[2]:
        return "queries and keys have one head size, and heads of keys divide those of queries"
    for part in encoding.parts:
        num_heads = part.traits.num_heads or heads
        head_size = part.traits.head_size or size
        if (num_heads, head_size) == (heads, size):
            continue
        fix = (
            "Build it for the sizes of the model; split heads among devices by jax.jit, not by "
            "jax.shard_map"
        )
        if (num_heads, head_size) == (length, size):
            fix = "jnp.swapaxes(x, 1, 2) makes them from [B, H, L, d]"
        return f"{part!r} is for {num_heads} heads of size {head_size}. {fix}"
    return ""
