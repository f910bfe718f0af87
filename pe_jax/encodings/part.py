"""Records that define a position encoding: the pure functions and data that attention takes.

Every encoding is an instance of one formula. In a layer of attention, for query i and key j,

    q, k, v = map_qkv(q, k, v)
    T_ij    = s · (q_i·K(j-i) + Q(j-i)·k_j) + bias(j-i) + logits(i, j)
    S_i     = map_logits(s · q_i·k, T_i), by default their sum
    A_i     = softmax of S_i over the keys that the mask and the window allow, and of the logit sink
    o_i     = map_output(Σ_j A_ij v_j) + Σ_j A_ij V(j-i)

with s = scale / sqrt(d). A sink has a weight and no value; without one the weights sum to 1.
`embed` acts before the first layer. K, Q, V and bias are functions of the offset alone, given as
data (`OffsetTerms`) from which attention makes tables. They meet the content of queries and keys,
as it was before `map_qkv` of any encoding. Biases and `logits` are added without further scaling.

**The sign**: the offset is `position of the key - position of the query`, positive for keys to the
right of the query. (The paper's eq. 4 does not say which index is the query.)

Shapes: B batch, Lq and Lk lengths, D hidden size, H heads, d head size, A axes of a position.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Float, Size
from pe_jax.encodings.positions import AttentionWindow, Positions, as_array, span

if TYPE_CHECKING:
    from pe_jax.encodings.encoding import PositionEncoding

# A plain pytree; learnable frequencies are ordinary leaves of it.
Params = dict[str, Any]
Projection = Callable[[Array], jax.Array]  # `[..., D] -> [..., H, d]`.
Logits = Float[Array, "#B #H Lq Lk"]  # Of pairs of queries and keys, or terms of them.


class Context(Record, pytree=True, renamed={"rng": "position_rng"}):
    """Inputs of an encoding that a caller passes to attention or `embed`; None for all others.

    Hooks get a `HookContext`, which is made from it.

    Attributes:
      positions_q, positions_k: of queries and keys; at the input of a model `positions_q` are those
        of the tokens. `positions_k` defaults to `positions_q` if there are as many of both, and
        both to ranges from 0.
      x_q, x_k: hidden states `[B, L, D]` that queries and keys were projected from.
      projections: of this layer to queries and to keys, `[..., D] -> [..., H, d]`.
      position_rng: for encodings that draw while training, the same in every layer; None draws
        nothing.
      tokens: ids `[B, L]`, at the input of a model only.
      document_ids: `[B, L]` integers: self-attention in packed rows stays within documents.
        Number them from 1, up to 2^31 - 2; 0 after a document is padding, with outputs of 0. Zeros
        that begin a row are a document like others (pass `mask` where they are padding). Tokens of
        a document must be next to one another, at consecutive positions, from 0 by default, which
        is checked unless they are traced; offsets between tokens are those of their places in the
        row.
    """

    positions_q: Positions | None = None
    positions_k: Positions | None = None
    x_q: Array | None = None
    x_k: Array | None = None
    projections: tuple[Projection, Projection] | None = None
    position_rng: jax.Array | None = None
    tokens: Array | None = None
    document_ids: Array | None = None


class HookContext(Context, pytree=True):
    """The `Context` of a call as hooks get it: positions are filled in, and the mask is added.

    Callers of attention pass a `Context`.

    Attributes:
      positions_q, positions_k: those that the part sees, after its hook `positions`.
      batch_size: B, for the hook `positions`.
      frequency_factors: `ω -> factors`, both `[#H, F]`, see `with_factors`.
      mask: bool `[#B, #H, #Lq, Lk]`, the argument `mask` of attention.
    """

    positions_q: Positions
    positions_k: Positions
    batch_size: Size = 1
    frequency_factors: Callable[[Array], Array] | None = None
    mask: Array | None = None

    @classmethod
    def of(
        cls, context: Context, positions_q: Positions, positions_k: Positions
    ) -> HookContext:
        """Return `context` with these positions, for hooks."""
        fields = {
            field.name: getattr(context, field.name)
            for field in dataclasses.fields(Context)
        }
        fields |= {"positions_q": positions_q, "positions_k": positions_k}
        return cls(**fields)

    def arrays(self) -> tuple[jax.Array | np.ndarray, jax.Array | np.ndarray]:
        """Return positions of queries and of keys as arrays, see `as_array`.

        They are `[L]`, or `[B, L]` where rows have positions of their own, as with a cache, packing
        or padding. For a bias of all pairs use `rows`, and return `[#B, 1, Lq, Lk]`.
        """
        return as_array(self.positions_q), as_array(self.positions_k)

    def rows(self) -> tuple[jax.Array | np.ndarray, jax.Array | np.ndarray]:
        """Return positions of one axis, of queries and of keys, as arrays `[#B, L]`."""
        q, k = self.arrays()
        if q.ndim == 1:
            q = q[None]
        if k.ndim == 1:
            k = k[None]
        return q, k

    def span(self) -> jax.Array:
        """Return the largest position + 1, `[]`, or `[B]` for rows with positions or padding of
        their own. Padding is every key that the mask hides from all queries."""
        q, k = self.arrays()
        if self.mask is None:
            return span(q, k)
        k, is_token = jnp.broadcast_arrays(k, self.mask.any((1, 2)))
        return jnp.max(k, -1, where=is_token, initial=-1) + 1

    @property
    def ranges(self) -> tuple[range, range] | None:
        """Ranges with the offsets of all pairs that attend; None where there are none."""
        if self.document_ids is not None:
            row = range(self.document_ids.shape[1])
            return row, row
        q = self.positions_q
        k = self.positions_k
        if isinstance(q, range) and isinstance(k, range):
            return q, k
        return None

    @property
    def shift(self) -> int | None:
        """The first key minus the first query of `ranges`."""
        ranges = self.ranges
        return None if ranges is None else ranges[1].start - ranges[0].start


class OffsetProducts(Record, pytree=True, static=("shift",)):
    """Logits that are products of a vector of each query and one of the offset, as arrays.

    Attributes:
      vectors: of the queries, `[B, Lq, H, r]`; nothing scales them.
      table: `[2·clip + 1, r]`: row clip + m is of offset m; offsets beyond have the last rows.
      shift: position of the first key minus that of the first query; these are ranges.
    """

    vectors: Array
    table: Array
    shift: int


class LogitTerms(Record, pytree=True, static=("function",)):
    """Terms of the logits as the arrays that they are computed from, some queries at a time.

    Attributes:
      function: `(query_arrays, key_arrays, shared, mask) -> [#B, #H, Lq, Lk]` of consecutive
        queries and keys; it closes over no traced array. The mask is bool `[#B, #H, #Lq, Lk]`, True
        for keys that the caller of attention lets a query attend to, or None.
      query_arrays, key_arrays: trees of arrays `[#B, Lq, ...]` and `[#B, Lk, ...]`.
      shared: a tree of any other arrays, such as parameters.
      products: the same logits in another form, for the TPU kernel, or None.
    """

    function: Callable[[Any, Any, Any, Array | None], jax.Array]
    # The axis that attention cuts, see `pe_jax.attention.token_axes`.
    query_arrays: Any = dataclasses.field(default=(), metadata={"queries": 1})
    key_arrays: Any = dataclasses.field(default=(), metadata={"keys": 1})
    shared: Any = ()
    products: OffsetProducts | None = None


# `(params, offsets [...], context) -> [..., d]`, or `[..., H, d]` with vectors for each head.
OffsetVectors = Callable[[Params, Array, HookContext], jax.Array]


_RENAMED_TERMS = {
    "keys": "key_vectors",
    "queries": "query_vectors",
    "values": "value_vectors",
    "clip": "max_distance",
    "reach": "window",
}


class OffsetTerms(Record, renamed=_RENAMED_TERMS):
    """Terms that depend on j - i only; `None` means that the term is absent.

    Attributes:
      key_vectors, query_vectors, value_vectors: K, Q and V, which join the keys, the queries and
        the values.
      bias: `(params, offsets [...], context) -> [...]`, or `[..., H]` with one for each head.
      frequencies, value_frequencies: `params -> [F]`, if K and V are sinusoids of the offset with
        these frequencies, in the order of `sinusoid`: both or neither.
      max_distance: offsets are clipped to ±max_distance; None does not clip.
      window: the keys that a query attends to, also of causal attention. None: all.
    """

    key_vectors: OffsetVectors | None = None
    query_vectors: OffsetVectors | None = None
    value_vectors: OffsetVectors | None = None
    bias: Callable[[Params, Array, HookContext], jax.Array] | None = None
    frequencies: Callable[[Params], jax.Array] | None = None
    value_frequencies: Callable[[Params], jax.Array] | None = None
    max_distance: int | None = None
    window: AttentionWindow | None = None

    @property
    def has_terms(self) -> bool:
        """True if anything is added to logits or outputs; a window adds nothing."""
        return any(
            (self.key_vectors, self.query_vectors, self.value_vectors, self.bias)
        )


class Traits(Record):
    """Properties of an encoding that its callers must respect.

    Attributes:
      max_length: the number of positions, if there is a limit.
      resize: `(params, length, method) -> params` for another number of positions, see
        `resize_table`; without `max_length`, `method` may be empty.
      axes: A, of a position.
      cacheable: True if the terms of a key do not change when the sequence grows.
      causal_only: the reason why attention has to be causal; empty if it need not be.
      reads_hidden_states: attention needs `Context.x_k`, so a cache has to keep hidden states.
      ordered: what a key adds depends on its neighbours in the row, so the keys that a query may
        attend to must be in the order of their positions. Attention refuses other orders; where
        positions or mask are traced, such queries give NaN.
      frequency_params: names of frequencies among the parameters, without weight decay.
      hidden_size, head_size, num_heads: D, d and H that `define_encoding` built it for; None for
        any.
    """

    max_length: int | None = None
    resize: Callable[[Params, int, str], Params] | None = None
    axes: int = 1
    cacheable: bool = True
    causal_only: str = ""
    reads_hidden_states: bool = False
    ordered: bool = False
    frequency_params: tuple[str, ...] = ()
    hidden_size: int | None = None
    head_size: int | None = None
    num_heads: int | None = None


class Metadata(Record):
    """Documentation and measurement of an encoding; nothing is computed from it in a model.

    Attributes:
      formula: in one line of plain text, `ω_i = 10000^(−2i/D)`; the cards of the docs typeset it.
      source: the paper and its equation or section.
      parameters: their number as a formula.
      invariant: attention depends on positions by their differences alone.
      monotone, symmetric: proximities (P·Pᵀ of absolute vectors, else logits of identical tokens)
        strictly decrease with distance on either side, and are the same in both directions. True or
        False hold for all parameters and tokens, over enough positions; None depends on them.
      kind: what vectors are indexed by, positions or offsets.
      vectors: `(params, x [...]) -> [..., D or d]`, the position vectors P(x).
      frequencies: `params -> [F]` or `[#H, F]`, radians per position, of a sinusoidal or rotary
        encoding; if they depend on the length, those of short inputs.
      pairs: two dimensions of a head for each of F pairs of a rotary encoding of one axis.
    """

    formula: str = ""
    source: str = ""
    parameters: str = "0"
    invariant: bool = False
    monotone: bool | None = None
    symmetric: bool | None = None
    kind: Literal["absolute", "relative"] = "relative"
    vectors: Callable[[Params, Array], jax.Array] | None = None
    frequencies: Callable[[Params], jax.Array] | None = None
    pairs: tuple[tuple[int, int], ...] = ()


def no_parameters(rng: jax.Array) -> Params:
    """The `init` of an encoding that learns nothing."""
    return {}


def normal_init(
    stddev: float, **shapes: tuple[int, ...]
) -> Callable[[jax.Array], Params]:
    """Return the `init` that draws parameters of these shapes, in order, from a normal."""

    def init(rng: jax.Array) -> Params:
        rngs = split_key(rng, len(shapes))
        return {
            name: stddev * jax.random.normal(key, shape)
            for (name, shape), key in zip(shapes.items(), rngs)
        }

    return init


def split_key(rng: jax.Array, count: int) -> jax.Array | list[jax.Array]:
    """Return so many keys; `rng` itself for one."""
    return jax.random.split(rng, count) if count > 1 else [rng]


_SHORT = reprlib.Repr()  # Such as factors of all frequencies.
_SHORT.maxtuple = 3

QKV = tuple[Array, Array, Array]  # Queries, keys and values, each `[B, L, H, d]`.


_RENAMED_HOOKS = {
    "heads": "map_qkv",
    "output": "map_output",
    "factor": "scale",
    "logit_map": "map_logits",
}


class Part(Record, renamed=_RENAMED_HOOKS):
    """A single encoding, as pure functions of its own parameters. A hook that is None is absent.

    Parts that the same function made from equal options are equal, and can be pickled.

    Attributes:
      name: as a config writes it, options included: `"rope(base=500)"`.
      init: `init(rng) -> params`.
      positions: `(positions, HookContext) -> positions` of queries or keys that the other hooks
        see; `HookContext.positions_k` are those of all keys, or of all tokens of an input.
      embed: `(params, x [B, L, D], HookContext) -> x`.
      map_qkv: `(params, q, k, v, HookContext) -> (q, k, v)`, each `[B, L, H, d]`; k and v may have
        fewer heads. The head size of q and k may grow; logits are scaled by the original one.
      map_output: `(params, o, HookContext) -> o`, undoes what `map_qkv` did to v. Not with vectors
        that are added to the values.
      offsets: terms of the offset.
      logits: `(params, q, k, HookContext) -> LogitTerms`, all other terms; q is scaled by s. An
        array `[#B, #H, Lq, Lk]` instead, leading axes of 1 left out or not, is kept whole always.
      scale: `(params, HookContext) ->` a number, or `[#B, #Lq, #H, 1]`: it multiplies s.
      sink: `(params, HookContext) ->` a number, or `[H]`: a logit in the softmax's denominator.
      map_logits: `(params, content, terms, mask) -> logits`, each float32 `[B, H, Lq, Lk]`: logits
        of queries and keys (or what the map before made), and all that parts add to them. The mask
        is bool, True where a query may attend to a key. Keys that a term of -inf forbids are
        masked, with terms of 0, and stay forbidden. Attention in blocks calls it for some queries
        at a time, with all keys that these can reach.
      traits: what callers must respect.
      metadata: documentation and measurement only.
      params_key: the key of its parameters; default the name without options.
      constructor: the call that makes an encoding of this part alone; see `registry`.
    """

    name: str = ""
    init: Callable[[jax.Array], Params] = no_parameters
    positions: Callable[[Positions, HookContext], Positions] | None = None
    embed: Callable[[Params, Array, HookContext], jax.Array] | None = None
    map_qkv: Callable[[Params, Array, Array, Array, HookContext], QKV] | None = None
    map_output: Callable[[Params, Array, HookContext], jax.Array] | None = None
    offsets: OffsetTerms | None = None
    logits: (
        Callable[[Params, Array, Array, HookContext], LogitTerms | jax.Array] | None
    ) = None
    scale: Callable[[Params, HookContext], ArrayLike] | None = None
    sink: Callable[[Params, HookContext], ArrayLike] | None = None
    map_logits: Callable[[Params, Array, Array, Array], jax.Array] | None = None
    traits: Traits = Traits()
    metadata: Metadata | None = None
    params_key: str = ""
    constructor: functools.partial[PositionEncoding] | None = None

    def replace(self, **changes: Any) -> Part:
        """Return a part with other fields, which its constructor does not make.

        Raises:
          TypeError: for a field that a part does not have.
        """
        return dataclasses.replace(self, **{"constructor": None, **changes})

    @property
    def _identity(self) -> tuple:
        if self.constructor:
            call = self.constructor
            return call.func, call.args, frozenset(call.keywords.items())
        return tuple(vars(self).values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple:
        if self.constructor:
            return _part_of, (self.constructor,)
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        call = self.constructor
        if call is None:
            return f"Part({self.name!r})"
        arguments = [repr(encoding) for encoding in call.args]
        for key, value in call.keywords.items():
            arguments.append(f"{key}={_SHORT.repr(value)}")
        return f"{call.func.__name__}({', '.join(arguments)})"

    @property
    def key(self) -> str:
        """The key of its parameters in the params dict."""
        return self.params_key or self.name.partition("(")[0]

    @property
    def effects(self) -> tuple[str, ...]:
        """Descriptions of a part's effects in attention; none if it acts only at the input."""
        terms = self.offsets or OffsetTerms()
        effects = {
            "maps queries, keys or values": self.map_qkv or self.map_output,
            "adds terms to the attention logits": (
                terms.key_vectors or terms.query_vectors or terms.bias or self.logits
            ),
            "adds position vectors to the values": terms.value_vectors,
            "limits how far a query attends": terms.window,
            "changes the temperature of the softmax": self.scale,
            "adds to the denominator of the softmax": self.sink,
            "maps the finished logits": self.map_logits,
        }
        return tuple(effect for effect, hook in effects.items() if hook)


