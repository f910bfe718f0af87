"""BERT in Flax Linen, and the encoders that differ from it in settings.

The position encoding is an argument. `pe_jax.configs.model.BertConfig` has the settings.

Shapes: B batch, L length, D hidden size, H heads, d head size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from pe_jax.attention import attention, dropout, padding_mask
from pe_jax.attention.masks import document_positions
from pe_jax.attention.product import is_product_of_layers
from pe_jax.encodings import (
    Context,
    Params,
    PositionEncoding,
    Positions,
    embed,
    parameter_count,
)
from pe_jax.models.layers import (
    BertModule,
    DenseParts,
    activate,
    query_key_maps,
)
from pe_jax.shapes import Array, Bool, Float, Int

# What a layer keeps for its backward pass: a policy of jax.checkpoint, or all.
REMAT: dict[str, Callable[..., bool] | None] = {
    "none": None,
    "dots": is_product_of_layers,
    "full": jax.checkpoint_policies.nothing_saveable,
}

Mask = Bool[Array, "B L"] | Bool[Array, "B 1 L L"]


class LayerOutputs(NamedTuple):
    """Outputs of all N layers, in the dtype of the model.

    Attributes:
      hidden: input of the first layer, then the output of each.
      attention: output of each layer's attention, before it is added to its input.
    """

    hidden: Float[jax.Array, "N+1 B L D"]
    attention: Float[jax.Array, "N B L D"]


class SelfAttention(BertModule):
    """Multi-head self-attention; fewer heads of keys and values serve several of queries each."""

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
        q, k, v = self.projected(x)
        self.sow("intermediates", "compared", (x, q, k, v))  # For inspection; costs nothing else.
        maps = query_key_maps(self.variables["params"])
        out = attention(
            q,
            k,
            v,
            self.encoding.in_attention,
            position_params,
            context._replace(x_q=x, x_k=x, projections=maps),
            mask=mask,
            dropout_rate=0.0 if rng is None else c.attention_dropout_rate,
            dropout_rng=rng,
            implementation=c.attention,
            platform=c.platform or None,
        )
        return self.dense(c.hidden_size, "out", axes=2, has_bias=c.attention_bias)(out)

    @nn.nowrap
    def projected(self, x: Float[Array, "B L D"]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries `[B, L, H, d]`, keys and values `[B, L, G, d]`."""
        c = self.config
        dense = functools.partial(self.dense, has_bias=c.attention_bias)
        if c.key_heads == c.num_heads:
            return dense((3, c.num_heads, c.head_size), "qkv", kind=DenseParts)(x)
        q = dense((c.num_heads, c.head_size), "query")(x)
        return q, *dense((2, c.key_heads, c.head_size), "key_value", kind=DenseParts)(x)


