"""Flax Linen BERT; one encoder class, encodings are data."""

from pe_jax.errors import extra

# isort: off
with extra("flax"):
    from pe_jax.configs.model import PRESETS, BertConfig, preset, with_tokens
    from pe_jax.models.bert import Bert, LayerOutputs
    from pe_jax.models.heads import (
        BertForClassification, BertForMaskedLM, BertForPretraining, BertForSpans,
        PretrainingLogits,
    )  # fmt: skip
    from pe_jax.models.inspection import (
        attended, attention_map, hidden_states, kernel_map, layer_outputs, projections,
        queries_keys_values, query_key_matrices, rotations, weights_map, with_constants,
    )  # fmt: skip

__all__ = [
    "PRESETS", "Bert", "BertConfig", "BertForClassification", "BertForMaskedLM",
    "BertForPretraining", "BertForSpans", "LayerOutputs", "PretrainingLogits", "attended",
    "attention_map", "hidden_states", "kernel_map", "layer_outputs", "preset", "projections",
    "queries_keys_values", "query_key_matrices", "rotations", "weights_map", "with_constants",
    "with_tokens",
]  # fmt: skip

# For the experimental measures of pe_jax.properties; docs/stability.md does not cover them.
EXPERIMENTAL = (
    "attended", "attention_map", "kernel_map", "projections", "queries_keys_values",
    "query_key_matrices", "rotations", "weights_map", "with_constants",
)  # fmt: skip
