"""The arguments of a training step as shapes, for estimates of its time and memory."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from pe_jax.models import Bert, BertConfig
from pe_jax.models.flops import train_flops
from pe_jax.trainer import data
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.configs.finetuning import FinetuningConfig, SquadConfig
from pe_jax.trainer.configs.pretraining import (
    EncoderTrainingConfig,
    PretrainingConfig,
    PretrainingStageConfig,
    StageConfig,
)
from pe_jax.trainer.data.glue import GLUE
from pe_jax.trainer.data.masking import ElementSpec
from pe_jax.trainer.tasks import distillation, finetuning, pretraining, text_training
from pe_jax.trainer.tasks.glue import glue_task
from pe_jax.trainer.tasks.imitation import Statistics
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource, tokenizer_file
from pe_jax.trainer.tasks.run import Program
from pe_jax.trainer.tasks.seeds import seed_mesh
from pe_jax.trainer.tasks.squad import span_task
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.pytrees import PyTree
from pe_jax.trainer.training.step import TrainState
from pe_jax.trainer.training.workdir import ResolvedConfig

AnyConfig = EncoderTrainingConfig | FinetuningConfig


def resolve(config: AnyConfig) -> ResolvedConfig[AnyConfig]:
    """Fill in the model of `config` as its task does; raises as that does."""
    if isinstance(config, FinetuningConfig):
        return finetuning.resolve(config)
    if isinstance(config, DistillationConfig):
        return distillation.resolve(config)
    return text_training.resolve(config)


def stages(config: AnyConfig) -> Sequence[StageConfig]:
    """Return the stages of `config`; for fine-tuning, a step on the longest inputs."""
    if not isinstance(config, FinetuningConfig):
        return tuple(config.stages.values())
    rows, accumulation = config.data.batch_size, config.accumulation
    length = config.data.length
    return (
        StageConfig(length=length, batch_size=rows, accumulation=accumulation, steps=1),
    )


def make_mesh(config: AnyConfig, mesh: jax.sharding.Mesh) -> jax.sharding.Mesh:
    """Return the devices of `mesh`, all of them by rows, as a run of `config` uses them."""
    if isinstance(config, FinetuningConfig):
        return seed_mesh(len(config.seeds), list(mesh.devices.flat))
    return mesh


def make_program(
    config: AnyConfig, mesh: jax.sharding.Mesh, model: BertConfig, stage: StageConfig
) -> tuple[Program, float]:
    """Return what `config` runs on a mesh of `make_mesh`, without data, for one step;
    and the model FLOPs of a step of `stage`."""
    rows, length = stage.batch_size, stage.length
    if isinstance(config, FinetuningConfig):
        task = (
            span_task(model)
            if isinstance(config, SquadConfig)
            else glue_task(config, model)
        )
        flops = len(config.seeds) * train_flops(model, rows, length, predictions=0)
        return finetuning.make_program(config, mesh, model, task, steps=1), flops
    if isinstance(config, PretrainingConfig):
        assert isinstance(stage, PretrainingStageConfig)
        program = pretraining.make_program(config, mesh, model, steps=1)
        return program, train_flops(model, rows, length, stage.max_predictions)
    assert isinstance(config, DistillationConfig)
    teacher = distillation.teacher_model(config, model)
    program = distillation.make_program(config, mesh, model, teacher, steps=1)
    return program, distillation.step_flops(config, model, teacher, rows, length)


def expected_vocab_size(config: AnyConfig) -> int:
    """Return the size of the run's vocabulary; the largest one where the run trains its own."""
    if isinstance(config, FinetuningConfig):
        return data.load_tokenizer(
            PretrainedSource(config.init).tokenizer()
        ).get_vocab_size()
    file = tokenizer_file(config)
    return (
        data.load_tokenizer(file).get_vocab_size() if file else config.data.vocab_size
    )


def element_spec(config: AnyConfig, stage: StageConfig) -> ElementSpec:
    """Return shape and dtype of each array of an example of `stage`, see the examples of a task."""
    if isinstance(config, FinetuningConfig):
        label = (
            np.int32
            if config.task == "squad" or GLUE[config.task].labels
            else np.float32
        )
        targets = ("start", "end") if config.task == "squad" else ("label",)
        row = ((stage.length,), np.int32)
        inputs = {
            "tokens": row,
            "token_type_ids": row,
            "mask": ((stage.length,), np.bool_),
        }
        return inputs | {name: ((), label) for name in targets}
    if not isinstance(stage, PretrainingStageConfig):
        assert isinstance(config, DistillationConfig)
        options = config.window, config.differences > 0
        return data.VariableLengthExamples.element_spec(stage.length, *options)
    assert isinstance(config, PretrainingConfig)
    examples = data.PackedExamples if config.data.packed else data.PretrainingExamples
    return examples.element_spec(stage.length, stage.max_predictions)


def abstract_arguments(
    config: AnyConfig, program: Program, stage: StageConfig
) -> tuple[TrainState, dict[str, jax.ShapeDtypeStruct], tuple[PyTree, ...]]:
    """Return a step's state, batch and constants as shapes with shardings; takes no memory."""
    state = sharding.abstract(program.state_shapes, program.shardings)
    seeds = (len(config.seeds),) if isinstance(config, FinetuningConfig) else ()
    shapes = {
        name: jax.ShapeDtypeStruct((*seeds, stage.batch_size, *shape), dtype)
        for name, (shape, dtype) in element_spec(config, stage).items()
    }
    batch = sharding.abstract(shapes, program.batch_sharding)
    constants: tuple[PyTree, ...] = ()
    if isinstance(config, DistillationConfig):
        constants = _teacher_constants(
            config, distillation.teacher_model(config, program.model)
        )
    return state, batch, sharding.abstract(constants, program.shardings_of(constants))


def _teacher_constants(
    config: DistillationConfig, teacher: BertConfig
) -> tuple[PyTree, ...]:
    """Return the shapes of the constants of `imitation_task`."""
    tokens = jax.ShapeDtypeStruct((1, 8), np.int32)
    params = jax.eval_shape(Bert(teacher).init, jax.random.key(0), tokens)["params"]
    layers = teacher.num_layers
    variance = jax.ShapeDtypeStruct((layers,), np.float32)
    centre = (layers, max(config.lengths), teacher.hidden_size)
    of_positions = jax.ShapeDtypeStruct(centre, np.float32) if config.centered else None
    return params, Statistics(variance, variance, of_positions)
