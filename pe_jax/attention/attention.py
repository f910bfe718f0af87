"""Softmax attention that takes its position encoding as an argument.

Shapes: B batch, Lq and Lk lengths, H heads of queries, G of keys and values, d head size. The
softmax is float32, or float64 where q or k is, whatever the dtype of parameters.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import cudnn, dropout, implementations, masks, naive, xla
from pe_jax.attention.inputs import AttentionInputs, apply_encoding
from pe_jax.common.dtypes import check_floats, standard_promotion
from pe_jax.common.errors import former_arguments
from pe_jax.common.mesh_axes import automatic_sharding, spec_of
from pe_jax.common.shapes import Array, Float, Size
from pe_jax.encodings.encoding import (
    PositionEncoding,
    check_acts_in_attention,
    check_context,
    check_heads,
    check_layer,
    checked_encoding,
    none,
)
from pe_jax.encodings.part import Context, HookContext, Params
from pe_jax.encodings.positions import check_length, default_positions, paired_positions


def _sharding_of_outputs(q: Array, *_: Any, return_lse: bool = False, **__: Any) -> Any:
    """The sharding of `[B, Lq, H, ...]`, and of the second result if there is one."""
    spec = spec_of(q, 0, 1, 2)
    return (spec, spec) if return_lse else spec


def _sharding_of_pairs(q: Array, *_: Any, **__: Any) -> Any:
    """The sharding of `[B, H, Lq, Lk]`."""
    return spec_of(q, 0, 2, 1)


@overload
def attention(
    q: Float[Array, "B Lq H d"], k: Float[Array, "B Lk G d"], v: Float[Array, "B Lk G f"],
    encoding: PositionEncoding | None = None, params: Params | None = None,
    context: Context | None = None, *, mask: Any = None, dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None, implementation: str = "auto",
    return_lse: Literal[False] = False,
) -> Float[jax.Array, "B Lq H f"]: ...  # fmt: skip
@overload
def attention(
    q: Float[Array, "B Lq H d"], k: Float[Array, "B Lk G d"], v: Float[Array, "B Lk G f"],
    encoding: PositionEncoding | None = None, params: Params | None = None,
    context: Context | None = None, *, mask: Any = None, dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None, implementation: str = "auto",
    return_lse: Literal[True],
) -> tuple[Float[jax.Array, "B Lq H f"], Float[jax.Array, "B Lq H"]]: ...  # fmt: skip
@former_arguments(platform="The platform is that of the devices that JAX computes on.")
@automatic_sharding(_sharding_of_outputs)
@standard_promotion()
def attention(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk G d"],
    v: Float[Array, "B Lk G f"],
    encoding: PositionEncoding | None = None,
    params: Params | None = None,
    context: Context | None = None,
    *,
    mask: Any = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    implementation: str = "auto",
    return_lse: bool = False,
) -> Float[jax.Array, "B Lq H f"] | tuple[jax.Array, Float[jax.Array, "B Lq H"] | None]:
    """Multi-head attention with a position encoding; the formula is in `pe_jax.encodings.part`.

    The backward pass is written by hand (see `xla`) and differentiable: `jax.grad`, `jax.vjp` and
    `jax.hessian` work. Forward mode (`jax.jvp`, `jax.jacfwd`), and second derivatives on a TPU or
    in cuDNN, need `implementation="naive"`, which is ordinary JAX throughout.

    Batch and lengths may be symbolic (`jax.export`); implementations in blocks need known lengths.

    Args:
      q, k, v: float16, bfloat16, float32 or float64. Each of the G heads of keys and values serves
        H / G consecutive heads of queries (grouped-query attention; G = 1 is multi-query). Keys and
        values are not repeated in memory, unless the encoding reads the keys (hook `logits`, or
        offset vectors that are added to queries). Pass arrays `[B, H, L, d]` as
        `jnp.swapaxes(x, 1, 2)`: without the swap, attention runs over heads. That is detected only
        if H differs from L, and the encoding fixes H, or positions, a mask, hidden states or a
        cache fix L.
      encoding: a position encoding; None means no position information in the attention.
      params: those of `encoding.init`, trained or not.
      context: positions of queries and keys, by default range(L), and what else the encoding
        reads, such as hidden states. `document_ids` of packed rows act as a `document_mask`, except
        for zeros that begin a row (see `Context`). Attention in blocks and the TPU kernel skip keys
        of other documents, and windows run in blocks.
      mask: bool `[#B, #H, #Lq, Lk]`, True where a query may attend to a key (see `masks`). A query
        that may attend to nothing gets zeros, in outputs and gradients.
      dropout_rate, dropout_rng: dropout of the weights; a rate above 0 needs an rng. Every
        implementation drops the same weights.
      implementation: `"naive"` is the formula in ordinary JAX; `"table"` stores all weights and
        computes terms of the offset from a table (see `offset_terms`); `"fused"` has memory linear
        in the length, and so has `"kernel"`, on TPUs; `"cudnn"` is cuDNN's flash attention in
        bfloat16 or float16, on NVIDIA GPUs, of encodings that add at most biases. All give the same
        numbers and gradients up to rounding. `"auto"` chooses among the first three by device,
        length and encoding, and `"kernel"` in training on a TPU after `check_kernel` has passed.
        The device is that of the mesh that is set (`jax.set_mesh`), else the default device.
      return_lse: return the logarithm of the softmax's denominator as well, for attention whose
        keys come in pieces (ring attention, split-key decoding); not in `"kernel"` and `"cudnn"`.

    Returns:
      `[B, Lq, H, f]` in the dtype of `v`; zeros if there are no keys. With `return_lse` a tuple of
      this and `[B, Lq, H]`, the logarithm of the sum of exponentials of the logits, float32:
      outputs of pieces of the keys are averaged with the weights
      `jax.nn.softmax(jnp.stack(lse), axis=0)`. A sink is in the sum of each piece that has one:
      leave `sink` out of the encoding of all pieces but the first. A query that may attend to
      nothing has about -1e38.

    Raises:
      ValueError: for another dtype of q, k or v; heads, positions, hidden states or document ids
        that do not fit q and k; a mask that is not bool; missing parameters; an encoding that acts
        at the input of a model alone; one for causal attention that is not joined with `causal`; or
        an implementation that is unknown or does not support the inputs or the device, for which it
        is compiled. Values of positions and document ids are checked unless they are traced.

    Example:
      >>> import jax
      >>> from pe_jax import encodings
      >>> from pe_jax.attention import attention
      >>> encoding = encodings.learned_relative(head_size=8, max_distance=16)
      >>> q = k = v = jax.random.normal(jax.random.key(0), (2, 10, 4, 8))
      >>> attention(q, k, v, encoding, encoding.init(jax.random.key(1))).shape
      (2, 10, 4, 8)
    """
    if dropout_rate and dropout_rng is None:
        raise ValueError(
            f"dropout_rng is required with dropout_rate={dropout_rate}. Pass a key, or "
            "dropout_rate=0.0 to drop nothing."
        )
    check_floats(q=q, k=k, v=v)
    implementations.check_name(implementation)
    if encoding is None:
        encoding = none()
    context = completed(context, encoding, q.shape[:2], k.shape[:2])
    masks.check_mask(mask, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    if 0 in (*q.shape[:2], k.shape[1]):  # Not one pair of query and key.
        check_heads(encoding, q, k, v)
        zeros = jnp.zeros((*q.shape[:3], v.shape[-1]), v.dtype)
        nothing = jnp.full(q.shape[:3], jnp.finfo(jnp.float32).min)
        return (zeros, nothing) if return_lse else zeros
    x = apply_encoding(encoding, params, q, k, v, context, mask)
    if not dropout_rate:
        dropout_rng = None
    seed = None if dropout_rng is None else dropout.seed(dropout_rng)
    lse: Array | None = None
    match _choose(implementation, x, seed, return_lse, encoding.name):
        case "kernel":
            # Here, as Pallas takes long to import.
            from pe_jax.attention.tpu_kernel import adapter

            out = adapter.attend(x, dropout_rate, seed)
        case "cudnn":
            out = cudnn.attend(x)
        case "naive":
            drop = functools.partial(
                dropout.dropout, rate=dropout_rate, rng=dropout_rng
            )
            out = naive.attend(x, drop)
            if return_lse:
                lse = naive.log_denominator(x)
        case chosen:
            block = implementations.block_size if chosen == "fused" else None
            out, lse = xla.attend(x, seed, dropout_rate, block, return_lse=return_lse)
    # Undo maps of the values, the last first.
    for part, part_params, part_context in reversed(x.parts):
        if part.map_output:
            out = part.map_output(part_params, out, part_context)
    out = out.astype(v.dtype)
    return (out, lse) if return_lse else out


@automatic_sharding(_sharding_of_pairs)
@standard_promotion()
def attention_logits(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk G d"],
    encoding: PositionEncoding,
    params: Params | None,
    context: Context | None = None,
) -> Float[jax.Array, "B H Lq Lk"]:
    """Return the logits with all terms, before masks and windows; float32. They are scaled by
    1/sqrt(d), unless the encoding changes the scale.

    Raises:
      ValueError: as `attention`.
    """
    return naive.logits(_inputs_without_values(q, k, encoding, params, context))


@automatic_sharding(_sharding_of_pairs)
@standard_promotion()
def attention_weights(
    q: Float[Array, "B Lq H d"],
    k: Float[Array, "B Lk G d"],
    encoding: PositionEncoding,
    params: Params | None,
    context: Context | None = None,
    *,
    mask: Any = None,
) -> Float[jax.Array, "B H Lq Lk"]:
    """Return the softmax of the masked logits, without dropout; float32. A sink takes the rest.

    Raises:
      ValueError: as `attention`.
    """
    x = _inputs_without_values(q, k, encoding, params, context, mask)
    return masks.masked_softmax(naive.logits(x), x.whole_mask, x.sink)


def _inputs_without_values(
    q: Array,
    k: Array,
    encoding: PositionEncoding,
    params: Params | None,
    context: Context | None,
    mask: Any = None,
) -> AttentionInputs:
    """Check the inputs of attention and apply the encoding; values are the keys."""
    check_floats(q=q, k=k)
    context = completed(context, encoding, q.shape[:2], k.shape[:2])
    masks.check_mask(mask, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    return apply_encoding(encoding, params, q, k, k, context, mask)


def _choose(
    implementation: str,
    x: AttentionInputs,
    seed: Array | None,
    return_lse: bool,
    encoding_name: str,
) -> str:
    """Return the name of the implementation that computes `x`.

    Raises:
      UnsupportedError: if it was given by name and cannot compute `x`.
    """
    keys = x.k.shape[1]
    if implementation != "auto":
        if implementation in implementations.KNOWN_LENGTHS:
            for length in x.lengths:
                check_length(length, f"implementation={implementation!r}")
        reason = _unsupported_reason(implementation, x, seed, return_lse)
        if reason:
            raise implementations.UnsupportedError(
                f"implementation={implementation!r} needs {reason}, which does not hold for "
                f"{encoding_name!r} here. Use 'auto', or 'naive', which supports every encoding."
            )
        return implementation
    tries_kernel = implementations.auto_tries_kernel(keys)
    if tries_kernel and not _unsupported_reason("kernel", x, seed, return_lse):
        return "kernel"
    if xla.unsupported_reason(x):
        return "naive"  # The plain formula has vectors of every pair of query and key.
    has_tables = x.has_vectors and x.context.ranges is not None
    return implementations.choose(keys, x.masks.window, has_tables)


def _unsupported_reason(
    implementation: str, x: AttentionInputs, seed: Array | None, return_lse: bool
) -> str:
    """Return what an implementation needs and `x` does not have; empty if it computes `x`."""
    if implementation == "naive":
        return ""
    if implementation in ("table", "fused"):
        return xla.unsupported_reason(x)
    if return_lse:
        return "return_lse=False"
    if implementation == "cudnn":
        return cudnn.unsupported_reason(x, seed)
    from pe_jax.attention.tpu_kernel import adapter  # Pallas takes long to import.

    return adapter.unsupported_reason(x)


def completed(
    context: Context | None,
    encoding: PositionEncoding,
    queries: tuple[Size, ...],
    keys: tuple[Size, ...],
) -> HookContext:
    """Return `context` with positions of all queries [B, Lq] and keys [B, Lk].

    Raises:
      ValueError: for an encoding that does not act in attention, and for hidden states, positions
        or document ids that do not fit queries and keys.
    """
    check_layer(checked_encoding(encoding))
    check_acts_in_attention(encoding)
    context = check_context(context)
    check_hidden_states("q", context.x_q, queries)
    check_hidden_states("k", context.x_k, keys)
    if context.document_ids is not None:
        context = _with_document_ids(context, encoding, queries, keys)
    if not encoding.parts:  # Positions of any kind are those of other layers.
        positions_q = default_positions(queries[1])
        positions_k = default_positions(keys[1])
    else:
        positions_q, positions_k = paired_positions(
            context.positions_q,
            context.positions_k,
            queries,
            keys,
            encoding.axes,
            encoding.max_length,
        )
    return HookContext.of(context, positions_q, positions_k)


def check_hidden_states(side: str, x: Array | None, tokens: tuple[Size, ...]) -> None:
    """Check hidden states of these tokens, [B, L].

    Raises:
      ValueError: for other dtypes than floats, and another shape than [B, L, D].
    """
    if x is None:
        return
    check_floats(**{f"Context.x_{side}": x})
    if x.ndim != 3 or x.shape[:2] != tokens:
        raise ValueError(
            f"Context.x_{side} must be [B, L, D] with the hidden states of {tokens[1]} tokens in "
            f"{tokens[0]} rows, as {side} has, got {list(x.shape)}. Pass those that {side} was "
            "projected from."
        )


def _with_document_ids(
    context: Context,
    encoding: PositionEncoding,
    queries: tuple[Size, ...],
    keys: tuple[Size, ...],
) -> Context:
    """`context`, whose `document_ids` are checked, with positions from 0 in each by default.

    Zeros that begin a row get a number of their own: of a document numbered 0, or of padding, where
    no result is used.
    """
    assert context.document_ids is not None
    check_length(queries[1], "Context.document_ids")
    shape = np.shape(context.document_ids)
    if queries != keys or shape != queries:
        raise ValueError(
            f"Context.document_ids must be [B, L] of self-attention, here {list(queries)} queries "
            f"and {list(keys)} keys, got {list(shape)}. For other keys pass "
            "mask=document_mask(document_ids_q, document_ids_k)."
        )
    document_ids = masks.checked_document_ids(
        context.document_ids, "Context.document_ids"
    )
    if encoding.axes > 1:
        raise ValueError(
            f"Context.document_ids needs positions of one axis, got {encoding.axes} axes. Pass "
            "mask=document_mask(document_ids, document_ids)."
        )
    masks.check_document_ids(context.document_ids, context.positions_q)
    leading = jnp.cumsum(document_ids != 0, axis=1) == 0
    unused = document_ids.max(1, keepdims=True, initial=0) + 1
    document_ids = jnp.where(leading, unused, document_ids)
    positions = context.positions_q
    if positions is None and context.positions_k is None:
        starts, _ = masks.document_bounds(document_ids)
        positions = jnp.arange(queries[1]) - starts
    return context.replace(document_ids=document_ids, positions_q=positions)
