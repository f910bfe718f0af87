"""Attention with a position encoding for Flax NNX; `pe_jax.linen` has the same for Linen.

Shapes: B batch, Lq and Lk lengths, D hidden size, H heads, d head size.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.adapters import attention_fn
from pe_jax.attention import Cache, init_cache, multi_head
from pe_jax.attention.implementations import check_name
from pe_jax.common.errors import extra
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings import Context, Params, PositionEncoding, Positions, embed, none
from pe_jax.encodings.encoding import checked_encoding
from pe_jax.encodings.positions import as_array

with extra("flax"):
    from flax import nnx
    from flax.nnx.nn.linear import default_bias_init, default_kernel_init
    from flax.typing import Dtype, Initializer


class MultiHeadAttention(nnx.Module):
    """Multi-head attention with a position encoding.

    Parameters have the names of `flax.nnx.MultiHeadAttention`. Those of the encoding are under
    `position`, a dict of `nnx.Param` in float32, empty if there are none. Parts of an encoding that
    act at the input of a model, such as position vectors, belong to `PositionEmbedding`.

    Args:
      num_heads: Number H of heads of queries.
      in_features: Size D of the inputs.
      in_kv_features: of the inputs of keys and values; default D.
      position: parameters of the encoding, `position` of another layer, to share them.
      others: as in `pe_jax.linen.MultiHeadAttention`.

    Raises:
      ValueError: for an unknown implementation, features that do not divide into heads, or an
        encoding that a layer of attention cannot take.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from pe_jax import encodings
      >>> from pe_jax.nnx import MultiHeadAttention
      >>> encoding = encodings.t5(num_heads=2) + encodings.causal()
      >>> layer = MultiHeadAttention(2, 8, encoding, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((1, 6, 8))).shape
      (1, 6, 8)
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        encoding: PositionEncoding | None = None,
        *,
        in_kv_features: int | None = None,
        qkv_features: int | None = None,
        out_features: int | None = None,
        position: Params | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool | None = None,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = default_bias_init,
        use_bias: bool = True,
        implementation: str = "auto",
        num_kv_heads: int | None = None,
        rngs: nnx.Rngs,
    ):
        check_name(implementation)
        self.num_heads = num_heads
        self.in_features = in_features
        self.head_size, self.num_kv_heads = multi_head.head_sizes(
            qkv_features or in_features, num_heads, num_kv_heads
        )
        self.encoding = none() if encoding is None else encoding
        self.dropout_rate = dropout_rate
        self.deterministic = deterministic
        self.dtype = dtype
        self.implementation = implementation
        dense = functools.partial(
            nnx.LinearGeneral,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            use_bias=use_bias,
            rngs=rngs,
        )
        heads = num_heads, self.head_size
        kv_heads = self.num_kv_heads, self.head_size
        self.query = dense(in_features, heads)
        self.key = dense(in_kv_features or in_features, kv_heads)
        self.value = dense(in_kv_features or in_features, kv_heads)
        self.out = dense(heads, out_features or in_features, axis=(-2, -1))
        acting = multi_head.in_attention(self.encoding)
        self.position = nnx.data(_init(acting, rngs) if position is None else position)
        self.rngs: nnx.RngStream | None = rngs.dropout.fork() if dropout_rate else None
        self.cache: nnx.Cache[Cache] | None = nnx.data(None)

    def init_cache(
        self, batch_size: int, length: int, dtype: Dtype | None = None
    ) -> None:
        """Make an empty cache with room for `length` tokens a row, as `attention.init_cache` does.

        Args:
          dtype: of keys and values; default that of the computation, or float32.

        Raises:
          ValueError: for an encoding that cannot decode, such as one that is not joined with
            `encodings.causal()`.
        """
        self.cache = nnx.Cache(
            init_cache(
                self.encoding,
                batch_size,
                length,
                num_kv_heads=self.num_kv_heads,
                head_size=self.head_size,
                hidden_size=self.in_features,
                dtype=dtype or self.dtype or jnp.float32,
            )
        )

    def __call__(
        self,
        inputs_q: Float[Array, "B Lq D"],
        inputs_k: Float[Array, "B Lk E"] | None = None,
        inputs_v: Float[Array, "B Lk G"] | None = None,
        *,
        mask: Bool[Array, "#B #H #Lq Lk"] | None = None,
        positions_q: Positions | None = None,
        positions_k: Positions | None = None,
        document_ids: Int[Array, "B Lq"] | None = None,
        position_rng: jax.Array | None = None,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
        decode: bool = False,
    ) -> Float[jax.Array, "B Lq O"]:
        """Self-attention, or attention to `inputs_k`; values default to what keys are made of.

        The cache of `decode` is the one that `init_cache` made.

        Args:
          rngs: for dropout; default a fork of those that the module was made with.
          others: as in `pe_jax.linen.MultiHeadAttention`.

        Raises:
          ValueError: see `attention` and `cached_attention`; for `decode` without a cache.
        """
        holder = self.cache if decode else None
        if decode and holder is None:
            raise ValueError(
                "There is no cache for decoding. Call init_cache(batch_size, length) first."
            )
        dropout_rng = self._dropout_rng(deterministic, rngs)
        out, cache = multi_head.attend(
            (inputs_q, inputs_k, inputs_v),
            (self.query, self.key, self.value),
            multi_head.in_attention(self.encoding),
            nnx.as_pure(self.position),
            Context(
                positions_q=positions_q,
                positions_k=positions_k,
                position_rng=position_rng,
                document_ids=document_ids,
            ),
            mask=mask,
            cache=None if holder is None else holder.get_value(),
            dropout_rate=0.0 if dropout_rng is None else self.dropout_rate,
            dropout_rng=dropout_rng,
            implementation=self.implementation,
        )
        if holder is not None and cache is not None:
            holder.set_value(cache)
        return self.out(out)

    def _dropout_rng(
        self, deterministic: bool | None, rngs: nnx.Rngs | nnx.RngStream | None
    ) -> jax.Array | None:
        """The rng of dropout; None without dropout."""
        if not self.dropout_rate:
            return None
        if nnx.module.first_from(
            deterministic,
            self.deterministic,
            error_msg="Dropout needs deterministic, in the call or the constructor.",
        ):
            return None
        rngs = self.rngs if rngs is None else rngs
        assert rngs is not None  # Made in the constructor where there is a rate.
        return rngs.dropout() if isinstance(rngs, nnx.Rngs) else rngs()


