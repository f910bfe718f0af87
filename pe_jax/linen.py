"""Attention with a position encoding for Flax Linen; `pe_jax.nnx` has the same for NNX.

Shapes: B batch, Lq and Lk lengths, D hidden size, H heads, d head size.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.attention import Cache, init_cache, multi_head
from pe_jax.common.errors import extra
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings import (
    Context,
    Params,
    PositionEncoding,
    Positions,
    embed,
    none,
    parameter_count,
)
from pe_jax.encodings.encoding import checked_encoding

with extra("flax"):
    import flax.linen as nn
    from flax import serialization
    from flax.linen.linear import default_kernel_init
    from flax.typing import Dtype, Initializer


def _cache_state(cache: Cache) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(cache)]
    return {name: serialization.to_state_dict(getattr(cache, name)) for name in fields}


def _restored_cache(cache: Cache, state: dict[str, Any]) -> Cache:
    fields = {
        name: serialization.from_state_dict(getattr(cache, name), value, name)
        for name, value in state.items()
    }
    arrays = jax.tree.map(jnp.asarray, fields)  # They are NumPy's when restored.
    return cache.replace(**arrays)


# For flax.serialization.to_bytes(variables), whose collection "cache" has them. `override`: the
# module may be reloaded.
serialization.register_serialization_state(
    Cache, _cache_state, _restored_cache, override=True
)


class MultiHeadAttention(nn.Module):
    """Multi-head attention with a position encoding.

    Parameters have the names of `flax.linen.MultiHeadDotProductAttention`. Those of the encoding,
    if any, are under `position`, in float32. Parts of an encoding that act at the input of a model,
    such as position vectors, belong to `PositionEmbedding`.

    Attributes:
      encoding: a position encoding; None for no position information. A decoder's is joined with
        `encodings.causal()`.
      qkv_features: H·d; default the size of the input.
      out_features: default the size of the input.
      dropout_rate: of the attention weights; needs the rng "dropout".
      deterministic: True switches dropout off; may be given in the call.
      dtype: of the computation; default that of inputs and parameters. The softmax is float32.
      param_dtype: of the projections.
      implementation: as `pe_jax.attention.attention` takes it.
      num_kv_heads: G, heads of keys and values; default H. Each serves H / G heads of queries.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from pe_jax import encodings
      >>> from pe_jax.linen import MultiHeadAttention
      >>> encoding = encodings.t5(num_heads=2) + encodings.causal()
      >>> layer = MultiHeadAttention(num_heads=2, encoding=encoding)
      >>> variables = layer.init(jax.random.key(0), jnp.ones((1, 6, 8)))
      >>> layer.apply(variables, jnp.ones((1, 6, 8))).shape
      (1, 6, 8)
    """

    num_heads: int
    encoding: PositionEncoding | None = None
    qkv_features: int | None = None
    out_features: int | None = None
    dropout_rate: float = 0.0
    deterministic: bool | None = None
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    kernel_init: Initializer = default_kernel_init
    bias_init: Initializer = nn.initializers.zeros_init()
    use_bias: bool = True
    implementation: str = "auto"
    num_kv_heads: int | None = None

    @nn.compact
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
        position: Params | None = None,
        position_rng: jax.Array | None = None,
        deterministic: bool | None = None,
        decode: bool = False,
    ) -> Float[jax.Array, "B Lq O"]:
        """Self-attention, or attention to `inputs_k`; values default to what keys are made of.

        With `decode`, keys and values of all calls are kept in the collection "cache", which has to
        be mutable, and each token attends to itself and to those before it. `init` with `decode`
        makes an empty cache, for as many tokens as its input has. Then any number of new tokens may
        come at a time. The encoding is joined with `encodings.causal()`, unless it has positions of
        several axes: then pass a causal mask where there is no cache. See
        `pe_jax.attention.cached_attention`.

        Args:
          mask: True where a query may attend to a key; while decoding, over the whole cache.
          positions_q, positions_k: see `encodings.Positions`; default ranges from 0, or while
            decoding the index in the cache. Different numbers of queries and keys have no default.
          document_ids: of packed rows, the number of each token's document, 0 at padding: attention
            stays within each, and positions start again in it. For self-attention.
          position: parameters of the encoding, to share them between layers; default its own.
          position_rng: for encodings that draw while training, the same in every layer.

        Raises:
          ValueError: see `attention` and `cached_attention`; for `decode` without a cache, or with
            an encoding that is not causal.
        """
        width = inputs_q.shape[-1]
        features = self.qkv_features or width
        size, kv_heads = multi_head.head_sizes(
            features, self.num_heads, self.num_kv_heads
        )
        encoding = none() if self.encoding is None else self.encoding
        acting = multi_head.in_attention(encoding)
        make_cache = functools.partial(
            init_cache,
            encoding,
            *inputs_q.shape[:2],
            num_kv_heads=kv_heads,
            head_size=size,
            hidden_size=width,
            dtype=self.dtype or inputs_q.dtype,
        )
        holder = self._cache(make_cache) if decode else None
        dropout_rng = self._dropout_rng(deterministic)
        projections = (
            self._dense((self.num_heads, size), "query"),
            self._dense((kv_heads, size), "key"),
            self._dense((kv_heads, size), "value"),
        )
        out, cache = multi_head.attend(
            (inputs_q, inputs_k, inputs_v),
            projections,
            acting,
            _position(self, acting) if position is None else position,
            Context(
                positions_q=positions_q,
                positions_k=positions_k,
                position_rng=position_rng,
                document_ids=document_ids,
            ),
            mask=mask,
            cache=None if holder is None else holder.value,
            dropout_rate=0.0 if dropout_rng is None else self.dropout_rate,
            dropout_rng=dropout_rng,
            implementation=self.implementation,
        )
        if holder is not None and cache is not None:
            holder.value = cache
        return self._dense(self.out_features or width, "out", axis=(-2, -1))(out)

    def _dropout_rng(self, deterministic: bool | None) -> jax.Array | None:
        """The rng of dropout; None without dropout."""
        if not self.dropout_rate:
            return None
        if nn.merge_param("deterministic", self.deterministic, deterministic):
            return None
        return self.make_rng("dropout")

    def _cache(self, make: Callable[[], Cache]) -> nn.Variable[Cache] | None:
        """The variable with the cache; None during initialisation."""
        if not self.is_initializing() and not self.has_variable("cache", "tokens"):
            raise ValueError(
                "There is no cache for decoding. Create it with init(rngs, x, decode=True), where "
                "x has the full length, and pass its collection 'cache' as mutable."
            )
        holder = self.variable("cache", "tokens", make)
        return None if self.is_initializing() else holder

    def _dense(
        self, features: int | tuple[int, int], name: str, axis: int | tuple = -1
    ):
        return nn.DenseGeneral(
            features,
            axis=axis,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            use_bias=self.use_bias,
            name=name,
        )


class PositionEmbedding(nn.Module):
    """The parts of an encoding that act at the input of a model, such as adding position vectors.

    Parameters, if any, are under `position`.
    """

    encoding: PositionEncoding

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        positions: Positions | None = None,
        *,
        tokens: Int[Array, "B L"] | None = None,
        position: Params | None = None,
        position_rng: jax.Array | None = None,
        decode: bool = False,
    ) -> Float[jax.Array, "B L D"]:
        """Apply the encoding; arguments as in `encodings.embed` and `MultiHeadAttention`.

        With `decode`, positions default to the number of tokens before in each row, which is kept
        in the collection "cache" as `index`.

        Raises:
          ValueError: without positions and `decode`, while the collection "cache" can be changed.
        """
        encoding = checked_encoding(self.encoding).at_input
        params = _position(self, encoding) if position is None else position
        if encoding.parts and positions is None:
            positions = self._positions(x.shape[0], x.shape[1], decode)
        context = Context(
            positions_q=positions, tokens=tokens, position_rng=position_rng
        )
        return embed(x, encoding, params, context)

    def _positions(self, rows: int, length: int, decode: bool) -> Positions | None:
        """Positions of the next tokens while decoding; None for the default."""
        if not decode:
            if self.is_mutable_collection("cache") and not self.is_initializing():
                raise ValueError(
                    "The collection 'cache' is mutable, so this call is a decoding step, whose "
                    "positions do not start from 0. Pass positions or decode=True."
                )
            return None
        index = self.variable("cache", "index", jnp.zeros, rows, jnp.int32)
        if self.is_initializing():
            return None
        index.value += length
        return index.value[:, None] - length + jnp.arange(length)


def _position(module: nn.Module, encoding: PositionEncoding) -> Params:
    """The module's own parameters of an encoding; no entry for one that learns nothing."""
    return module.param("position", encoding.init) if parameter_count(encoding) else {}
