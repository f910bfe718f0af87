"""What a position encoding is: pure functions and data that attention is a function of.

Every encoding is an instance of one formula. In a layer of attention, for query i and key j,

    q, k, v = heads(q, k, v)
    S_ij    = s · (q_i·k_j + q_i·K(j-i) + Q(j-i)·k_j) + bias(j-i) + logits(i, j)
    A_i     = softmax of S_i over the keys that the mask and the reach allow
    o_i     = output(Σ_j A_ij v_j) + Σ_j A_ij V(j-i)

with s = factor / sqrt(d). `embed` acts before the first layer. K, Q, V and bias are functions of
the offset alone, given as data (`Offsets`) from which attention makes fast forms. They meet the
content of queries and keys, as it was before `heads` of any encoding. Biases and `logits` are
added as they are: nothing is scaled behind an encoding's back.

**The sign**: the offset is `position of the key - position of the query`, positive for keys to the
right of the query. (The paper's eq. 4 writes P_{x-y} and leaves open which is which.)

Shapes: B batch, Lq and Lk lengths, D hidden size, H heads, d head size, A axes of a position.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.encodings.reach import Reach
from pe_jax.shapes import Array, Real

Params = dict[str, Any]  # A plain pytree; learnable frequencies are ordinary leaves of it.

# `range(start, stop)`: consecutive positions, the same in every row, known while compiling. That is
# what the fast forms need. Anything else is an array `[L]` or `[B, L]`, integer or real, or
# `[..., L, A]` for an encoding of A axes.
Positions = range | Array


class Projections(NamedTuple):
    """A layer's own maps `[..., D] -> [..., H, d]`, for encodings that send positions through."""

    query: Callable[[Array], jax.Array]
    key: Callable[[Array], jax.Array]


class Context(NamedTuple):
    """What a hook may read besides the arrays that it changes; unread fields cost nothing.

    Attributes:
      positions_q, positions_k: of queries and keys. `positions_k` defaults to `positions_q` if
        there are as many of both; without either they are ranges from 0. At the input of a model
        both are the positions of the tokens.
      x_q, x_k: hidden states `[B, L, D]` that queries and keys were projected from, if the caller
        passes them.
      projections: of this layer, if the caller passes them.
      rng: for encodings that draw while training, the same in every layer; None draws nothing.
      tokens: ids `[B, L]`, at the input of a model only, if the caller passes them.
      batch_size: B; filled in for the hook `positions`.
      frequency_factors: `ω -> factors`, both `[#H, F]`, which rotary encodings multiply their
        frequencies by (see `with_factors`); None leaves them as they are.
    """

    positions_q: Positions | None = None
    positions_k: Positions | None = None
    x_q: Array | None = None
    x_k: Array | None = None
    projections: Projections | None = None
    rng: jax.Array | None = None
    tokens: Array | None = None
    batch_size: int = 1
    frequency_factors: Callable[[Array], Array] | None = None

    def arrays(self) -> tuple[Array, Array]:
        """Positions of queries and of keys as arrays, see `as_array`."""
        return as_array(self.positions_q), as_array(self.positions_k)


# `(params, offsets [...], context) -> [..., d]`, or `[..., H, d]` with vectors for each head.
OffsetVectors = Callable[[Params, Array, Context], jax.Array]


class Offsets(NamedTuple):
    """Terms that depend on j - i only; `None` means that the term is absent.

    Attributes:
      keys: K, vectors that join the keys and meet the queries.
      queries: Q, vectors that join the queries and meet the keys.
      values: V, vectors that join the values.
      bias: `(params, offsets [...], context) -> [...]`, or `[..., H]` with one for each head.
      frequencies, value_frequencies: `params -> [F]`, if K and V are sinusoids of the offset with
        these frequencies, in the order of `sinusoid`: both or neither.
      clip: the terms of offsets beyond ±clip are those of ±clip; None without such a number.
      reach: how far a query attends, a window or causality. None: to all keys.
    """

    keys: OffsetVectors | None = None
    queries: OffsetVectors | None = None
    values: OffsetVectors | None = None
    bias: Callable[[Params, Array, Context], jax.Array] | None = None
    frequencies: Callable[[Params], jax.Array] | None = None
    value_frequencies: Callable[[Params], jax.Array] | None = None
    clip: int | None = None
    reach: Reach | None = None

    @property
    def has_terms(self) -> bool:
        """True if anything is added to logits or outputs; a reach adds nothing."""
        return any((self.keys, self.queries, self.values, self.bias))


