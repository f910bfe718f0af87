"""The arguments of a training step as shapes, for estimates of its time and memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax import data
from pe_jax.configs.distill_positions import DistillationConfig
from pe_jax.configs.pretraining import (
    EncoderTrainingConfig,
    PretrainingConfig,
    PretrainingStageConfig,
    StageConfig,
)
from pe_jax.models import BertConfig, train_flops
from pe_jax.tasks import distillation, pretraining
from pe_jax.tasks.start import tokenizer_file
from pe_jax.tasks.train import Program
from pe_jax.training import sharding
from pe_jax.training.pytrees import PyTree
from pe_jax.training.step import TrainState, state_shapes


def resolve(config: EncoderTrainingConfig) -> EncoderTrainingConfig:
    """Fill in the model of `config` as its task does; raises as that does."""
    if isinstance(config, PretrainingConfig):
        return pretraining.resolve(config)
    assert isinstance(config, DistillationConfig)
    return distillation.resolve(config)


def make_program(
    config: EncoderTrainingConfig, mesh: jax.sharding.Mesh, model: BertConfig, stage: StageConfig
) -> tuple[Program, float]:
    """Return what a resolved `config` runs on the devices of `mesh`, without data, for one step;
    and the model FLOPs of a step of `stage`."""
    rows, length = stage.batch_size, stage.length
    if isinstance(config, PretrainingConfig):
        assert isinstance(stage, PretrainingStageConfig)
        program = pretraining.make_program(config, mesh, model, steps=1)
        return program, train_flops(model, rows, length, stage.max_predictions)
    assert isinstance(config, DistillationConfig)
    teacher = distillation.teacher_model(config, model)
    program = distillation.make_program(config, mesh, model, teacher, steps=1)
    return program, distillation.step_flops(model, teacher, rows, length)


def expected_vocab_size(config: EncoderTrainingConfig) -> int:
    """Return the size of the run's vocabulary; the largest one where the run trains its own."""
    file = tokenizer_file(config)
    return data.load_tokenizer(file).get_vocab_size() if file else config.data.vocab_size


def batch_shapes(stage: StageConfig, *, packed: bool = False) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of a global batch of `data.batches` for `stage`.

    Args:
      packed: `config.data.packed` of a pretraining run.
    """
    rows, shape = stage.batch_size, jax.ShapeDtypeStruct
    by_token, valid = shape((rows, stage.length), jnp.int32), shape((rows, stage.length), jnp.bool_)
    if not isinstance(stage, PretrainingStageConfig):
        return {"tokens": by_token, "valid": valid}
    masked = shape((rows, stage.max_predictions), jnp.int32)
    shapes = {
        "tokens": by_token,
        "masked_positions": masked,
        "masked_tokens": masked,
        "masked_weights": shape((rows, stage.max_predictions), jnp.float32),
    }
    if packed:
        return {**shapes, "positions": by_token, "documents": by_token}
    next_sentence = shape((rows,), jnp.int32)
    return {**shapes, "valid": valid, "segments": by_token, "next_sentence": next_sentence}


def abstract_arguments(
    program: Program, stage: StageConfig
) -> tuple[TrainState, dict[str, jax.ShapeDtypeStruct], tuple[PyTree, ...]]:
    """Return a step's state, batch and constants as shapes with shardings; takes no memory."""
    state = sharding.abstract(state_shapes(program.task, program.optimizer), program.shardings)
    config = program.config
    packed = isinstance(config, PretrainingConfig) and config.data.packed
    batch = sharding.abstract(batch_shapes(stage, packed=packed), program.batch_sharding)
    constants = sharding.abstract(program.constants, program.shardings_of(program.constants))
    return state, batch, constants
