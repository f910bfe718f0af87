"""Fine-tuning on GLUE and SQuAD: several seeds in one program, official scores."""

from pe_jax.tasks.finetuning.finetune import FinetuningExperiment, build, run, start_from
from pe_jax.tasks.finetuning.finetuning_config import TASKS, fit_length, resolve

__all__ = [
    "TASKS",
    "FinetuningExperiment",
    "build",
    "fit_length",
    "resolve",
    "run",
    "start_from",
]
