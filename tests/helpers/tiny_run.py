"""Generated text and a short run on it."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from helpers.random_params import random_params
from pe_jax.common import schema
from pe_jax.common.schema import from_values
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.tasks import pretraining, text_training
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.training import workdir
from pe_jax.trainer.training.checkpointing import Checkpoints
from pe_jax.trainer.training.step import TrainState

ROOT = Path(__file__).parents[2]

WORDS = "the a of and to in sea whale ship captain stood upon deck looked over water".split()


def write_books(folder, count=12, length=30, seed=0):
    """Random prose, one JSON object a line; returns the file's path."""
    rng = np.random.default_rng(seed)
    path = folder / "books.jsonl"
    with open(path, "w") as file:
        for _ in range(count):
            lines = [
                " ".join(rng.choice(WORDS, 9)).capitalize() + "." for _ in range(length)
            ]
            file.write(json.dumps({"text": " ".join(lines)}) + "\n")
    return path


# Random masks are a third of what a step takes to compile.
NO_DROPOUT = {"model.dropout_rate": 0.0, "model.attention_dropout_rate": 0.0}


def config(folder, **changes):
    """A short run: one layer of 16, on `write_books`; `changes` by dotted key."""
    return from_values(config_dict(folder, **changes), PretrainingConfig)


def config_dict(folder, **changes):
    """The same as a config file has it."""
    c = schema.config_dict(PretrainingConfig)
    c.model.update(
        size="tiny",
        num_layers=1,
        hidden_size=16,
        num_heads=2,
        intermediate_size=32,
        max_length=48,
    )
    c.data.source = str(write_books(folder))
    c.data.vocab_size = 120
    c.data.held_out = 0.25
    c.data.cache_dir = str(folder / "cache")
    c.stage1.update(length=32, batch_size=8, max_predictions=6, steps=12)
    c.stage2.update(length=48, batch_size=8, max_predictions=8, steps=8)
    c.optimizer.learning_rate = 1e-2
    c.log_every = 4
    c.eval_every = 0
    c.eval_examples = 16
    c.checkpoint_every = 5
    c.keep_checkpoints = 10
    c.update_from_flattened_dict(changes)
    return c


def save_untrained(config, folder):
    """Write a run of `config` as far as others start from it, with random parameters.

    Nothing is compiled: for tests of what follows a run, not of the run.
    """
    experiment = pretraining.build(text_training.resolve(config))
    tokenizer = experiment.data.text.tokenizer
    save_random(experiment.resolved, experiment.program, tokenizer, folder)


def save_random(resolved, program, tokenizer, folder):
    """Write a run with random parameters for the program of a config."""
    params = random_params(program.state_shapes.params, 0.1)
    step, params = jax.device_put((np.int32(1), params))
    workdir.write_config(folder, resolved)
    saved_tokenizer(folder).write_text(tokenizer.to_str())
    with contextlib.closing(Checkpoints(folder, keep=1)) as checkpoints:
        checkpoints.save(TrainState(step, params, (), jax.random.key(0)), {})


def command(folder, workdir, changes, *args, env=None, cwd=ROOT):
    """Start train.py on `config(folder, **changes)` as a process of its own.

    Processes on the same folder share their compiled programs: a restart compiles nothing.
    """
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    file = folder / "config.py"
    file.write_text(
        f"import pathlib, sys\nsys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "from helpers import tiny_run\ndef get_config():\n"
        f"    return tiny_run.config_dict(pathlib.Path({str(folder)!r}), **{changes})\n"
    )
    return subprocess.Popen(
        [
            sys.executable,
            ROOT / "train.py",
            f"--config={file}",
            f"--workdir={workdir}",
            *args,
        ],
        cwd=cwd,
        env={**(env or os.environ), **cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
