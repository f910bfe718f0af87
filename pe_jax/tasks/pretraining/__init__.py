"""Pretraining: masked language model and next sentence, from a config to a trained run."""

from pe_jax.tasks.pretraining.objective import pretraining_task
from pe_jax.tasks.pretraining.pretrain import (
    PretrainingExperiment,
    PretrainingStage,
    build,
    run,
    transplant_start,
)
from pe_jax.tasks.pretraining.pretraining_config import resolve, stage_configs, tokenizer_file
from pe_jax.tasks.pretraining.program import (
    Program,
    batch_shapes,
    initial_positions,
    make_program,
)

__all__ = [
    "PretrainingExperiment",
    "PretrainingStage",
    "Program",
    "batch_shapes",
    "build",
    "initial_positions",
    "make_program",
    "pretraining_task",
    "resolve",
    "run",
    "stage_configs",
    "tokenizer_file",
    "transplant_start",
]
