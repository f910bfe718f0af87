"""BERT in Flax Linen, and the encoders that differ from it in settings (`BertConfig`).

Shapes: B batch, L length, D hidden size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from pe_jax.attention import dropout, padding_mask
from pe_jax.attention.masks import combine_masks, document_positions
from pe_jax.common.product import is_product_of_layers
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings import (
    Context,
    Params,
    PositionEncoding,
    Positions,
    embed,
    parameter_count,
)
from pe_jax.encodings.positions import default_positions
from pe_jax.models.layers import BertModule, Block, check_ids, split_rng

# What a layer keeps for its backward pass: a policy of jax.checkpoint, or all.
REMAT: dict[str, Callable[..., bool] | None] = {
    "none": None,
    "dots": is_product_of_layers,
    "full": jax.checkpoint_policies.nothing_saveable,
}


class LayerOutputs(Record, pytree=True):
    """Outputs of all N layers, in the dtype of the model.

    Attributes:
      hidden: input of the first layer, then the output of each.
      attention: output of each layer's attention, before it is added to its input.
    """

    hidden: Float[jax.Array, "N+1 B L D"]
    attention: Float[jax.Array, "N B L D"]


def _check_rows(
    tokens: Array,
    mask: Array | None,
    pair_mask: Array | None,
    document_ids: Array | None,
) -> None:
    """Raise a ValueError for masks that are not bool, or arrays of other rows than the tokens."""
    for name, array in (("mask", mask), ("pair_mask", pair_mask)):
        if array is None:
            continue
        dtype = getattr(array, "dtype", type(array).__name__)
        if dtype != jnp.bool_:
            raise ValueError(
                f"{name} must be bool, got {dtype}. For a mask of 0 and 1 pass {name} == 1; for "
                "the numbers of packed documents pass document_ids."
            )
    for name, array in (("mask", mask), ("document_ids", document_ids)):
        if array is not None and array.shape != tokens.shape:
            raise ValueError(
                f"{name} must be [B, L] as the tokens, here {list(tokens.shape)}, got "
                f"{list(array.shape)}. For pairs of tokens pass pair_mask, bool [B, 1, L, L]."
            )


def _rescaled(
    x: Float[Array, "B L D"],
    is_mask: Bool[Array, "B L"],
    mask: Bool[Array, "B L"] | None,
    document_ids: Int[Array, "B L"] | None,
) -> Float[Array, "B L D"]:
    """Return embeddings for `rescaled_token`: zero at it, larger elsewhere the more of it there is.

    ESM-2 was trained with 12 % mask tokens (Lin et al. 2022; its code calls this token dropout).
    """
    counted = jnp.ones(is_mask.shape, bool) if mask is None else mask
    if document_ids is None:
        masked = (is_mask & counted).sum(1, keepdims=True)
        total = counted.sum(1, keepdims=True)
    else:
        same = document_ids[:, :, None] == document_ids[:, None, :]
        masked = (same & (is_mask & counted)[:, None]).sum(2)
        total = (same & counted[:, None]).sum(2)
    share = masked / jnp.maximum(total, 1)
    # Rows of masks alone have no other token to rescale.
    factor = (1 - 0.15 * 0.8) / jnp.maximum(1 - share, 1e-6)
    rescaled = x * factor[:, :, None].astype(x.dtype)
    return jnp.where(is_mask[:, :, None], 0, rescaled)


def _stack(by_layer: list[tuple[Array, Array]]) -> LayerOutputs:
    hidden, attention = zip(*by_layer, strict=True)
    return LayerOutputs(hidden=jnp.stack(hidden), attention=jnp.stack(attention))


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
        mask: Bool[Array, "B L"] | None = None,
        positions: Positions | None = None,
        *,
        document_ids: Int[Array, "B L"] | None = None,
        pair_mask: Bool[Array, "B 1 L L"] | None = None,
        deterministic: bool = True,
    ) -> Float[jax.Array, "B L D"]:
        """Hidden states of the last layer.

        Where the collection "intermediates" is mutable, it holds the outputs of all layers:
        `pe_jax.models.layer_outputs` reads them. Forward mode (`jax.jvp`) needs
        `implementation="naive"`.

        Args:
          tokens: vocabulary ids. Under `jax.jit` their values cannot be checked: ids past the rows
            of the embedding give NaN, and negative ones count from its end.
          token_type_ids: 0 or 1, checked as the tokens are; default all 0, and so for a model of a
            single type. A model without their embedding ignores them.
          mask: True at tokens and False at padding.
          positions: see `pe_jax.encodings.Positions`; default range(L), or from 0 in each document.
            With `config.positions_from_mask`, as in RoBERTa, those that are added to the input
            count the True of `mask`.
          document_ids: of packed rows, the number of each token's document, from 1, and 0 at
            padding (`Context.document_ids`).
          pair_mask: True where a query (axis 2) may attend to a key (axis 3), beside `mask`.
          deterministic: False switches dropout on and needs the rng "dropout".

        Raises:
          ValueError: for masks that are not bool, a mask or document ids of another shape than the
            tokens, or, outside of `jax.jit`, ids that are no rows of the embeddings.
        """
        c = self.config
        _check_rows(tokens, mask, pair_mask, document_ids)
        encoding = c.encoding()
        rng = None if deterministic else self.make_rng("dropout")
        *layer_rngs, embedding_rng = split_rng(rng, c.num_layers + 1)
        attention_mask = pair_mask
        if mask is not None:
            attention_mask = combine_masks(pair_mask, padding_mask(mask))
        input_positions = positions
        if positions is None and encoding.axes == 1:
            positions, input_positions = self._default_positions(
                encoding, tokens, mask, document_ids
            )
        position_rng = None
        if rng is not None:
            position_rng = jax.random.fold_in(rng, c.num_layers)
        context = Context(
            positions_q=positions,
            positions_k=positions,
            position_rng=position_rng,
            document_ids=document_ids,
        )
        position_params = {}
        if parameter_count(encoding, c.num_layers):
            position_params = self.param("position", encoding.init, c.num_layers)

        rows = c.vocab_size + c.unused_rows
        check_ids("tokens", tokens, rows)
        x = self.embedding(rows, "token")(tokens)
        if c.rescaled_token is not None:
            x = _rescaled(x, tokens == c.rescaled_token, mask, document_ids)
        if c.num_token_types:
            if token_type_ids is None or c.num_token_types == 1:
                token_type_ids = jnp.zeros_like(tokens)
            check_ids("token_type_ids", token_type_ids, c.num_token_types)
            x = x + self.embedding(c.num_token_types, "token_type")(token_type_ids)
        input_context = Context(
            positions_q=input_positions, tokens=tokens, position_rng=position_rng
        )
        x = embed(x, encoding, position_params, input_context)
        x = self.norm("embedding_norm")(x) if c.embedding_norm else x.astype(c.dtype)
        if c.conv_kernel and mask is not None:  # It would mix padding with the tokens.
            x = jnp.where(mask[:, :, None], x, 0)
        x = dropout(x, c.dropout_rate, embedding_rng)
        if c.embedding_width != c.hidden_size:
            x = self.dense(c.hidden_size, "embedding_projection")(x)
        x, outputs = self._run_layers(
            encoding, x, position_params, context, attention_mask, layer_rngs
        )
        if c.final_norm:
            x = self.norm("final_norm")(x)
            if outputs is not None:
                outputs = outputs.replace(hidden=outputs.hidden.at[-1].set(x))
        if outputs is not None:
            self.sow("intermediates", "outputs", outputs)
        return x

    @nn.nowrap
    def _default_positions(
        self,
        encoding: PositionEncoding,
        tokens: Array,
        mask: Bool[Array, "B L"] | None,
        document_ids: Array | None,
    ) -> tuple[Positions, Positions]:
        """Return the positions in attention, and those that are added to the input."""
        if document_ids is not None:
            by_document = document_positions(document_ids)
            return by_document, by_document
        positions = default_positions(tokens.shape[1], encoding.max_length)
        if mask is None or not self.config.positions_from_mask:
            return positions, positions
        return positions, jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)

    @nn.nowrap
    def _run_layers(
        self,
        encoding: PositionEncoding,
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
        embeddings = x
        every_layer = self.is_mutable_collection("intermediates")
        params = [
            encoding.layer_params(position_params, i) for i in range(c.num_layers)
        ]
        if self.is_initializing() or (c.remat == "none" and not c.scan_layers):
            by_layer = []
            for i in range(c.num_layers):
                if i == 0 or not c.shared_layers:
                    block = self._block(encoding, i, name=f"layer_{i}")
                x, attended = block(x, params[i], context, mask, rngs[i])
                by_layer.append((x, attended))
            groups = [_stack(by_layer)] if every_layer else []
        else:
            x, groups = self._run_groups(encoding, x, params, context, mask, rngs)
        if not every_layer:
            return x, None
        hidden = [embeddings[None], *(group.hidden for group in groups)]
        attention = [group.attention for group in groups]
        return x, LayerOutputs(
            hidden=jnp.concatenate(hidden), attention=jnp.concatenate(attention)
        )

    @nn.nowrap
    def _run_groups(
        self,
        encoding: PositionEncoding,
        x: Float[Array, "B L D"],
        position_params: Sequence[Params],
        context: Context,
        mask: Bool[Array, "B 1 #L L"] | None,
        rngs: Sequence[jax.Array | None],
    ) -> tuple[Float[jax.Array, "B L D"], list[LayerOutputs]]:
        """Run the blocks as a pure function, as many at a time as differ in their encoding."""
        c = self.config
        every_layer = self.is_mutable_collection("intermediates")

        def run(start: int, x: Array, group: list) -> tuple[Array, LayerOutputs | None]:
            by_layer = []
            for i, (params, layer_params, layer_rng) in enumerate(group, start):
                block = self._block(encoding, i, parent=None)
                # What layers share is no input of the loop: its gradient is summed over them.
                if not encoding.per_layer:
                    layer_params = position_params[i]
                x, attended = block.apply(
                    {"params": params}, x, layer_params, context, mask, layer_rng
                )
                by_layer.append((x, attended))
            return x, _stack(by_layer) if every_layer else None

        if c.remat != "none":
            # In a loop nothing could be merged with the forward pass: no need to prevent it.
            run = jax.checkpoint(
                run,
                policy=REMAT[c.remat],
                prevent_cse=not c.scan_layers,
                static_argnums=0,
            )
        layers = []
        for i in range(c.num_layers):
            params = block_params(self.variables["params"], i)
            layer_params = position_params[i] if encoding.per_layer else {}
            layers.append((params, layer_params, rngs[i]))
        # Layers before the loop: those left over, and a first one with other parameters.
        turn = max(1, len(encoding.layers))
        same_first = c.first_norm and not c.conv_kernel
        lead = c.num_layers % turn
        if lead == 0 and not same_first:
            lead = turn
        groups = [layers[i : i + turn] for i in range(lead, c.num_layers, turn)]
        outputs: list[Any] = []
        if lead:
            x, lead_outputs = run(0, x, layers[:lead])
            outputs.append(lead_outputs)
        if c.scan_layers and groups:
            run_group = functools.partial(run, lead)
            stacked_groups = jax.tree.map(lambda *leaves: jnp.stack(leaves), *groups)
            x, stacked = jax.lax.scan(run_group, x, stacked_groups)
            outputs.append(
                jax.tree.map(lambda leaf: leaf.reshape(-1, *x.shape), stacked)
            )
        else:
            for group in groups:
                x, group_outputs = run(lead, x, group)
                outputs.append(group_outputs)
        return x, outputs

    @nn.nowrap
    def _block(self, encoding: PositionEncoding, index: int, **arguments: Any) -> Block:
        """Return the block of a layer; `arguments` are those of every Flax module."""
        c = self.config
        return Block(
            c,
            encoding.layer(index),
            encoding._at_layer(index),
            has_attention_norm=index > 0 or c.first_norm,
            has_convolution=index == 0 and c.conv_kernel > 0,
            **arguments,
        )


def block_params(params: Mapping[str, Any], layer: int) -> Params:
    """Return the parameters of a block of `Bert`: its own, or those that all layers share."""
    return params[f"layer_{layer}" if "layer_1" in params else "layer_0"]
