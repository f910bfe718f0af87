"""Fine-tuning on GLUE and SQuAD: several seeds in one program, official scores."""

from pe_jax.tasks.finetuning.finetune import (
    FinetuningRun,
    build,
    fit_length,
    make_program,
    resolve,
    run,
    start_from,
)

__all__ = [
    "FinetuningRun",
    "build",
    "fit_length",
    "make_program",
    "resolve",
    "run",
    "start_from",
]
