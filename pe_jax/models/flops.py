"""Model FLOPs: what the definition of the model asks for, however a program computes it.

Only products of matrices count, two FLOPs for each multiplication with its addition. A relative
encoding counts as its formula says: one dot product of the width of its vectors for every query,
key and head, in the logits and again in the values. So a clever form of a relative term has the
FLOPs of the plain one, and a program that recomputes or pads has no more than one that does not.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.encodings import PositionEncoding
from pe_jax.models.config import BertConfig


def forward_flops(config: BertConfig, rows: int, length: int, predictions: int) -> float:
    """Of one forward pass with both pretraining heads.

    Args:
      rows, length: of the batch.
      predictions: a row; the masked-LM head works at these positions only.
    """
    d, inner, vocabulary = config.hidden_size, config.intermediate_size, config.vocab_size
    projections = 2 * d * (4 * d + 2 * inner)  # Of a token: queries, keys, values, out, up, down.
    attended = 2 * length * d  # Of a token, q·k; and as much again for weights·v.
    relative = 2 * length * config.num_heads * _relative_widths(config.encoding())
    layer = length * (projections + 2 * attended + relative)
    masked_lm = predictions * 2 * d * (d + vocabulary)
    next_sentence = 2 * d * (d + 2)
    return float(rows * (config.num_layers * layer + masked_lm + next_sentence))


def train_flops(config: BertConfig, rows: int, length: int, predictions: int) -> float:
    """Of one training step: the gradient of a product is two products of its size."""
    return 3 * forward_flops(config, rows, length, predictions)


def _relative_widths(encoding: PositionEncoding) -> int:
    """The widths of all vectors that meet each pair of query and key, added up."""
    return sum(
        _width(part) * (bool(part.logits) + bool(part.values))
        for part in encoding.parts or (encoding,)
    )


def _width(encoding: PositionEncoding) -> int:
    if encoding.vectors is None:
        return 0
    vectors = lambda key: encoding.vectors(encoding.init(key), jnp.zeros(1, jnp.int32))
    return jax.eval_shape(vectors, jax.random.key(0)).shape[-1]
