"""Model FLOPs of a forward pass and of a training step.

Only products of matrices in the model's definition count, two FLOPs for each multiplication with
its addition. Vectors of offsets count as their formula says, whatever form computes them: one dot
product of their width for every query, key and head, in the logits and again in the values.
Recomputation and padding do not count. A window counts the keys within it.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from pe_jax.attention.inputs import apply_encoding
from pe_jax.encodings import HookContext, Params, PositionEncoding
from pe_jax.models.config import BertConfig


@functools.cache  # The training loop asks at every step.
def forward_flops(
    config: BertConfig, rows: int, length: int, predictions: int
) -> float:
    """Model FLOPs of one forward pass with both pretraining heads.

    Args:
      rows, length: of the batch.
      predictions: a row; the masked-LM head works at these positions only.
    """
    d, inner = config.hidden_size, config.intermediate_size
    embedding_size = config.embedding_width
    # A token's queries, keys, values, out; up (and gate), down.
    attention = 2 * (config.num_heads + config.key_heads) * config.head_size
    projections = 2 * d * (attention + (3 if config.gated_mlp else 2) * inner)
    layers = config.num_layers * length * projections
    layers += sum(_attended(config, i, length) for i in range(config.num_layers))
    layers += length * 2 * d * d * config.conv_kernel
    if embedding_size != d:
        layers += length * 2 * embedding_size * d
    head = d * config.head_dense + config.vocab_size
    masked_lm = predictions * 2 * embedding_size * head
    next_sentence = 2 * d * (d + 2)
    return float(rows * (layers + masked_lm + next_sentence))


def train_flops(config: BertConfig, rows: int, length: int, predictions: int) -> float:
    """Model FLOPs of one training step: the gradient of a product is two products of its size."""
    return 3 * forward_flops(config, rows, length, predictions)


def _attended(config: BertConfig, layer: int, length: int) -> int:
    """FLOPs of a layer's products over pairs of query and key."""
    encoding = config.encoding().layer(layer)
    heads = jax.ShapeDtypeStruct(
        (1, 1, config.num_heads, config.head_size), jnp.float32
    )
    hidden = jax.ShapeDtypeStruct((1, 1, config.hidden_size), jnp.float32)
    params = jax.eval_shape(encoding.init, jax.random.key(0))
    q, v = jax.eval_shape(functools.partial(_operands, encoding), params, heads, hidden)
    widths = q.shape[-1] + v.shape[-1]
    for part in encoding.parts:
        term = part.offsets
        if term:
            vectors = (term.key_vectors, term.query_vectors, term.value_vectors)
            widths += config.head_size * sum(hook is not None for hook in vectors)
    window = encoding.window
    pairs = length + _pairs(window.left, length) + _pairs(window.right, length)
    return 2 * pairs * config.num_heads * widths


def _operands(
    encoding: PositionEncoding, params: Params, qkv: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Queries and values as they enter attention: an encoding may widen them."""

    def project(x: jax.Array) -> jax.Array:
        return jnp.zeros((*x.shape[:-1], *qkv.shape[2:]))

    positions = range(1) if encoding.axes == 1 else jnp.zeros((1, encoding.axes))
    context = HookContext(
        positions_q=positions,
        positions_k=positions,
        x_q=x,
        x_k=x,
        projections=(project, project),
    )
    inputs = apply_encoding(encoding, params, qkv, qkv, qkv, context, None)
    return inputs.q, inputs.v


def _pairs(distance: int | None, length: int) -> int:
    """Pairs of a token with those up to `distance` places to one side of it."""
    distance = length - 1 if distance is None else min(distance, length - 1)
    return length * distance - distance * (distance + 1) // 2
