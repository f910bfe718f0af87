"""Looking into a trained BERT: hidden states, queries, keys and values, projections, rotations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import attention_logits, attention_weights
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings import Context, Params, Positions
from pe_jax.encodings.parameters import split_params
from pe_jax.encodings.positions import offsets
from pe_jax.models.bert import Bert, LayerOutputs, block_params
from pe_jax.models.config import BertConfig
from pe_jax.models.layers import projection_parameters, query_key_maps


def layer_outputs(
    config: BertConfig,
    params: Params,
    tokens: Int[Array, "B L"],
    token_type_ids: Int[Array, "B L"] | None = None,
    mask: Bool[Array, "B L"] | None = None,
    positions: Positions | None = None,
    rng: jax.Array | None = None,
    *,
    document_ids: Int[Array, "B L"] | None = None,
    pair_mask: Bool[Array, "B 1 L L"] | None = None,
) -> LayerOutputs:
    """Return hidden states and attention outputs of all layers, by a pure, differentiable function.

    The last hidden states are normalised where the model has a final norm.

    Args:
      params: of `Bert`, what `BertForPretraining` holds under `"bert"`; other inputs as of `Bert`.
      rng: key of the random numbers of dropout; None is no dropout.

    Raises:
      ValueError: as `Bert`.
    """
    _, state = Bert(config).apply(
        {"params": params},
        tokens,
        token_type_ids,
        mask,
        positions,
        document_ids=document_ids,
        pair_mask=pair_mask,
        deterministic=rng is None,
        rngs=None if rng is None else {"dropout": rng},
        mutable="intermediates",
    )
    return state["intermediates"]["outputs"][0]


def hidden_states(
    config: BertConfig,
    params: Params,
    tokens: Int[Array, "B L"],
    token_type_ids: Int[Array, "B L"] | None = None,
    mask: Bool[Array, "B L"] | None = None,
    positions: Positions | None = None,
) -> Float[jax.Array, "N B L D"]:
    """Return the hidden states of each token before the first layer and after every layer.

    The last ones, `[-1]`, are the output of the encoder. A sentence embedding is their mean over
    the tokens that `mask` has, or the first of them (`PublishedEncoder.encode` makes it from
    texts). `layer_outputs` returns the outputs of attention too.

    Args:
      config: of the encoder, such as `load_encoder(FOLDER).config`.
      params: of `Bert`, which `load_encoder(FOLDER).params` holds under `"bert"`.
      tokens: vocabulary ids.
      token_type_ids: 0 or 1; default all 0.
      mask: True at tokens and False at padding; default no padding.
      positions: default 0 to L - 1, see `Bert`.

    Returns:
      N = `config.num_layers` + 1 arrays in one, in `config.dtype`: the embeddings, then the output
      of each layer. States at padding have no meaning.

    Raises:
      ValueError: as `Bert`.
    """
    return layer_outputs(config, params, tokens, token_type_ids, mask, positions).hidden


def queries_keys_values(
    config: BertConfig, params: Params, tokens: Int[Array, "B L"]
) -> Float[jax.Array, "3 N B L H d"]:
    """Return queries, keys and values of all N layers of `Bert`, before the encoding maps them.

    Queries that share a head of keys and values have it repeated.
    """
    layers = _compared(config, params, tokens, config.num_layers)
    by_layer = []
    for _, q, k, v in layers:
        k = _repeated(k, config.num_heads)
        v = _repeated(v, config.num_heads)
        by_layer.append(jnp.stack([q, k, v]))
    return jnp.stack(by_layer, axis=1)


def with_constants(
    params: Params, which: Bool[Array, "2 N H d"], values: Float[Array, "2 N H d"]
) -> Params:
    """Return parameters with which queries and keys are constant in some dimensions of a head.

    They are of the model with `attention_bias=True`, `num_key_heads=None` and
    `shared_layers=False`.

    Args:
      params: of `Bert`.
      which: those dimensions of queries and of keys, by layer.
      values: what they are at every token, before the encoding maps them.

    Raises:
      ValueError: for a model with `query_key_norm`, whose queries and keys are never constant.
    """
    if "query_norm" in block_params(params, 0)["attention"]:
        raise ValueError(
            "Queries and keys of a model with query_key_norm depend on all their dimensions, so "
            "that none can be made constant."
        )
    changed = dict(params)
    for i in range(which.shape[1]):
        attention = block_params(params, i)["attention"]
        parts = projection_parameters(attention)
        shape = parts[0]["kernel"].shape
        no_bias = jnp.zeros(shape[1:])
        kernel = jnp.stack([_repeated(part["kernel"], shape[1]) for part in parts], 1)
        bias = jnp.stack(
            [_repeated(part.get("bias", no_bias), shape[1]) for part in parts]
        )
        constant = jnp.concatenate([which[:, i], jnp.zeros_like(which[:1, i])])
        value = jnp.concatenate([values[:, i], jnp.zeros_like(values[:1, i])])
        qkv = {
            "kernel": jnp.where(constant, 0, kernel),
            "bias": jnp.where(constant, value, bias),
        }
        out = {"bias": jnp.zeros(shape[:1]), **attention["out"]}
        changed[f"layer_{i}"] = {
            **block_params(params, i),
            "attention": {"qkv": qkv, "out": out},
        }
    return changed


def _repeated(x: Float[Array, "*B G d"], heads: int) -> Float[jax.Array, "*B H d"]:
    """Repeat heads of keys or values, so that each head of queries has its own."""
    return jnp.repeat(x, heads // x.shape[-2], axis=-2)


def rotations(
    config: BertConfig, params: Params
) -> list[tuple[Int[np.ndarray, "F 2"], Float[jax.Array, "#H F"]] | None]:
    """Return the pairs of dimensions that each layer of `Bert` rotates, and their frequencies.

    Frequencies are in radians per position, of all heads or of each. They are those of the first
    part of the encoding that rotates; a layer without one has None.
    """
    encoding = config.encoding()

    def rotated(layer: int) -> tuple[np.ndarray, Array] | None:
        values = encoding.layer_params(params.get("position", {}), layer)
        for part, part_params in split_params(encoding.layer(layer), values):
            card = part.metadata
            if card and card.pairs and card.frequencies:
                return np.array(card.pairs), card.frequencies(part_params)
        return None

    return [rotated(layer) for layer in range(config.num_layers)]


def _compared(
    config: BertConfig, params: Params, tokens: Array, layers: int
) -> list[tuple[Array, ...]]:
    """Input of attention `[B, L, D]`, queries, keys, values, of each of the first `layers`."""
    below = dataclasses.replace(
        config, num_layers=layers, scan_layers=False, remat="none"
    )
    _, state = Bert(below).apply({"params": params}, tokens, mutable="intermediates")
    inside = state["intermediates"]
    if config.shared_layers:
        return list(inside["layer_0"]["attention"]["compared"])
    return [inside[f"layer_{i}"]["attention"]["compared"][0] for i in range(layers)]


def _attention(
    measure: Callable[..., Float[Array, "B H L L"]],
    config: BertConfig,
    params: Params,
    layer: int,
    x: Float[Array, "B L D"],
    q: Float[Array, "B L H d"],
    k: Float[Array, "B L H d"],
) -> Float[Array, "B H L L"]:
    """`attention_logits` or `attention_weights` of a layer whose keys were projected from `x`."""
    encoding = config.encoding()
    position_params = encoding.layer_params(params.get("position", {}), layer)
    maps = query_key_maps(block_params(params, layer)["attention"])
    context = Context(x_q=x, x_k=x, projections=maps)
    return measure(q, k, encoding.layer(layer).in_attention, position_params, context)


@functools.cache  # The same function for the same model, so that it is compiled once.
def attention_map(
    config: BertConfig, *, layer: int = 0, what: Literal["logits", "weights"] = "logits"
) -> Callable[[Params, Int[Array, "B L"]], Float[jax.Array, "B H L L"]]:
    """Return `attend(params, tokens) -> [B, H, L, L]`: attention in a layer, for `identical_words`.

    Args:
      what: `"weights"` are the model's own; `"logits"` are the inputs of their softmax, with every
        term of the encoding, times sqrt(d): the raw products of the paper's equation 5.

    Raises:
      ValueError: for another `what`, or a layer that the model has not.
    """
    if not 0 <= layer < config.num_layers:
        raise ValueError(f"layer must be 0 to {config.num_layers - 1}, got {layer}.")
    if what not in ("logits", "weights"):
        raise ValueError(f"what must be 'logits' or 'weights', got {what!r}.")

    def attend(params, tokens):
        x, q, k, _ = _compared(config, params, tokens, layer + 1)[-1]
        if what == "weights":
            return _attention(attention_weights, config, params, layer, x, q, k)
        logits = _attention(attention_logits, config, params, layer, x, q, k)
        return logits * q.shape[-1] ** 0.5

    return attend


@functools.cache
def kernel_map(
    config: BertConfig,
) -> Callable[[Params, Int[Array, "B T L"]], Float[jax.Array, "B N H L L"]]:
    """Return `attend(params, inputs) -> [B, N, H, L, L]`: logits by layer, for `offset_kernel`.

    Queries of each of T texts are multiplied with keys of the next text (the last with the first),
    and the logits averaged over the T texts. Every text goes through the model by itself. Encodings
    that read hidden states get those of the keys' text. Times sqrt(d), as in `attention_map`.
    """

    def attend(params, inputs):
        count, texts, length = inputs.shape
        tokens = inputs.reshape(count * texts, length)

        def next_text(x):
            by_text = x.reshape(count, texts, *x.shape[1:])
            return jnp.roll(by_text, -1, axis=1).reshape(x.shape)

        def mean_logits(layer, x, q, k):
            keys = next_text(x), q, next_text(k)
            logits = _attention(attention_logits, config, params, layer, *keys)
            products = logits * q.shape[-1] ** 0.5
            return products.reshape(count, texts, *logits.shape[1:]).mean(1)

        by_layer = []
        layers = _compared(config, params, tokens, config.num_layers)
        for i, (x, q, k, _) in enumerate(layers):
            by_layer.append(mean_logits(i, x, q, k))
        return jnp.stack(by_layer, axis=1)

    return attend


@functools.cache
def weights_map(
    config: BertConfig,
) -> Callable[[Params, Int[Array, "B L"]], Float[jax.Array, "B N H L L"]]:
    """Return `attend(params, tokens) -> [B, N, H, L, L]`: the attention weights of all layers.

    Texts must not be padded. Weights have every term of the encoding and its window, and no
    dropout.
    """

    def attend(params, tokens):
        by_layer = []
        layers = _compared(config, params, tokens, config.num_layers)
        for i, (x, q, k, _) in enumerate(layers):
            weights = _attention(attention_weights, config, params, i, x, q, k)
            by_layer.append(weights)
        return jnp.stack(by_layer, axis=1)

    return attend


def attended(config: BertConfig, length: int) -> Bool[np.ndarray, "N L L"]:
    """Return by layer where a query can attend to keys at other positions, by the window."""
    encoding = config.encoding()
    apart = offsets(range(length), range(length))
    by_layer = []
    for layer in range(config.num_layers):
        window = encoding.layer(layer).window
        by_layer.append(np.asarray(window.allows(apart)) & (apart != 0))
    return np.stack(by_layer)


def projections(
    params: Params, layer: int
) -> tuple[Float[jax.Array, "D H d"], Float[jax.Array, "D H d"]]:
    """Return W_Q and W_K of a layer, by head; W_K is repeated for grouped queries."""
    q, k, _ = projection_parameters(block_params(params, layer)["attention"])
    return q["kernel"], _repeated(k["kernel"], q["kernel"].shape[1])


def query_key_matrices(params: Params, num_layers: int) -> Float[jax.Array, "N D D"]:
    """Return W_Q·W_Kᵀ of each layer, summed over its heads."""
    products = []
    for layer in range(num_layers):
        q, k = projections(params, layer)
        products.append(jnp.einsum("dhe,fhe->df", q, k))
    return jnp.stack(products)