def _part_of(constructor: functools.partial[PositionEncoding]) -> Part:
    return constructor().parts[0]


def apply_heads(
    part: Part, params: Params, q: Array, k: Array, v: Array, context: HookContext
) -> QKV:
    """Apply the hook `map_qkv` of a part.

    Raises:
      ValueError: if it needs as many heads of keys as of queries, or changes more than head sizes.
    """
    if part.map_qkv is None:
        return q, k, v
    num_heads = q.shape[2]
    num_kv_heads = k.shape[2]
    problem = (
        f"{part.name!r} cannot map {num_kv_heads} heads of keys with {num_heads} heads of queries. "
        "Repeat the keys and values: jnp.repeat(k, q.shape[2] // k.shape[2], axis=2)."
    )
    try:
        mapped = part.map_qkv(params, q, k, v, context)
    except (TypeError, ValueError) as error:
        if num_kv_heads == num_heads:
            raise
        raise ValueError(f"{problem} ({error})") from error
    mapped_q, mapped_k, _ = mapped
    if mapped_k.shape[2] == num_heads != num_kv_heads:  # One head of keys, broadcast.
        raise ValueError(problem)
    before = [list(x.shape[:3]) for x in (q, k, v)]
    after = [list(x.shape[:3]) for x in mapped]
    if after != before or mapped_q.shape[3] != mapped_k.shape[3]:
        raise ValueError(
            f"The hook 'map_qkv' of {part.name} may change the last axis of queries and keys, and "
            f"of values; it made {[list(x.shape) for x in mapped]} of {before}."
        )
    return mapped


def apply_positions(part: Part, context: HookContext, batch_size: Size) -> HookContext:
    """Return `context` with the positions that `part` sees; itself if they are the same."""
    if part.positions is None:
        return context
    q = context.positions_q
    k = context.positions_k
    hook_context = context.replace(batch_size=batch_size)
    part_q = part.positions(q, hook_context)
    part_k = part_q if k is q else part.positions(k, hook_context)
    if part_q is q and part_k is k:
        return context
    return context.replace(positions_q=part_q, positions_k=part_k, document_ids=None)
