"""Flax Linen BERT; one encoder class, encodings are data.

Named sizes and the keys of a config are read without JAX and Flax, as `--help` does; modules are
imported when they are first used.
"""

import typing

from pe_jax.common.lazy import lazy_attributes
from pe_jax.models.config import PRESETS, BertConfig, preset, with_tokens

__all__ = [
    "PRESETS", "Bert", "BertConfig", "BertForClassification", "BertForMaskedLM",
    "BertForPretraining", "BertForSpans", "BertForTokens", "LayerOutputs", "PretrainingLogits",
    "attended", "attention_map", "hidden_states", "kernel_map", "layer_outputs", "preset",
    "projections", "queries_keys_values", "query_key_matrices", "rotations", "weights_map",
    "with_constants", "with_tokens",
]  # fmt: skip

# For the experimental measures of pe_jax.properties; docs/stability.md does not cover them.
EXPERIMENTAL = (
    "attended", "attention_map", "kernel_map", "projections", "queries_keys_values",
    "query_key_matrices", "rotations", "weights_map", "with_constants",
)  # fmt: skip

if typing.TYPE_CHECKING:
    from pe_jax.models.bert import Bert, LayerOutputs
    from pe_jax.models.heads import (
        BertForClassification,
        BertForMaskedLM,
        BertForPretraining,
        BertForSpans,
        BertForTokens,
        PretrainingLogits,
    )
    from pe_jax.models.inspection import (
        attended,
        attention_map,
        hidden_states,
        kernel_map,
        layer_outputs,
        projections,
        queries_keys_values,
        query_key_matrices,
        rotations,
        weights_map,
        with_constants,
    )
else:
    __getattr__, __dir__ = lazy_attributes(
        __name__, __all__, ("bert", "heads", "inspection"), needs="flax"
    )
