"""The training loop: stages of steps, with a fixed order inside each step."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding

from pe_jax.console.terminal import Progress, say
from pe_jax.errors import Interrupted
from pe_jax.training import chips, sharding
from pe_jax.training.checkpointing import Checkpoints
from pe_jax.training.metrics_writer import MetricsWriter
from pe_jax.training.step import Metrics, TrainState


@dataclasses.dataclass(frozen=True)
class Stage:
    """A run of steps over one kind of data.

    Attributes:
      name: for the log.
      steps: how many.
      batches: endless batches of this host, NumPy.
      train_step: compiled, `(state, global batch) -> (state, metrics)`.
      evaluate: `evaluate(step, params) -> {name: value}`, on held-out data. Names with a `/` are
        details, for the files and not for the terminal.
      flops: `flops(rows, length)`, model FLOPs of a step, see `pe_jax.models.flops`.
    """

    name: str
    steps: int
    batches: grain.IterDataset
    train_step: Callable[[TrainState, Any], tuple[TrainState, Metrics]]
    evaluate: Callable[[int, Any], dict[str, float]]
    flops: Callable[[int, int], float]


class Cadence(NamedTuple):
    """Every how many steps to write metrics, to evaluate and to save; 0 means at the ends only."""

    log: int
    evaluate: int
    checkpoint: int


class Totals:
    """Sums and counts of metrics over several steps, divided once; means over seeds, if any."""

    def __init__(self) -> None:
        self._totals: dict[str, np.ndarray] = {}

    def add(self, metrics: Metrics) -> list[str]:
        """Adds sums and counts; returns what is not finite, in words."""
        wrong = []
        for name, pair in jax.device_get(metrics).items():
            pair = np.asarray(pair, np.float64)
            self._totals[name] = self._totals.get(name, 0) + pair
            if not np.isfinite(pair).all():
                wrong.append(f"{name} {pair[0].flat[np.argmin(np.isfinite(pair[0]))]}")
        return wrong

    def means(self) -> dict[str, float]:
        return {name: float(np.mean(s / np.maximum(n, 1))) for name, (s, n) in self._totals.items()}


class _Unread(NamedTuple):
    """What a step gave, before the host has looked at it."""

    step: int
    metrics: Metrics
    batch: Any  # This host's rows, NumPy.

    def read(self, totals: Totals, writer: MetricsWriter) -> None:
        """Adds the metrics to `totals`.

        Raises:
          FloatingPointError: if they are not finite.
        """
        wrong = totals.add(self.metrics)
        if wrong:
            kept = writer.keep_batch(self.step, self.batch)
            raise FloatingPointError(
                f"Step {self.step:,} gave {', '.join(wrong)}. Its batch was written to {kept}, and "
                "the checkpoints are of steps before it. A lower learning rate, a longer warmup or "
                "config.optimizer.clip_norm may help, in another --workdir."
            )


def evaluate(
    eval_step: Callable[[Any, Any], Metrics], params: Any, batches: Iterable[Any]
) -> dict[str, float]:
    """Means of a task's metrics over global batches."""
    totals = Totals()
    for batch in batches:
        totals.add(eval_step(params, batch))
    return totals.means()


def fit(
    state: TrainState,
    stages: Sequence[Stage],
    *,
    data: Any,
    placed: NamedSharding,
    schedule: Callable[[int], Any],
    checkpoints: Checkpoints,
    writer: MetricsWriter,
    asked_to_stop: Callable[[int], int],
    cadence: Cadence,
) -> TrainState:
    """Trains from `state.step` to the end of the last stage; resumes inside any of them.

    Args:
      data: where the batches of a stage that is under way stood, as its checkpoint has it.
      placed: where batches lie.
      asked_to_stop: see `interruptions`.

    Raises:
      FloatingPointError: if a loss or gradient is not finite; the batch is written beside the run.
      Interrupted: if the run was asked to stop, once it has saved.
    """
    step = int(state.step)
    total = sum(stage.steps for stage in stages)
    progress = Progress(total, step)
    peak = chips.peak_flops(placed.mesh.devices.flat[0].device_kind)
    begin = 0
    for stage in stages:
        end = begin + stage.steps
        if step >= end:
            begin = end
            continue
        iterator = iter(stage.batches)
        if step > begin:  # A stage that is already under way goes on where its data stood.
            iterator.set_state(data)
        # On a CPU minutes may pass between this line and the first of the log.
        say(f"{stage.name}: compiling, then steps {step + 1:,} to {end:,}")
        totals, unread, since, steps = Totals(), None, time.perf_counter(), 0
        waited, rows, tokens, flops = 0.0, 0, 0, 0.0
        while step < end:
            # 1. Fetch. The device is still busy with the step before, so this wait is not idle time
            #    unless the pipeline is the slower of the two.
            before = time.perf_counter()
            rows_here = next(iterator)
            batch = sharding.to_global(rows_here, placed)
            waited += time.perf_counter() - before
            size, length = batch["tokens"].size, batch["tokens"].shape[-1]
            rows, tokens = rows + size // length, tokens + size
            flops += stage.flops(size // length, length)
            # 2. Step: dispatched, not awaited; its metrics are read when the next one runs.
            state, metrics = stage.train_step(state, batch)
            if unread is not None:
                unread.read(totals, writer)
            step, steps = step + 1, steps + 1
            unread = _Unread(step, metrics, rows_here)
            progress.advance()
            last, stop = step == end, asked_to_stop(step)
            save = last or stop or _due(step, cadence.checkpoint)
            # 3. Log. What is not finite is never saved.
            if save or _due(step, cadence.log):
                unread.read(totals, writer)
                unread = None
            if last or _due(step, cadence.log):
                seconds = time.perf_counter() - since
                scalars = {
                    **totals.means(),
                    "learning_rate": float(schedule(step - 1)),
                    "examples_per_second": rows / seconds,
                    "tokens_per_second": tokens / seconds,  # Padding counts.
                    "data_wait": waited / seconds,
                }
                if peak:
                    scalars["mfu"] = flops / seconds / (peak * placed.mesh.size)
                writer.write(step, {f"train/{name}": value for name, value in scalars.items()})
                progress.report(step, stage.name, _brief(scalars))
                totals, since, steps = Totals(), time.perf_counter(), 0
                waited, rows, tokens, flops = 0.0, 0, 0, 0.0
            # 4. Evaluate.
            if last or _due(step, cadence.evaluate):
                scalars = stage.evaluate(step, state.params)
                writer.write(step, {f"held_out/{name}": value for name, value in scalars.items()})
                whole = {name: value for name, value in scalars.items() if "/" not in name}
                progress.report(step, "held out", whole)
                since = time.perf_counter() if not steps else since
            # 5. Save, last: what a checkpoint's step has written is on disk before it.
            if save:
                checkpoints.save(state, iterator)
            if stop:
                progress.close()
                raise Interrupted(step, stop)
        begin = end
    progress.close()
    return state


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _brief(scalars: dict[str, float]) -> dict[str, float]:
    """The numbers worth a line on the terminal."""
    worth = ("loss", "accuracy", "examples_per_second", "mfu")
    return {name: value for name, value in scalars.items() if name.endswith(worth)}