class Traits(NamedTuple):
    """Properties of an encoding that its callers must respect.

    Attributes:
      longest: the number of positions, if there is a limit.
      resize: `(params, length, method) -> params` for another `longest`, see `resize_table`.
      axes: A, of a position.
      cacheable: what is computed for a key stays right when the sequence grows.
      causal_only: the reason why attention has to be causal (joined with `causal`); empty if it
        need not be.
      reads_hidden_states: attention needs `Context.x_k`, so a cache has to keep hidden states.
      frequency_params: names of the parameters that are frequencies. Weight decay leaves them
        alone, and they may have a learning rate of their own.
    """

    longest: int | None = None
    resize: Callable[[Params, int, str], Params] | None = None
    axes: int = 1
    cacheable: bool = True
    causal_only: str = ""
    reads_hidden_states: bool = False
    frequency_params: tuple[str, ...] = ()


class Card(NamedTuple):
    """Documentation and measurement of an encoding; nothing is computed from it in a model.

    Attributes:
      formula: in one line.
      source: the paper and its equation or section.
      parameters: their number as a formula.
      paper: translation invariance, monotonicity and symmetry according to Wang et al.; † means
        observed, not derived.
      invariant: attention depends on positions by their differences alone.
      monotone, symmetric: proximities strictly decrease with distance on either side, and are the
        same in both directions. True or False hold for all parameters and tokens, over enough
        positions; None depends on them. Proximities are P·Pᵀ of absolute vectors, or else the
        logits of identical tokens.
      kind: what vectors are indexed by, positions or offsets.
      vectors: `(params, x [...]) -> [..., D or d]`, the position vectors P(x) themselves.
      frequencies: `params -> [F]` or `[#H, F]`, radians per position, of a sinusoidal or rotary
        encoding; if they depend on the length, those of short inputs.
      pairs: the two dimensions of a head that make each of the F pairs of a rotary encoding of
        positions of one axis, which multiplies them by `Context.frequency_factors`.
    """

    formula: str = ""
    source: str = ""
    parameters: str = "0"
    paper: str = "–"
    invariant: bool = False
    monotone: bool | None = None
    symmetric: bool | None = None
    kind: Literal["absolute", "relative"] = "relative"
    vectors: Callable[[Params, Array], jax.Array] | None = None
    frequencies: Callable[[Params], jax.Array] | None = None
    pairs: tuple[tuple[int, int], ...] = ()


def no_parameters(rng: jax.Array) -> Params:
    """The `init` of an encoding that learns nothing."""
    del rng
    return {}


Heads = tuple[Array, Array, Array]  # Queries, keys and values, each `[B, L, H, d]`.


