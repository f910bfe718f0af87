"""The training loop: stages of steps, with a fixed order inside each step."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding

from pe_jax.common.errors import Interrupted
from pe_jax.common.files import Json
from pe_jax.trainer.console.terminal import Progress, log
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.checkpointing import Checkpoints
from pe_jax.trainer.training.metrics import (
    HELD_OUT,
    PEAKS,
    Meter,
    MetricsWriter,
    Totals,
    add,
    means,
)
from pe_jax.trainer.training.pytrees import Batch, HostBatch, Metrics, Params, Scalars
from pe_jax.trainer.training.step import TrainState

_ON_THE_TERMINAL = ("loss", "accuracy", "examples_per_second", "mfu")  # Ends of names.


class EarlyStopping(NamedTuple):
    """The end of a stage whose held-out score has stopped rising.

    Attributes:
      score: its name among the scores of `Stage.evaluate`.
      patience: how many evaluations have to pass without a rise of at least `min_gain` over the
        best before them; 0 means that the stage never ends early.
      min_gain: the least rise that counts.
    """

    score: str
    patience: int
    min_gain: float

    def is_reached(self, evaluations: Sequence[Scalars]) -> bool:
        """Return True if a stage with these scores, oldest first, should end."""
        if not self.patience or len(evaluations) <= self.patience:
            return False
        values = [scores[self.score] for scores in evaluations]
        best_before = max(values[: -self.patience])
        return max(values[-self.patience :]) < best_before + self.min_gain


@dataclasses.dataclass(frozen=True)
class Stage:
    """A number of steps over one kind of data.

    Attributes:
      name: for messages.
      steps: how many, unless the stage ends early.
      batches: `batches(n)` yields this host's NumPy batches without end, starting at batch n of the
        stage.
      train_step: `train_step(state, global batch) -> (state, metrics)`.
      evaluate: `evaluate(step, params)`, scores on held-out data. Those with a `/` in their name
        are details, for the files alone.
      flops: `flops(rows, length)` of a step, see `models.flops`.
      early_stopping: None trains all steps.
    """

    name: str
    steps: int
    batches: Callable[[int], Iterable[HostBatch]]
    train_step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
    evaluate: Callable[[int, Params], Scalars]
    flops: Callable[[int, int], float]
    early_stopping: EarlyStopping | None = None


def last_step(stages: Sequence[Stage], early_ends: Mapping[str, int]) -> int:
    """Return the last step of a run, with the stages that ended early as `Loop` has them."""
    end = 0
    for stage in stages:
        end = early_ends.get(str(end), end + stage.steps)
    return end


@dataclasses.dataclass(frozen=True)
class Loop:
    """The loop over the steps of a run in its folder.

    Attributes:
      every: steps between writing metrics, evaluating and saving; 0 means only at the end of a
        stage.
      batch_sharding: of global batches.
      schedule: learning rate of a step.
      folder: of the run.
      profile: steps to trace, counted from 1, to `folder/profile`, for XProf.
      trace: open while they run.
      stop_requested: `stop_requested(step)`, 0 or the exit status of a run that is to stop there.
      check_folder: called before anything is written; raises if the folder is another run's.
      early_ends: the last steps of stages that ended early, by the last step before them, as a
        text: they are saved as JSON.
    """

    every: tuple[int, int, int]
    batch_sharding: NamedSharding
    schedule: optax.Schedule
    folder: Path
    profile: range
    trace: contextlib.ExitStack
    checkpoints: Checkpoints
    writer: MetricsWriter
    progress: Progress
    stop_requested: Callable[[int], int]
    check_folder: Callable[[], None]
    early_ends: dict[str, int] = dataclasses.field(default_factory=dict)

    def fit(
        self,
        state: TrainState,
        stages: Sequence[Stage],
        totals: Json,
        evaluations: Mapping[int, Scalars],
    ) -> TrainState:
        """Train from `state.step` to the end of the last stage; resume inside any of them.

        Args:
          totals: of the metrics since the last line of the log, where a stage resumes.
          evaluations: held-out scores by step, up to `state.step`.

        Raises:
          FloatingPointError: if a loss or gradient is not finite; its batch is written.
          OSError: if something cannot be written, or the folder was removed.
          Interrupted: if the run was asked to stop, once it has saved.
        """
        begin = 0
        for stage in stages:
            end = self.early_ends.get(str(begin), begin + stage.steps)
            scores = [
                evaluations[n] for n in range(begin + 1, end + 1) if n in evaluations
            ]
            steps = range(max(begin, int(state.step)) + 1, end + 1)
            if steps:
                resumed = totals if steps[0] > begin + 1 else {}
                state = self._fit_stage(state, stage, begin, steps, resumed, scores)
                end = int(state.step)
            begin = end
        return state

    def _fit_stage(
        self,
        state: TrainState,
        stage: Stage,
        begin: int,
        steps: range,
        totals: Json,
        evaluations: list[Scalars],
    ) -> TrainState:
        """Train `steps` of a stage, whose first step is `begin + 1`, or until it ends early."""
        iterator = iter(stage.batches(steps[0] - 1 - begin))
        devices = self.batch_sharding.mesh.devices
        peak = devices.size * PEAKS.get(devices.flat[0].device_kind, 0)
        meter = Meter(stage.flops, peak, totals)
        # On a CPU minutes may pass between this line and the first of the log.
        log(f"{stage.name}: compiling, then steps {steps[0]:,} to {steps[-1]:,}")
        unread: tuple[int, Metrics, HostBatch] | None = None
        for step in steps:
            # 1. Fetch. The device is still busy with the step before, so this wait is not idle time
            #    unless the pipeline is the slower of the two.
            if step == self.profile.start:
                trace = jax.profiler.trace(str(self.folder / "profile"))
                self.trace.enter_context(trace)
            fetched = time.perf_counter()
            rows = next(iterator)
            batch = sharding.to_global(rows, self.batch_sharding)
            dispatched = time.perf_counter()
            meter.count(batch, dispatched - fetched)
            # 2. Step: dispatched, not awaited; its metrics are read when the next one runs.
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                state, metrics = stage.train_step(state, batch)
            if step == self.profile.stop - 1:
                jax.block_until_ready(metrics)
                self.trace.close()
                place = self.folder / "profile"
                command = "xprof --logdir=FOLDER"
                log(f"Profile of steps up to {step:,} in {place}: {command}")
            if step == steps[0]:  # Dispatching the others takes no time: this compiled.
                seconds = time.perf_counter() - dispatched
                log(f"{stage.name}: compiled in {seconds:.0f} s")
            if unread is not None:
                self._read(*unread, meter)
            unread = step, metrics, rows
            self.progress.advance()
            stop = self.stop_requested(step)
            write_log, evaluate, save = (
                step == steps[-1] or (every > 0 and step % every == 0)
                for every in self.every
            )
            save = save or bool(stop) or (evaluate and self.checkpoints.keep_best > 0)
            # 3. Log. What is not finite is never saved.
            if write_log or evaluate or save:
                self.check_folder()
                self._read(*unread, meter)
                unread = None
            if write_log:
                self._log(step, meter)
            # 4. Evaluate.
            held_out_loss = None
            ends_early = False
            if evaluate:
                evaluations.append(self._evaluate(step, stage, state.params))
                held_out_loss = _check_held_out(step, evaluations[-1])
                if stage.early_stopping and step != steps[-1]:
                    ends_early = stage.early_stopping.is_reached(evaluations)
            if ends_early:  # As with the last step: a line of the log, and a save.
                log(
                    f"{stage.name}: no more gain on held-out data, so it ends at step {step:,}"
                )
                if not write_log:
                    self._log(step, meter)
                self.early_ends[str(begin)] = step
                save = True
            if write_log:
                meter = Meter(stage.flops, peak, {})
            # 5. Save, last: what a checkpoint's step has written is on disk before it.
            if save:
                self.check_folder()  # The evaluation may have taken minutes.
                self.writer.sync()
                totals = {name: pair.tolist() for name, pair in meter.totals.items()}
                self.checkpoints.save(state, totals, held_out_loss, self.early_ends)
            if stop:
                raise Interrupted(
                    f"Stopped and saved at step {step:,}. The same command resumes it.",
                    stop,
                    on_all_hosts=True,
                )
            if ends_early:
                break
        return state

    def _read(self, step: int, metrics: Metrics, rows: HostBatch, meter: Meter) -> None:
        """Add the metrics of a step to `meter`; FloatingPointError if they are not finite."""
        if wrong := add(meter.totals, metrics):
            path = self.writer.keep_batch(step, rows)
            raise FloatingPointError(
                f"Step {step:,} gave {', '.join(wrong)}. Its batch was written to {path}; the "
                "checkpoints are from earlier steps. A lower learning rate, a longer warmup or "
                "config.optimizer.clip_norm may help, in another --workdir."
            )

    def _log(self, step: int, meter: Meter) -> None:
        scalars = meter.scalars(float(self.schedule(step - 1)))
        self.writer.write(step, scalars, prefix="train/")
        shown = {
            name: x for name, x in scalars.items() if name.endswith(_ON_THE_TERMINAL)
        }
        self.progress.report(step, "training", shown)

    def _evaluate(self, step: int, stage: Stage, params: Params) -> Scalars:
        scalars = stage.evaluate(step, params)
        self.writer.write(step, scalars, prefix=HELD_OUT)
        shown = {name: value for name, value in scalars.items() if "/" not in name}
        self.progress.report(step, "held out", shown)
        return scalars


def evaluate(
    eval_step: Callable[[Params, Batch], Metrics],
    params: Params,
    batches: Iterable[Batch],
) -> Scalars:
    """Return the means of a task's metrics over global batches."""
    totals: Totals = {}
    for batch in batches:
        add(totals, eval_step(params, batch))
    return means(totals)


def _check_held_out(step: int, scalars: Scalars) -> float | None:
    """Return the sum of the held-out losses, if any; FloatingPointError if one is not finite."""
    losses = {name: value for name, value in scalars.items() if name.endswith("loss")}
    wrong = [f"{name} {x}" for name, x in losses.items() if not np.isfinite(x)]
    if wrong:
        raise FloatingPointError(
            f"After step {step:,} the held-out data gives {', '.join(wrong)}; the checkpoints are "
            "from earlier steps. A lower learning rate or a longer warmup may help, in another "
            "--workdir."
        )
    return sum(losses.values()) if losses else None