class Block(BertModule):
    """One Transformer block: attention and an MLP, each added to its input.

    With `pre_norm` their inputs are normalised, else the sums.

    Attributes:
      encoding: acts in attention.
      at_input: acts at the input of this block, see `PositionEncoding.at_layer`.
      has_attention_norm: False leaves out the normalisation that belongs to attention.
    """

    encoding: PositionEncoding
    at_input: PositionEncoding
    has_attention_norm: bool = True

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
        attention_norm = self.norm("attention_norm") if self.has_attention_norm else _same
        mlp_norm = self.norm("mlp_norm")
        before, after = (attention_norm, _same) if c.pre_norm else (_same, attention_norm)
        attended = attend(before(x), position_params, context, mask, attention_rng)
        x = after(x + dropout(attended, c.dropout_rate, first_rng))
        before, after = (mlp_norm, _same) if c.pre_norm else (_same, mlp_norm)
        return after(x + dropout(self.mlp(before(x)), c.dropout_rate, second_rng)), attended

    @nn.nowrap
    def mlp(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        c = self.config
        if c.gated_mlp:
            up = self.dense((2, c.intermediate_size), "up", kind=DenseParts, has_bias=c.up_bias)
            gate, y = up(x)
            y = activate(gate, c.activation) * y
        else:
            y = self.dense(c.intermediate_size, "up", has_bias=c.up_bias)(x)
            y = activate(y, c.activation)
        return self.dense(c.hidden_size, "down", has_bias=c.down_bias)(y)


def _same(x: Array) -> Array:
    return x


def _check_rows(tokens: Array, mask: Mask | None, document_ids: Array | None) -> None:
    dtype = jnp.bool_ if mask is None else getattr(mask, "dtype", type(mask).__name__)
    if dtype != jnp.bool_:
        raise ValueError(
            f"mask must be bool, True at tokens and False at padding, got {dtype}. For a mask of 0 "
            "and 1 pass mask == 1; for the numbers of packed documents pass document_ids."
        )
    if document_ids is not None and document_ids.shape != tokens.shape:
        raise ValueError(
            f"document_ids must be [B, L] as the tokens, here {list(tokens.shape)}, got "
            f"{list(document_ids.shape)}. For other masks pass mask=, bool [B, 1, L, L]."
        )


def _split(rng: jax.Array | None, count: int) -> jax.Array | list[None]:
    """`jax.random.split`; without an rng as many times None."""
    return [None] * count if rng is None else jax.random.split(rng, count)


class Bert(BertModule):
    """The encoder: embeddings of tokens, token types and positions, then the blocks.

    Attributes:
      config: the sizes, and the position encoding, whose parameters are under `"position"`, if it
        has any.
    """

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"] | None = None,
        mask: Mask | None = None,
        positions: Positions | None = None,
        *,
        document_ids: Int[Array, "B L"] | None = None,
        deterministic: bool = True,
    ) -> Float[jax.Array, "B L D"]:
        """Hidden states of the last layer.

        Where the collection "intermediates" is mutable, it holds the outputs of all layers:
        `pe_jax.models.layer_outputs` reads them.

        Derivatives exist as in `pe_jax.attention.attention`: forward mode (`jax.jvp`) needs
        `attention="naive"`.

        Args:
          tokens: vocabulary ids.
          token_type_ids: 0 or 1; default all 0, and so for a model of a single type. A
            model without their embedding ignores them.
          mask: bool `[B, L]`, True at tokens and False at padding; or a whole attention mask, bool
            `[B, 1, L, L]`.
          positions: see `pe_jax.encodings.Positions`; default range(L), or from 0 in each document.
            With `config.positions_from_mask`, as in RoBERTa, those that are added to the input
            count the True of a `[B, L]` mask.
          document_ids: of packed rows, the number of each token's document, from 1, and 0 at
            padding (`Context.document_ids`).
          deterministic: False switches dropout on and needs the rng "dropout".

        Raises:
          ValueError: for a mask that is not bool, or documents that are not those of the tokens.
        """
        c = self.config
        _check_rows(tokens, mask, document_ids)
        encoding = c.encoding()
        rng = None if deterministic else self.make_rng("dropout")
        *layer_rngs, embedding_rng = _split(rng, c.num_layers + 1)
        valid = None
        if mask is not None and mask.ndim == 2:
            valid, mask = mask, padding_mask(mask)
        input_positions = positions
        if positions is None and encoding.axes == 1:
            positions = range(tokens.shape[1])
            if document_ids is not None:
                positions = document_positions(document_ids)
            input_positions = positions
            if valid is not None and document_ids is None and c.positions_from_mask:
                input_positions = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
        position_rng = None if rng is None else jax.random.fold_in(rng, c.num_layers)
        context = Context(positions, positions, rng=position_rng, document_ids=document_ids)
        position_params = {}
        if parameter_count(encoding, c.num_layers):
            position_params = self.param("position", encoding.init, c.num_layers)

        x = self.embedding(c.vocab_size + c.unused_rows, "token")(tokens)
        if c.num_token_types:
            absent = token_type_ids is None or c.num_token_types == 1
            token_type_ids = jnp.zeros_like(tokens) if absent else token_type_ids
            # Flax draws parameters by their path: another name would change the initial values.
            x = x + self.embedding(c.num_token_types, "segment")(token_type_ids)
        x = embed(encoding, position_params, x, input_positions, tokens=tokens, rng=position_rng)
        x = self.norm("embedding_norm")(x) if c.embedding_norm else x.astype(c.dtype)
        x = dropout(x, c.dropout_rate, embedding_rng)
        x, outputs = self.run_layers(x, position_params, context, mask, layer_rngs)
        x = self.norm("final_norm")(x) if c.final_norm else x
        if outputs is not None:
            if c.final_norm:
                outputs = outputs._replace(hidden=outputs.hidden.at[-1].set(x))
            self.sow("intermediates", "outputs", outputs)
        return x

    @nn.nowrap
    def run_layers(
        self,
        x: Float[Array, "B L D"],
        position_params: Params,
        context: Context,
        mask: Bool[Array, "B 1 #L L"] | None,
        rngs: Sequence[jax.Array | None],
    ) -> tuple[Float[jax.Array, "B L D"], LayerOutputs | None]:
        """Return the output of the last block, and of all where "intermediates" is mutable.

        Args:
          rngs: of the dropout of each layer.
        """
        c = self.config
        encoding = c.encoding()
        every_layer = self.is_mutable_collection("intermediates")
        params_by_layer = [encoding.layer_params(position_params, i) for i in range(c.num_layers)]
        if self.is_initializing() or (c.remat == "none" and not c.scan_layers):
            hidden: list[Array] = [x]
            attention: list[Array] = []
            for i in range(c.num_layers):
                block = self.block(i, name=f"layer_{i}")
                x, attended = block(x, params_by_layer[i], context, mask, rngs[i])
                hidden.append(x)
                attention.append(attended)
            return x, LayerOutputs(jnp.stack(hidden), jnp.stack(attention)) if every_layer else None

        # The blocks as a pure function, as many at a time as differ in their encoding.
        turn = max(1, len(encoding.layers))

        def run(start: int, x: Array, group: list) -> tuple[Array, tuple[Array, Array] | None]:
            hidden: list[Array] = []
            attention: list[Array] = []
            for i, (params, layer_params, layer_rng) in enumerate(group, start):
                block = self.block(i, parent=None)
                # What layers share is no input of the loop: its gradient is summed over them.
                layer_params = layer_params if encoding.per_layer else params_by_layer[i]
                variables = {"params": params}
                x, attended = block.apply(variables, x, layer_params, context, mask, layer_rng)
                hidden.append(x)
                attention.append(attended)
            return x, (jnp.stack(hidden), jnp.stack(attention)) if every_layer else None

        if c.remat != "none":
            # In a loop nothing could be merged with the forward pass: no need to prevent it.
            run = jax.checkpoint(
                run, policy=REMAT[c.remat], prevent_cse=not c.scan_layers, static_argnums=0
            )
        layers = [
            (self.variables["params"][f"layer_{i}"], params if encoding.per_layer else {}, rng)
            for i, (params, rng) in enumerate(zip(params_by_layer, rngs, strict=True))
        ]
        # Layers before the loop: those left over, and a first one with other parameters.
        lead = c.num_layers % turn or (0 if c.first_norm else turn)
        groups = [layers[i : i + turn] for i in range(lead, c.num_layers, turn)]
        first, groups_outputs = x[None], []
        if lead:
            x, group_outputs = run(0, x, layers[:lead])
            groups_outputs.append(group_outputs)
        if c.scan_layers and groups:
            run_group = functools.partial(run, lead)
            x, stacked = jax.lax.scan(run_group, x, jax.tree.map(lambda *x: jnp.stack(x), *groups))
            groups_outputs.append(jax.tree.map(lambda leaf: leaf.reshape(-1, *x.shape), stacked))
        else:
            for group in groups:
                x, group_outputs = run(lead, x, group)
                groups_outputs.append(group_outputs)
        if not every_layer:
            return x, None
        hidden, attention = (list(parts) for parts in zip(*groups_outputs, strict=True))
        return x, LayerOutputs(jnp.concatenate([first, *hidden]), jnp.concatenate(attention))

    @nn.nowrap
    def block(self, index: int, **arguments: Any) -> Block:
        """The block of a layer; `arguments` are those of every Flax module."""
        c = self.config
        encoding = c.encoding()
        return Block(
            c,
            encoding.layer(index),
            encoding.at_layer(index),
            has_attention_norm=index > 0 or c.first_norm,
            **arguments,
        )