class Part(NamedTuple):
    """One encoding by itself, as pure functions of its own parameters. A hook that is None is
    absent and costs nothing.

    Attributes:
      name: as a config writes it, options included: `"rope(base=500)"`.
      init: `init(rng) -> params`.
      positions: `(positions, Context) -> positions`, what the other hooks see instead, of queries
        or of keys; `Context.positions_k` are those of all keys, or of all tokens of an input.
      embed: `(params, x [B, L, D], Context) -> x`.
      heads: `(params, q, k, v, Context) -> (q, k, v)`, each `[B, L, H, d]`. The head size of q and
        k may grow; the logits are scaled by the original one.
      output: `(params, o, Context) -> o`, undoes what `heads` did to v.
      offsets: terms of the offset.
      logits: `(params, q, k, Context) -> [#B, #H, Lq, Lk]`, all other terms, an array of this size
        in every form, leading axes of 1 may be left out; q is scaled by s.
      factor: `(params, Context) ->` a number, or `[#B, #Lq, #H, 1]`: of s.
      traits: what callers must respect.
      card: documentation and measurement only.
      family: the key of its parameters; default the name without options.
    """

    name: str = ""
    init: Callable[[jax.Array], Params] = no_parameters
    positions: Callable[[Positions, Context], Positions] | None = None
    embed: Callable[[Params, Array, Context], jax.Array] | None = None
    heads: Callable[[Params, Array, Array, Array, Context], Heads] | None = None
    output: Callable[[Params, Array, Context], jax.Array] | None = None
    offsets: Offsets | None = None
    logits: Callable[[Params, Array, Array, Context], jax.Array] | None = None
    factor: Callable[[Params, Context], ArrayLike] | None = None
    traits: Traits = Traits()
    card: Card | None = None
    family: str = ""

    @property
    def key(self) -> str:
        """The key of its parameters in the params dict."""
        return self.family or self.name.partition("(")[0]

    @property
    def in_attention(self) -> tuple[str, ...]:
        """What it does beyond adding to the input, in words."""
        terms = self.offsets or Offsets()
        effects = {
            "maps queries, keys or values": self.heads or self.output,
            "adds terms to the attention logits": (
                terms.keys or terms.queries or terms.bias or self.logits
            ),
            "adds position vectors to the values": terms.values,
            "limits how far a query attends": terms.reach,
            "changes the temperature of the softmax": self.factor,
        }
        return tuple(effect for effect, hook in effects.items() if hook)


@dataclasses.dataclass(frozen=True)
class PositionEncoding:
    """A position encoding: one part or several that act together; no part at all is `none`.

    Embeddings and maps follow one another, terms add up, factors multiply, every reach holds. Join
    encodings with `+`.

    Example:
      >>> from pe_jax import encodings
      >>> both = encodings.sinusoidal_absolute(hidden_size=768) + encodings.rope(head_size=64)
      >>> both.name
      'sinusoidal_absolute+rope'
    """

    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        keys = [part.key for part in self.parts]
        if not all(keys):
            raise ValueError("A part of an encoding has no name: Part(name=...).")
        if len(set(keys)) < len(keys):
            raise ValueError(
                f"{self.name} joins encodings of one family, whose parameters would collide: each "
                "may occur once, give each a family of its own (Part.family)."
            )

    @property
    def name(self) -> str:
        """As a config writes it; parses back to the same encoding."""
        return "+".join(part.name for part in self.parts) or "none"

    def __add__(self, other: PositionEncoding) -> PositionEncoding:
        if not isinstance(other, PositionEncoding):
            return NotImplemented
        return PositionEncoding(self.parts + other.parts)

    def init(self, rng: jax.Array) -> Params:
        """Parameters nested by name, `{part.key: params of that part}`, with no entry for a part
        that learns nothing."""
        rngs = jax.random.split(rng, len(self.parts)) if len(self.parts) > 1 else [rng]
        params = {part.key: part.init(rng) for part, rng in zip(self.parts, rngs)}
        return {name: value for name, value in params.items() if value}

    def split(self, params: Params | None) -> list[tuple[Part, Params]]:
        """The parts, each with its own parameters.

        Raises:
          ValueError: if parameters of a part are missing.
        """
        params = {} if params is None else params
        if not isinstance(params, Mapping):
            raise ValueError(
                f"Parameters are the dict that encoding.init(rng) returned, got "
                f"{type(params).__name__}."
            )
        split = [(part, params.get(part.key, {})) for part in self.parts]
        missing = [
            f"{part.key}/{name}" if part.key in params else part.key
            for part, own in split
            for name in sorted(_learned(part.init) - set(own))
        ]
        if missing:
            raise ValueError(
                f"The parameters of {', '.join(dict.fromkeys(missing))} are missing; got "
                f"{', '.join(params) or 'none'}. Pass what encoding.init(rng) returned."
            )
        return split

    @property
    def longest(self) -> int | None:
        """The number of positions, where a part has a limit."""
        return least_longest(self.parts)

    @property
    def axes(self) -> int:
        """A, of the positions that it takes; 1 where it takes none.

        Raises:
          ValueError: if parts take positions of different numbers of axes.
        """
        return common_axes(self.parts, self.name)

    @property
    def reach(self) -> Reach:
        """What every part allows a query to attend to."""
        limits = [part.offsets.reach for part in self.parts if part.offsets and part.offsets.reach]
        return functools.reduce(Reach.within, limits, Reach())

    @property
    def is_causal(self) -> bool:
        """Whether no query attends to keys to its right."""
        return self.reach.right == 0

    def check_causal(self) -> None:
        """Raises:
        ValueError: if a part is for causal attention only, and this is not causal.
        """
        if self.is_causal:
            return
        for part in self.parts:
            if part.traits.causal_only:
                raise ValueError(
                    f"{part.name} is for causal attention: {part.traits.causal_only}. Join it with "
                    f"causal: {self.name + '+causal'!r}."
                )

    def resize(self, params: Params, length: int, method: str) -> Params:
        """Parameters for another number of positions, see `resize_table`."""
        changed = {
            part.key: part.traits.resize(own, length, method)
            for part, own in self.split(params)
            if part.traits.resize and own
        }
        return {**params, **changed}