class PositionEmbedding(nnx.Module):
    """The parts of an encoding that act at the input of a model, such as adding position vectors.

    Parameters are under `position`, a dict of `nnx.Param`, empty if there are none.

    Args:
      position: parameters to share, as in `MultiHeadAttention`.
    """

    def __init__(
        self,
        encoding: PositionEncoding,
        *,
        position: Params | None = None,
        rngs: nnx.Rngs,
    ):
        self.encoding = checked_encoding(encoding).at_input
        self.position = nnx.data(
            _init(self.encoding, rngs) if position is None else position
        )
        self.index: nnx.Cache[jax.Array] | None = nnx.data(None)

    def init_cache(self, batch_size: int) -> None:
        """Start counting the tokens of each row from 0."""
        self.index = nnx.Cache(jnp.zeros(batch_size, jnp.int32))

    def __call__(
        self,
        x: Float[Array, "B L D"],
        positions: Positions | None = None,
        *,
        tokens: Int[Array, "B L"] | None = None,
        position_rng: jax.Array | None = None,
        decode: bool = False,
    ) -> Float[jax.Array, "B L D"]:
        """Apply the encoding; arguments as in `encodings.embed`.

        With `decode`, positions default to the number of tokens in each row since `init_cache`.

        Raises:
          ValueError: for `decode` without `init_cache` or positions.
        """
        if decode and positions is None and self.encoding.parts:
            if self.index is None:
                raise ValueError(
                    "decode needs a cache or positions. Call init_cache(batch_size), or pass "
                    "positions."
                )
            positions = self.index[...][:, None] + jnp.arange(x.shape[1])
            self.index[...] += x.shape[1]
        params = nnx.as_pure(self.position)
        context = Context(
            positions_q=positions, tokens=tokens, position_rng=position_rng
        )
        return embed(x, self.encoding, params, context)


class AttentionFn(nnx.Module):
    """An `attention_fn` for `flax.nnx.MultiHeadAttention`: a module, whose parameters NNX trains.

    They are under `attention_fn/position` of Flax's module. Layers that get the same `AttentionFn`
    share them. See `pe_jax.adapters.attention_fn` for what differs from Flax's own attention, and
    what is refused. Encodings that read hidden states or projections need
    `pe_jax.nnx.MultiHeadAttention`.

    Raises:
      ValueError: for an unknown implementation, or an encoding that a layer of attention cannot
        take.
    """

    def __init__(
        self,
        encoding: PositionEncoding,
        *,
        implementation: str = "auto",
        rngs: nnx.Rngs,
    ) -> None:
        check_name(implementation)
        self.encoding = multi_head.in_attention(encoding)
        self.implementation = implementation
        self.position = nnx.data(_init(self.encoding, rngs))
        self.positions: tuple[nnx.Cache[jax.Array] | None, ...] = nnx.data((None, None))

    @contextlib.contextmanager
    def at_positions(
        self, positions_q: Positions, positions_k: Positions | None = None
    ) -> Iterator[None]:
        """Set the positions of calls inside a `with` statement, which Flax does not pass.

        They are needed when the numbers of queries and keys differ. With Flax's cache it is that of
        the new token, `with fn.at_positions(layer.cache_index[None]):`. In cross-attention pass
        both.
        """
        before = self.positions
        self.positions = nnx.data((_variable(positions_q), _variable(positions_k)))
        try:
            yield
        finally:
            self.positions = nnx.data(before)

    def __call__(
        self, query: Array, key: Array, value: Array, **arguments: Any
    ) -> jax.Array:
        """Attention, with the arguments of `flax.nnx.dot_product_attention`, and `input_positions`,
        positions of the queries."""
        positions_q, positions_k = (
            None if x is None else x[...] for x in self.positions
        )
        context = Context(positions_q=positions_q, positions_k=positions_k)
        attend = attention_fn(
            self.encoding,
            nnx.as_pure(self.position),
            context,
            implementation=self.implementation,
        )
        return attend(query, key, value, **arguments)


def _variable(positions: Positions | None) -> nnx.Cache[jax.Array] | None:
    return None if positions is None else nnx.Cache(jnp.asarray(as_array(positions)))


def _init(encoding: PositionEncoding, rngs: nnx.Rngs) -> Params:
    """Draw parameters, as variables of NNX."""
    return jax.tree.map(nnx.Param, encoding.init(rngs.params()))
