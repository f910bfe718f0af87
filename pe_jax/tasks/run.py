"""A run in its folder: started, or resumed from its newest checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import optax
from jax.sharding import NamedSharding
from ml_collections import ConfigDict
from tokenizers import Tokenizer

from pe_jax import cpu
from pe_jax.console.terminal import say, tell
from pe_jax.files import write_text
from pe_jax.tasks.model_config import model_config, size_in_words
from pe_jax.training import workdir
from pe_jax.training.checkpointing import Checkpoints, restore_newest
from pe_jax.training.hosts import agree, stop_requests
from pe_jax.training.loop import Cadence, RunContext, Stage, fit
from pe_jax.training.metrics_writer import MetricsWriter
from pe_jax.training.pytrees import Params
from pe_jax.training.step import TrainState


class Training(NamedTuple):
    """What to train.

    Attributes:
      config: of the run; `config.keep_checkpoints` of the newest are kept.
      fresh: the state before the first step.
      start: `start(fresh)` replaces what the run takes from another; not called on resuming.
      schedule: learning rate of a step.
      placed: the sharding of batches.
    """

    config: ConfigDict
    stages: Sequence[Stage]
    fresh: TrainState
    start: Callable[[TrainState], TrainState]
    schedule: optax.Schedule
    placed: NamedSharding
    tokenizer: Tokenizer
    cadence: Cadence


def introduce(folder: Path, init: str) -> None:
    """Says where a run is, what it runs on and what it starts from, before anything takes time."""
    devices, hosts = jax.devices(), jax.process_count()
    tell("Run", str(folder))
    tell("Devices", f"{len(devices)} {devices[0].device_kind}" + (f", {hosts} hosts" * (hosts > 1)))
    tell("Start", init or "from scratch: random parameters, as config.init is empty")


def _introduce_model(config: ConfigDict, params: Params) -> None:
    model, seeds = model_config(config), len(config.get("seeds", (0,)))
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree)) // seeds
    of_positions = count(params["bert"].get("position", {}))
    tell("Model", f"{size_in_words(model)}, {model.dtype}: {count(params):,} parameters")
    tell("Positions", f"{model.position}: {of_positions:,} of them")
    if model.dtype == "bfloat16" and jax.default_backend() == "cpu" and not _multiplies_bfloat16():
        tell("Hint", "this CPU has no instructions for bfloat16: float32 is likely to be faster")


def _multiplies_bfloat16() -> bool:
    """Whether the CPU has such instructions; True where it is not known (docs/performance.md)."""
    known = cpu.instructions()
    # x86: tiles, vectors; "bf16" is ARM's.
    return not known or bool({"amx_bf16", "avx512_bf16", "bf16"} & known)


def saved_tokenizer(folder: Path) -> Path:
    """The file in which the run in `folder` keeps its tokenizer."""
    return folder / "tokenizer.json"


def train(training: Training, folder: Path) -> TrainState:
    """Trains to the end of the last stage; `folder` becomes this run's with the first step.

    Raises:
      ValueError: if the folder holds a run of another config, another process writes in it, or
        hosts differ.
      FloatingPointError: if a loss is no longer finite.
      OSError: if something cannot be written.
      Interrupted: after SIGTERM or Ctrl-C, once the state is saved.
    """
    config = training.config
    _introduce_model(config, training.fresh.params)
    text = training.tokenizer.to_str()
    agree({"the tokenizer": hashlib.sha256(text.encode()).hexdigest()[:12]})
    with workdir.occupied(folder) as held:
        workdir.check(folder, config)
        run = workdir.identity(config, text)
        restored = restore_newest(folder, training.fresh, run)
        store = Checkpoints(folder, keep=config.keep_checkpoints, run=run)
        with contextlib.closing(store) as checkpoints:
            if restored is None:
                state = training.start(training.fresh)
            else:
                say(f"Resuming from step {restored.step:,}.")
                state = restored.state
            # Only now is the folder this run's: a config that cannot start does not occupy it.
            workdir.claim(folder, config)
            write_text(saved_tokenizer(folder), training.tokenizer.to_str(pretty=True))
            writer = MetricsWriter(folder, restored.step if restored else 0)
            with contextlib.closing(writer), stop_requests() as stop_requested:
                context = RunContext(
                    training.placed,
                    training.schedule,
                    checkpoints,
                    writer,
                    asked_to_stop=stop_requested,
                    held=held,
                    cadence=training.cadence,
                )
                return fit(state, training.stages, context, restored.place if restored else None)