def not_an_encoding(given: object) -> str:
    """The message for something else than a `PositionEncoding`."""
    return (
        f"This takes a PositionEncoding, got {type(given).__name__}: a name becomes one with "
        "encodings.from_name, a layer of a Stack with Stack.at_layer."
    )


def common_axes(parts: Sequence[Part], name: str) -> int:
    """A, of the positions that all parts of the encoding called `name` take; 1 without a part.

    Raises:
      ValueError: if they take positions of different numbers of axes.
    """
    axes = {part.traits.axes for part in parts} or {1}
    if len(axes) > 1:
        raise ValueError(f"The parts of {name} take positions of {sorted(axes)} axes.")
    return axes.pop()


def least_longest(parts: Sequence[Part]) -> int | None:
    """The number of positions that all parts have; None where none has a limit."""
    return min(
        (part.traits.longest for part in parts if part.traits.longest is not None), default=None
    )


@functools.lru_cache(maxsize=512)
def _learned(init: Callable[[jax.Array], Params]) -> frozenset[str]:
    """The names of a part's parameters."""
    return frozenset(jax.eval_shape(init, jax.random.key(0)))


_Arguments = ParamSpec("_Arguments")


def named(make: Callable[_Arguments, Part]) -> Callable[_Arguments, PositionEncoding]:
    """Turn a function that makes a part into one that makes an encoding, named after it.

    All arguments are keyword-only: sizes of the model (`SIZES`), then options. The name is what a
    config writes: the function's own, with the options that differ from their defaults.
    """
    defaults = options_of(make)

    @functools.wraps(make)
    def build(*args: _Arguments.args, **arguments: _Arguments.kwargs) -> PositionEncoding:
        part = make(*args, **arguments)
        name = call_text(make.__name__, changed(arguments, defaults))
        return PositionEncoding((part._replace(name=name, family=part.family or make.__name__),))

    return build


# The sizes of a model, which every encoding calls by the same names.
SIZES = ("hidden_size", "head_size", "num_heads", "max_length")
REQUIRED = inspect.Parameter.empty  # The default of an option that has none.


def options_of(make: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function that makes an encoding, with their defaults: its keyword-only
    parameters without the sizes."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in SIZES
    }


