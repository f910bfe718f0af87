"""Position encodings inside other libraries' attention: Flax's modules, `jax.nn`, any other.

`attention_fn` and `dot_product_attention` return functions that the other library calls, which
compute with `pe_jax.attention.attention`; `attention_inputs` returns the arrays that any softmax
attention takes. Keys and values may have fewer heads than queries (grouped-query attention).
Anything that cannot be represented is a ValueError. Parts of an encoding that act at the input of
a model are left to `encodings.embed`.

The arguments `encoding`, `params` and `context` are those of `attention`. The other library passes
queries, keys and values only, so `context` has whatever else an encoding needs: hidden states,
projections, and positions where the numbers of queries and keys differ.

Shapes: Lq and Lk lengths, H heads, d head size. Queries, keys and values are `[*B, L, H, d]`, heads
after lengths; `jnp.swapaxes(x, -3, -2)` makes them from `[*B, H, L, d]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from pe_jax.attention import xla
from pe_jax.attention.attention import attention, completed
from pe_jax.attention.implementations import check_name
from pe_jax.attention.inputs import apply_encoding
from pe_jax.attention.masks import check_mask, combine_masks
from pe_jax.common.dtypes import at_least_float32, check_floats, standard_promotion
from pe_jax.common.shapes import Array, Bool, Float
from pe_jax.encodings.encoding import (
    PositionEncoding,
    check_acts_in_attention,
    checked_encoding,
)
from pe_jax.encodings.modifiers.window import causal
from pe_jax.encodings.part import (
    Context,
    HookContext,
    OffsetTerms,
    Params,
    Part,
    Traits,
)
from pe_jax.encodings.positions import AttentionWindow, Positions

AttentionFn = Callable[..., jax.Array]
_ABSENT = "absent"  # The default of a mask, whose absence is a mistake.
_PRODUCTS = "products are those of pe_jax.attention"


def attention_fn(
    encoding: PositionEncoding,
    params: Params | None = None,
    context: Context | None = None,
    *,
    implementation: str = "auto",
) -> AttentionFn:
    """An `attention_fn` for `flax.linen.MultiHeadDotProductAttention`.

    (For `flax.nnx.MultiHeadAttention` take `pe_jax.nnx.AttentionFn`, whose parameters NNX sees.)

    It differs from Flax's own in three ways: the softmax is always float32; dropout is independent
    for every weight (Flax's default drops the same ones in all rows and heads); and a query that
    may attend to nothing gets zeros instead of a mean over all keys.

    With Flax's cache (`decode=True`) pass the position of the new token,
    `Context(positions_q=index[None])`; positions of keys are their indices in the cache.

    Flax passes only arguments that the function's signature names. Wrap this function with
    `functools.wraps`, or the mask is lost; a call without `mask` is therefore an error.

    Raises:
      ValueError: for an encoding that acts at the input of a model alone, or an implementation that
        is unknown; in a call as `attention`.
    """
    check_acts_in_attention(checked_encoding(encoding))
    check_name(implementation)

    def attend(
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | str | None = _ABSENT,
        broadcast_dropout: bool = True,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: Any = None,
        force_fp32_for_softmax: bool = False,
        einsum_dot_general: Any = None,
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
        is_causal: bool = False,
        input_positions: Positions | None = None,
    ) -> jax.Array:
        del broadcast_dropout, force_fp32_for_softmax  # See the docstring above.
        if isinstance(mask, str):
            raise ValueError(
                "attention_fn was called without mask. Flax passes its mask only to functions "
                "with an argument of this name: wrap the function with functools.wraps. Outside "
                "Flax, pass mask=None for no mask."
            )
        _refuse(
            precision=(precision, "take jax.default_matmul_precision"),
            module=(
                module,
                "for weights (sow_weights) call pe_jax.attention.attention_weights",
            ),
            einsum_dot_general=(einsum_dot_general, _PRODUCTS),
            qk_attn_weights_einsum=(qk_attn_weights_einsum, _PRODUCTS),
            attn_weights_value_einsum=(attn_weights_value_einsum, _PRODUCTS),
        )
        check_floats(query=query, key=key, value=value)
        if dtype is None:
            dtype = jnp.result_type(query, key, value)
        query, key, value = (jnp.asarray(x, dtype) for x in (query, key, value))
        if deterministic or not dropout_rate > 0:
            dropout_rate = 0.0
            dropout_rng = None
        return _attend(
            _joined(encoding, query, bias=bias, is_causal=is_causal),
            params,
            _call_context(context, input_positions, query, key),
            (query, key, value),
            _bool_mask(mask),
            implementation=implementation,
            dropout_rate=dropout_rate,
            dropout_rng=dropout_rng,
        )

    return attend


def dot_product_attention(
    encoding: PositionEncoding,
    params: Params | None = None,
    context: Context | None = None,
    *,
    implementation: str = "auto",
) -> AttentionFn:
    """A function with the arguments of `jax.nn.dot_product_attention`.

    `is_causal` and `local_window_size` compare positions: the indices, as in JAX, unless `context`
    has others. Not supported: `return_residual`, and `implementation="cudnn"`. A query
    that may attend to nothing gets zeros.

    Raises:
      ValueError: for an encoding that acts at the input of a model alone, or an implementation that
        is unknown; in a call as `attention`.
    """
    check_acts_in_attention(checked_encoding(encoding))
    check_name(implementation)
    chosen = implementation

    def attend(
        query: ArrayLike,
        key: ArrayLike,
        value: ArrayLike,
        bias: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        *,
        scale: float | None = None,
        is_causal: bool = False,
        query_seq_lengths: ArrayLike | None = None,
        key_value_seq_lengths: ArrayLike | None = None,
        local_window_size: int | tuple[int, int] | None = None,
        implementation: str | None = None,
        return_residual: bool = False,
    ) -> jax.Array:
        _refuse(
            implementation=(
                implementation not in (None, "xla"),
                "take pe_jax.adapters.dot_product_attention(encoding, implementation=...)",
            ),
            return_residual=(return_residual, "take jax.nn.dot_product_attention"),
        )
        q, k, v = (jnp.asarray(x) for x in (query, key, value))
        check_floats(query=q, key=k, value=v)
        allowed = None
        if mask is not None:
            allowed = jnp.asarray(mask)
            if allowed.dtype != jnp.bool_:
                raise ValueError(
                    f"mask must be bool, got {allowed.dtype}. Pass an additive mask as a bias."
                )
        if query_seq_lengths is not None:
            is_query = _is_token(query_seq_lengths, q.shape[-3])
            allowed = combine_masks(allowed, is_query[:, None, :, None])
        if key_value_seq_lengths is not None:
            is_key = _is_token(key_value_seq_lengths, k.shape[-3])
            allowed = combine_masks(allowed, is_key[:, None, None, :])
        joined = _joined(
            encoding,
            q,
            bias=bias,
            is_causal=is_causal,
            window=local_window_size,
            scale=scale,
        )
        return _attend(
            joined, params, context, (q, k, v), allowed, implementation=chosen
        )

    return attend


@standard_promotion()
def attention_inputs(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk G d"],
    v: Float[Array, "B Lk G f"],
    encoding: PositionEncoding,
    params: Params | None = None,
    context: Context | None = None,
    *,
    mask: Bool[Array, "#B #H #Lq Lk"] | None = None,
    scale: float | None = None,
) -> tuple[
    jax.Array,
    jax.Array,
    jax.Array,
    Float[jax.Array, "#B #H Lq Lk"] | None,
    Bool[jax.Array, "..."] | None,
]:
    """Return inputs with which any softmax attention (cuDNN's, splash, ring) uses an encoding.

    Rotary encodings need no bias. Terms of the logits become an array of all pairs, and windows
    become part of the mask.

    Args:
      mask: True where a query may attend to a key.
      scale: by which that attention multiplies q·k; default 1 / sqrt(e), e the head size of the
        queries returned. It is 1.0 for splash attention.

    Returns:
      q, k and v; a bias `[#B, #H, Lq, Lk]` to add to scale · q·k, or None; and a mask, or None.

    Raises:
      ValueError: as `attention`; for an encoding that adds vectors to the values, maps outputs or
        finished logits, or adds to the denominator of the softmax.

    Example:
      >>> import jax
      >>> from pe_jax import encodings
      >>> from pe_jax.adapters import attention_inputs
      >>> encoding = encodings.rope(head_size=8) + encodings.causal()
      >>> q = k = v = jax.random.normal(jax.random.key(0), (2, 10, 4, 8))
      >>> q, k, v, bias, mask = attention_inputs(q, k, v, encoding)
      >>> jax.nn.dot_product_attention(q, k, v, bias, mask).shape
      (2, 10, 4, 8)
    """
    check_floats(q=q, k=k, v=v)
    context = completed(context, encoding, q.shape[:2], k.shape[:2])
    check_mask(mask, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    for part in encoding.parts:
        terms = part.offsets or OffsetTerms()
        effects = {
            "adds position vectors to the values": terms.value_vectors,
            "maps outputs": part.map_output,
            "adds to the denominator of the softmax": part.sink,
            "maps the finished logits": part.map_logits,
        }
        for effect, hook in effects.items():
            if hook:
                raise ValueError(
                    f"{part.name} {effect}, which no argument of another attention function can "
                    "express. Call pe_jax.attention.attention, which supports every encoding."
                )
    x = apply_encoding(encoding, params, q, k, v, context, mask)
    if scale is None:
        scale = x.q.shape[-1] ** -0.5
    # The other attention multiplies q·k by `scale`, where x.scale is wanted.
    scaled_q = at_least_float32(x.unscaled_q) * (x.scale / scale)
    scaled_q = scaled_q.astype(x.q.dtype)
    return scaled_q, x.k, x.v, xla.added_logits(x), x.whole_mask


# --- shared ---------------------------------------------------------------------------------------


def _call_context(
    context: Context | None, input_positions: Positions | None, query: Array, key: Array
) -> Context:
    """The context of a call of Flax, which may pass positions of the queries."""
    if context is None:
        context = Context()
    if input_positions is not None:
        context = context.replace(positions_q=input_positions)
    num_keys = key.shape[-3]
    has_q_alone = context.positions_q is not None and context.positions_k is None
    if has_q_alone and query.shape[-3] != num_keys:
        # Flax's cache has the key of position j at index j.
        context = context.replace(positions_k=range(num_keys))
    return context


def _is_token(lengths: ArrayLike, size: int) -> Bool[jax.Array, "B L"]:
    """True for the first `lengths` of each row's `size` places."""
    return jnp.arange(size) < jnp.asarray(lengths).reshape(-1, 1)


def _refuse(**arguments: tuple[Any, str]) -> None:
    """Raise a ValueError for arguments that are set; each comes with the way out."""
    for name, (value, instead) in arguments.items():
        if value is not None and value is not False:
            raise ValueError(
                f"{name} is not supported with a position encoding: {instead}."
            )


def _bool_mask(mask: Array | None) -> Array | None:
    """Return a mask of Flax as bool. Flax has masks of 0 and 1 in any dtype.

    Raises:
      ValueError: for a mask whose values are known and not 0 or 1, as those of an additive mask.
    """
    if mask is None:
        return None
    allowed = jnp.asarray(mask) != 0
    is_bool = jnp.result_type(mask) == jnp.bool_
    if is_bool or isinstance(mask, jax.core.Tracer):
        return allowed
    values = np.asarray(mask)
    wrong = values[(values != 0) & (values != 1)]
    if wrong.size:
        raise ValueError(
            f"mask must be bool, or 1 where a query may attend to a key and 0 elsewhere, got "
            f"{wrong[0]}. For an additive mask that is 0 where allowed, pass mask=additive == 0."
        )
    return allowed


def _joined(
    encoding: PositionEncoding,
    query: Array,
    *,
    bias: ArrayLike | None = None,
    is_causal: bool = False,
    window: int | tuple[int, int] | None = None,
    scale: float | None = None,
) -> PositionEncoding:
    """`encoding` joined with a bias, a window to the left and right, and a scale of the logits."""
    parts = []
    traits = Traits(axes=encoding.axes)
    if bias is not None:
        dtype = jnp.result_type(bias)
        if dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.complexfloating):
            raise ValueError(
                f"bias must be real numbers that are added to the logits, got {dtype}. Pass a bool "
                "array, True where a query may attend to a key, as mask."
            )
        added = _one_batch(bias, query.shape[:-3])

        def logits(
            params: Params, q: Array, k: Array, context: HookContext
        ) -> jax.Array:
            shape = (*added.shape[:2], q.shape[1], k.shape[1])
            return jnp.broadcast_to(added, shape)

        parts.append(Part(name="argument_bias", logits=logits, traits=traits))
    if scale is not None:
        factor = scale * query.shape[-1] ** 0.5
        parts.append(
            Part(name="argument_scale", scale=lambda *_: factor, traits=traits)
        )
    if window is not None:
        left, right = (window, window) if isinstance(window, int) else window
        limit = OffsetTerms(window=AttentionWindow(left=left, right=right))
        parts.append(Part(name="argument_window", offsets=limit))
    joined = encoding + PositionEncoding(parts=tuple(parts))
    if is_causal and not joined.is_causal:
        joined += causal()
    return joined


def _attend(
    encoding: PositionEncoding,
    params: Params | None,
    context: Context | None,
    heads: tuple[Array, Array, Array],
    mask: Array | None,
    *,
    implementation: str,
    **dropout: Any,
) -> Float[Array, "*B Lq H d"]:
    """Attention of heads `[*B, L, H, d]`."""
    batch = heads[0].shape[:-3]
    q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in heads)
    if mask is not None:
        mask = _one_batch(mask, batch)
        mask = jnp.broadcast_to(mask, (*mask.shape[:-1], k.shape[1]))
    try:
        out = attention(
            q,
            k,
            v,
            encoding,
            params,
            context,
            mask=mask,
            implementation=implementation,
            **dropout,
        )
    except ValueError as error:
        error.add_note(
            "An attention function gets queries, keys and values only. Hidden states, "
            "projections and positions go in where it is made: attention_fn(encoding, params, "
            "Context(positions_q=..., x_q=..., x_k=..., projections=...))."
        )
        raise
    return out.reshape(*batch, *out.shape[-3:])


def _one_batch(x: ArrayLike, batch: tuple[int, ...]) -> jax.Array:
    """Merge the axes of the batch of an array that broadcasts to [*batch, H, Lq, Lk]."""
    x = jnp.asarray(x)
    missing_axes = len(batch) + 3 - x.ndim
    x = x.reshape(missing_axes * (1,) + x.shape)
    if any(size > 1 for size in x.shape[:-3]):
        x = jnp.broadcast_to(x, (*batch, *x.shape[-3:]))
    return x.reshape(-1, *x.shape[-3:])
