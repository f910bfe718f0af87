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
    embed,
    parameter_count,
)
from pe_jax.models.config import REMAT, BertConfig
from pe_jax.models.layers import BertModule, DenseParts, gelu, projection
from pe_jax.shapes import Array, Bool, Float, Int

Mask = Bool[Array, "B L"] | Bool[Array, "B 1 L L"]


class LayerOutputs(NamedTuple):
    """Outputs of all N layers, in the dtype of the model.

    Attributes:
      hidden: input of the first layer, then the output of each.
      attention: output of each layer's attention, before it is added to its input.
    """

    hidden: Float[Array, "N+1 B L D"]
    attention: Float[Array, "N B L D"]


class SelfAttention(BertModule):
    """Multi-head self-attention."""

    encoding: PositionEncoding

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        position_params: Params,
        context: Context,
        mask: Bool[Array, "B 1 #L L"] | None,
        rng: jax.Array | None,
    ) -> Float[Array, "B L D"]:
        c = self.config
        qkv = self.dense((3, c.num_heads, c.head_size), "qkv", kind=DenseParts)
        q, k, v = qkv(x)  # [B, L, H, d] each
        self.sow("intermediates", "compared", (x, q, k, v))  # For inspection; costs nothing else.
        to_queries, to_keys = (projection(qkv.variables["params"], i) for i in (0, 1))
        out = attention(
            q,
            k,
            v,
            self.encoding.in_attention,
            position_params,
            context._replace(x_q=x, x_k=x, projections=(to_queries, to_keys)),
            mask=mask,
            dropout_rate=c.attention_dropout_rate,
            dropout_rng=rng,
            form=c.attention,
            platform=c.platform or None,
        )
        return self.dense(c.hidden_size, "out", axes=2)(out)


class Block(BertModule):
    """One Transformer block: each sublayer is added to its input, then normalised.

    Attributes:
      encoding: acts in attention.
      at_input: acts at the input of this block, see `PositionEncoding.at_layer`.
    """

    encoding: PositionEncoding
    at_input: PositionEncoding

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        position_params: Params,
        context: Context,
        mask: Bool[Array, "B 1 #L L"] | None,
        rng: jax.Array | None,
    ) -> tuple[Float[Array, "B L D"], Float[Array, "B L D"]]:
        """The hidden states after this block, and the output of its attention.

        Args:
          context: the positions, and the rng of encodings that draw while training.
          rng: of dropout; None is no dropout.
        """
        c = self.config
        attention_rng, first_rng, second_rng = _split(rng, 3)
        attend = SelfAttention(c, self.encoding, name="attention")
        x = embed(self.at_input, position_params, x, context.positions_q, rng=context.rng)
        attended = attend(x, position_params, context, mask, attention_rng)
        x = self.layer_norm("attention_norm")(x + dropout(attended, c.dropout_rate, first_rng))
        y = self.dense(c.hidden_size, "down")(gelu(self.dense(c.intermediate_size, "up")(x)))
        return self.layer_norm("mlp_norm")(x + dropout(y, c.dropout_rate, second_rng)), attended


def _split(rng: jax.Array | None, count: int) -> jax.Array | list[None]:
    """`jax.random.split`; without an rng as many times None."""
    return [None] * count if rng is None else jax.random.split(rng, count)


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

        Where the collection "intermediates" is mutable, it holds the outputs of all layers:
        `pe_jax.models.layer_outputs` reads them.

        Derivatives exist as in `pe_jax.attention.attention`: forward mode (`jax.jvp`) needs
        `attention="naive"`.

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
        rng = None if deterministic else self.make_rng("dropout")
        *layer_rngs, embedding_rng = _split(rng, c.num_layers + 1)
        if mask is not None and mask.ndim == 2:
            mask = padding_mask(mask)
        if positions is None and encoding.axes == 1:
            positions = range(tokens.shape[1])
        position_rng = None if rng is None else jax.random.fold_in(rng, c.num_layers)
        context = Context(positions, positions, rng=position_rng)
        position_params = {}
        if parameter_count(encoding, c.num_layers):
            position_params = self.param("position", encoding.init, c.num_layers)

        x = self.embedding(c.vocab_size, "token")(tokens)
        segments = jnp.zeros_like(tokens) if segments is None else segments
        x = x + self.embedding(c.num_segments, "segment")(segments)
        x = embed(encoding, position_params, x, positions, tokens=tokens, rng=position_rng)
        x = self.layer_norm("embedding_norm")(x)
        x = dropout(x, c.dropout_rate, embedding_rng)
        every_layer = self.is_mutable_collection("intermediates")
        of_layers = [encoding.layer_params(position_params, i) for i in range(c.num_layers)]
        if self.is_initializing() or (c.remat == "none" and not c.scan_layers):
            hidden: list[Array] = [x]
            attention: list[Array] = []
            for i in range(c.num_layers):
                block = Block(c, encoding.layer(i), encoding.at_layer(i), name=f"layer_{i}")
                x, attended = block(x, of_layers[i], context, mask, layer_rngs[i])
                hidden.append(x)
                attention.append(attended)
            if every_layer:
                outputs = LayerOutputs(jnp.stack(hidden), jnp.stack(attention))
                self.sow("intermediates", "outputs", outputs)
            return x

        # The blocks as a pure function, as many at a time as differ in their encoding.
        turn = max(1, len(encoding.layers))

        def run(x: Array, group: list) -> tuple[Array, tuple[Array, Array] | None]:
            hidden: list[Array] = []
            attention: list[Array] = []
            for i, (params, layer_params, layer_rng) in enumerate(group):
                block = Block(c, encoding.layer(i), encoding.at_layer(i), parent=None)
                # What layers share is no input of the loop: its gradient is summed over them.
                layer_params = layer_params if encoding.per_layer else of_layers[i]
                variables = {"params": params}
                x, attended = block.apply(variables, x, layer_params, context, mask, layer_rng)
                hidden.append(x)
                attention.append(attended)
            return x, (jnp.stack(hidden), jnp.stack(attention)) if every_layer else None

        if c.remat != "none":
            # In a loop nothing could be merged with the forward pass: no need to prevent it.
            run = jax.checkpoint(run, policy=REMAT[c.remat], prevent_cse=not c.scan_layers)
        layers = [
            (self.variables["params"][f"layer_{i}"], of_layers[i] if encoding.per_layer else {}, r)
            for i, r in enumerate(layer_rngs)
        ]
        groups = [layers[i : i + turn] for i in range(0, c.num_layers, turn)]
        first, groups_outputs = x[None], []
        if c.scan_layers:
            x, stacked = jax.lax.scan(run, x, jax.tree.map(lambda *x: jnp.stack(x), *groups))
            groups_outputs = [jax.tree.map(lambda leaf: leaf.reshape(-1, *x.shape), stacked)]
        else:
            for group in groups:
                x, group_outputs = run(x, group)
                groups_outputs.append(group_outputs)
        if every_layer:
            hidden, attention = (list(parts) for parts in zip(*groups_outputs, strict=True))
            outputs = LayerOutputs(jnp.concatenate([first, *hidden]), jnp.concatenate(attention))
            self.sow("intermediates", "outputs", outputs)
        return x


def frequencies(config: BertConfig, params: Params) -> Params:
    """A tree like `params`, those of a model with heads: True for learned frequencies."""
    marks = jax.tree.map(lambda _: False, params)
    if "position" in params["bert"]:
        own = config.encoding().frequency_mask(params["bert"]["position"])
        marks = {**marks, "bert": {**marks["bert"], "position": own}}
    return marks
