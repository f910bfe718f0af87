"""Biases: numbers of the offset that are added to the logits."""

from pe_jax.encodings.bias.alibi import alibi
from pe_jax.encodings.bias.dynamic_position_bias import dynamic_position_bias
from pe_jax.encodings.bias.fire import fire
from pe_jax.encodings.bias.kerple import kerple
from pe_jax.encodings.bias.sandwich import sandwich
from pe_jax.encodings.bias.t5 import t5
from pe_jax.encodings.bias.tisa import tisa

__all__ = ["alibi", "dynamic_position_bias", "fire", "kerple", "sandwich", "t5", "tisa"]
