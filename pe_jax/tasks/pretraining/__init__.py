"""Pretraining: masked language model and next sentence, from a config to a trained run."""

from pe_jax.tasks.pretraining.pretrain import (
    PretrainingExperiment,
    PretrainingStage,
    Program,
    batch_shapes,
    build,
    initial_positions,
    make_program,
    pretraining_task,
    resolve,
    run,
    stage_configs,
    tokenizer_file,
    transplant_start,
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
