"""The arguments of a pretraining step as shapes, for estimates of its time and memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax import data
from pe_jax.configs.pretraining import PretrainingConfig, StageConfig
from pe_jax.tasks.start import tokenizer_file
from pe_jax.tasks.train import Program
from pe_jax.training import sharding
from pe_jax.training.step import TrainState, state_shapes


def expected_vocab_size(config: PretrainingConfig) -> int:
    """Return the size of the run's vocabulary; the largest one where the run trains its own."""
    file = tokenizer_file(config)
    return data.load_tokenizer(file).get_vocab_size() if file else config.data.vocab_size


def batch_shapes(stage: StageConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of a global batch of `data.batches` for `stage`."""
    rows, length, predictions = stage.batch_size, stage.length, stage.max_predictions
    shape = jax.ShapeDtypeStruct
    return {
        "tokens": shape((rows, length), jnp.int32),
        "segments": shape((rows, length), jnp.int32),
        "valid": shape((rows, length), jnp.bool_),
        "masked_positions": shape((rows, predictions), jnp.int32),
        "masked_tokens": shape((rows, predictions), jnp.int32),
        "masked_weights": shape((rows, predictions), jnp.float32),
        "next_sentence": shape((rows,), jnp.int32),
    }


def abstract_arguments(
    program: Program, stage: StageConfig
) -> tuple[TrainState, dict[str, jax.ShapeDtypeStruct]]:
    """Return shapes, dtypes and shardings of the arguments of a step; takes no memory."""
    state = sharding.abstract(state_shapes(program.task, program.optimizer), program.shardings)
    return state, sharding.abstract(batch_shapes(stage), program.batch_sharding)
