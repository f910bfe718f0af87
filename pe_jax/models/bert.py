"""BERT in Flax Linen: the original post-LayerNorm encoder, its position encoding an argument.

Shapes: B batch, L length, D hidden size, H heads, d head size.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from pe_jax.attention import attention, dropout, padding_mask
from pe_jax.encodings import (
    Context,
    Params,
    PositionEncoding,
    Positions,
    Projections,
    embed,
    parameter_count,
)
from pe_jax.models.config import REMAT, BertConfig
from pe_jax.models.layers import BertModule, DenseParts, gelu, projection
from pe_jax.shapes import Array, Bool, Float, Int

Mask = Bool[Array, "B L"] | Bool[Array, "B 1 L L"]


class Surroundings(NamedTuple):
    """What all layers share beside their input.

    Attributes:
      positions: of the tokens.
      mask: `[B, 1, 1 or L, L]` or None.
      position_rng: for encodings that draw while training, else None.
    """

    positions: Positions
    mask: Array | None
    position_rng: jax.Array | None


class SelfAttention(BertModule):
    """Multi-head self-attention."""

    encoding: PositionEncoding

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        position_params: Params,
        around: Surroundings,
        key: jax.Array | None,
    ) -> Float[Array, "B L D"]:
        c = self.config
        dense = self.dense((3, c.num_heads, c.head_size), "qkv", kind=DenseParts)
        q, k, v = dense(x)  # [B, L, H, d] each
        self.sow("intermediates", "compared", (x, q, k, v))  # For inspection; costs nothing else.
        context = Context(
            around.positions,
            around.positions,
            x_q=x,
            x_k=x,
            projections=Projections(*(projection(dense.variables["params"], i) for i in (0, 1))),
            rng=around.position_rng,
        )
        out = attention(
            q,
            k,
            v,
            self.encoding,
            position_params,
            context,
            mask=around.mask,
            dropout_rate=c.attention_dropout_rate,
            dropout_key=key,
            form=c.attention,
            platform=c.platform or None,
        )
        return self.dense(c.hidden_size, "out", axes=2)(out)


class Block(BertModule):
    """One Transformer block: each sublayer is added to its input, then normalised.

    Attributes:
      encoding: what attention takes.
      at_input: what is embedded at the input of this block, see `PositionEncoding.layers`.
    """

    encoding: PositionEncoding
    at_input: PositionEncoding

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        position_params: Params,
        around: Surroundings,
        key: jax.Array | None,
    ) -> Float[Array, "B L D"]:
        c = self.config
        keys = _split(key, 3)
        x = embed(
            self.at_input, position_params, x, around.positions, rng=around.position_rng
        ).astype(x.dtype)
        y = SelfAttention(c, self.encoding, name="attention")(x, position_params, around, keys[0])
        x = self.layer_norm("attention_norm")(x + dropout(y, c.dropout_rate, keys[1]))
        y = self.dense(c.hidden_size, "down")(gelu(self.dense(c.intermediate_size, "up")(x)))
        return self.layer_norm("mlp_norm")(x + dropout(y, c.dropout_rate, keys[2]))


Keys = jax.Array | list[None]


def _split(key: jax.Array | None, count: int) -> Keys:
    """Dropout keys, an axis of `count`; without a key as many times None."""
    return [None] * count if key is None else jax.random.split(key, count)


class Bert(BertModule):
    """The encoder: token, segment and position embeddings, then the blocks.

    Attributes:
      config: the sizes, and the position encoding, whose parameters are under `"position"`, if it
        has any.
    """

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B L"],
        segments: Int[Array, "B L"] | None = None,
        mask: Mask | None = None,
        positions: Positions | None = None,
        *,
        deterministic: bool = True,
    ) -> Float[Array, "B L D"]:
        """Hidden states of the last layer.

        Args:
          tokens: vocabulary ids.
          segments: token types, 0 or 1; default all 0.
          mask: `[B, L]`, True at tokens and False at padding; or a whole attention mask
            `[B, 1, L, L]` such as `pe_jax.attention.segment_mask` gives for packed sequences.
          positions: see `pe_jax.encodings.Positions`; default range(L).
          deterministic: False switches dropout on and needs the rng "dropout".
        """
        c = self.config
        encoding = c.encoding()
        key = None if deterministic else self.make_rng("dropout")
        keys = _split(key, c.num_layers + 1)
        if mask is not None and mask.ndim == 2:
            mask = padding_mask(mask)
        if positions is None and encoding.axes == 1:
            positions = range(tokens.shape[1])
        position_rng = None if key is None else jax.random.fold_in(key, c.num_layers)
        around = Surroundings(positions, mask, position_rng)

        position_params = {}
        if parameter_count(encoding, c.num_layers):
            position_params = self.param("position", encoding.init, c.num_layers)
        x = self.embedding(c.vocab_size, "token")(tokens)
        segments = jnp.zeros_like(tokens) if segments is None else segments
        x = x + self.embedding(c.num_segments, "segment")(segments)
        x = embed(encoding, position_params, x, positions, tokens=tokens, rng=position_rng)
        x = self.layer_norm("embedding_norm")(x)
        x = dropout(x, c.dropout_rate, keys[-1])
        if self.is_initializing() or (c.remat == "none" and not c.scan_layers):
            for i in range(c.num_layers):
                layer = Block(c, encoding.layer(i), encoding.at_layer(i), name=f"layer_{i}")
                x = layer(x, encoding.layer_params(position_params, i), around, keys[i])
            return x
        layers = [self.variables["params"][f"layer_{i}"] for i in range(c.num_layers)]
        return _run_layers(c, encoding, layers, x, position_params, around, keys[:-1])


def _run_layers(
    c: BertConfig,
    encoding: PositionEncoding,
    layers: list[Params],
    x: Float[Array, "B L D"],
    position_params: Params,
    around: Surroundings,
    keys: Keys,
) -> Float[Array, "B L D"]:
    """The blocks as a pure function of their parameters, for jax.checkpoint and jax.lax.scan.

    A loop runs as many blocks at a time as differ in their encoding.
    """
    turn = max(1, len(encoding.layers))
    of_layers = [encoding.layer_params(position_params, i) for i in range(c.num_layers)]

    def run(x: Array, group: list) -> tuple[Array, None]:
        for i, (params, key, own) in enumerate(group):
            block = Block(c, encoding.layer(i), encoding.at_layer(i), parent=None)
            own = of_layers[i] if own is None else own
            x = block.apply({"params": params}, x, own, around, key)
        return x, None

    if c.remat != "none":
        # In a loop nothing could be merged with the forward pass: no need to prevent it.
        run = jax.checkpoint(run, policy=REMAT[c.remat], prevent_cse=not c.scan_layers)
    each = [
        (params, key, own if encoding.per_layer else None)
        for params, key, own in zip(layers, keys, of_layers)
    ]
    groups = [each[i : i + turn] for i in range(0, c.num_layers, turn)]
    if not c.scan_layers:
        for group in groups:
            x, _ = run(x, group)
        return x
    return jax.lax.scan(run, x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *groups))[0]


def frequencies(config: BertConfig, params: Params) -> Params:
    """A tree like `params`, those of a model with heads: True for learned frequencies."""
    marks = jax.tree.map(lambda _: False, params)
    if "position" in params["bert"]:
        own = config.encoding().frequency_mask(params["bert"]["position"])
        marks = {**marks, "bert": {**marks["bert"], "position": own}}
    return marks