def changed(options: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The options that differ from their defaults, in the order of the latter; a required one, with
    the default `REQUIRED`, always does."""
    return {
        name: options[name]
        for name, default in defaults.items()
        if name in options and options[name] != default
    }


def call_text(name: str, options: dict[str, Any]) -> str:
    """`name(option=value, ...)` as a config writes it; whole floats without their point."""

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return f"({', '.join(map(text, value))}{',' if len(value) == 1 else ''})"
        return repr(value).removesuffix(".0") if isinstance(value, float) else repr(value)

    inside = ", ".join(f"{option}={text(value)}" for option, value in options.items())
    return f"{name}({inside})" if inside else name


def none() -> PositionEncoding:
    """No position information at all: the bag-of-words baseline (paper, tables 2 and 3)."""
    return PositionEncoding()


def embed(
    encoding: PositionEncoding,
    params: Params | None,
    x: Real[Array, "B L D"],
    positions: Positions | None = None,
    *,
    tokens: Array | None = None,
    rng: jax.Array | None = None,
) -> Real[Array, "B L D"]:
    """`x` with what `encoding` does to the input of a model; `x` itself where that is nothing.

    Args:
      params: what `encoding.init` returned, possibly trained since.
      x: embeddings of the tokens.
      positions: see `Positions`; default range(L).
      tokens, rng: see `Context`.

    Raises:
      ValueError: for something else than an encoding, positions of another length than `x`, past
        the longest position of the encoding, or missing parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> from pe_jax import encodings
      >>> absolute = encodings.sinusoidal_absolute(hidden_size=4)
      >>> encodings.embed(absolute, {}, jnp.zeros((1, 1, 4))).tolist()  # sin 0, cos 0, ...
      [[[0.0, 1.0, 0.0, 1.0]]]
    """
    if not isinstance(encoding, PositionEncoding):
        raise ValueError(not_an_encoding(encoding))
    if not any(part.embed for part in encoding.parts):
        return x
    positions = checked(positions, x.shape[1], encoding.axes, "x")
    context = Context(positions, positions, tokens=tokens, rng=rng)
    for part, part_params in encoding.split(params):
        if part.embed:
            x = part.embed(part_params, x, moved(part, context, len(x)))
    return x


def moved(part: Part, context: Context, batch_size: int) -> Context:
    """`context` with the positions that `part` sees; `context` itself if they are the same."""
    if part.positions is None:
        return context
    q, k = context.positions_q, context.positions_k
    assert q is not None and k is not None
    sized = context._replace(batch_size=batch_size)
    moved_q = part.positions(q, sized)
    moved_k = moved_q if k is q else part.positions(k, sized)
    if moved_q is q and moved_k is k:
        return context
    return context._replace(positions_q=moved_q, positions_k=moved_k)


def checked(positions: Positions | None, size: int, axes: int, of: str) -> Positions:
    """Positions of `size` tokens, by default from 0.

    Raises:
      ValueError: for another number of positions, or one that is not of `axes` axes.
    """
    if positions is None:
        if axes > 1:
            raise ValueError(f"Positions of {axes} axes have no default: give [L, {axes}].")
        return range(size)
    if isinstance(positions, range):
        if positions.step != 1 or axes > 1:
            raise ValueError(
                f"A range stands for consecutive positions of one axis, got {positions} for "
                f"{axes}: give an array."
            )
    else:
        positions = positions if isinstance(positions, jax.Array) else np.asarray(positions)
        shape, own = np.shape(positions), 1 if axes == 1 else 2
        if not own <= len(shape) <= own + 1 or (axes > 1 and shape[-1] != axes):
            last = "" if axes == 1 else f", {axes}"
            raise ValueError(f"Positions are [L{last}] or [B, L{last}], got {list(shape)}.")
    if length(positions, axes) != size:
        raise ValueError(
            f"There are {length(positions, axes)} positions for {size} tokens of {of}: one each."
        )
    return positions


def length(positions: Positions, axes: int = 1) -> int:
    """L of positions of so many axes."""
    if isinstance(positions, range):
        return len(positions)
    return np.shape(positions)[-1 if axes == 1 else -2]


def span(positions_q: Array, positions_k: Array) -> Array:
    """Largest position + 1, `[]`, or `[B]` for rows with positions of their own."""
    return jnp.maximum(positions_q.max(-1), positions_k.max(-1)) + 1


def as_array(positions: Positions | None) -> Array:
    """Positions as an array; a range as NumPy, so that it stays known while compiling."""
    assert positions is not None, "Context has no positions."
    return np.arange(positions.start, positions.stop) if isinstance(positions, range) else positions


def offsets(positions_q: Positions, positions_k: Positions) -> Real[Array, "*B Lq Lk"]:
    """Signed offsets j - i, positive where the key is to the right of the query."""
    q, k = as_array(positions_q), as_array(positions_k)
    if isinstance(q, np.ndarray) and isinstance(k, np.ndarray):
        return k[..., None, :] - q[..., :, None]
    return jnp.asarray(k)[..., None, :] - jnp.asarray(q)[..., :, None]
