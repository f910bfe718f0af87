"""The training loop: stages of steps, with a fixed order inside each step."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import grain
import jax
import numpy as np
import optax
from jax.sharding import NamedSharding

from pe_jax.console.terminal import Progress, say
from pe_jax.errors import Interrupted
from pe_jax.files import Json
from pe_jax.training import chips, sharding
from pe_jax.training.checkpointing import Checkpoints
from pe_jax.training.metrics_writer import MetricsWriter
from pe_jax.training.pytrees import Batch, HostBatch, Metrics, Params, Scalars
from pe_jax.training.step import TrainState


@dataclasses.dataclass(frozen=True)
class Stage:
    """A number of steps over one kind of data.

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
    train_step: Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
    evaluate: Callable[[int, Params], Scalars]
    flops: Callable[[int, int], float]


class Cadence(NamedTuple):
    """Every how many steps to write metrics, to evaluate and to save; 0 means at the ends only."""

    log: int
    evaluate: int
    checkpoint: int


class RunContext(NamedTuple):
    """What the loop uses of a run besides its state and stages.

    Attributes:
      placed: the sharding of batches.
      schedule: learning rate of a step.
      asked_to_stop: `asked_to_stop(step)`, 0 or the exit status of a run that is to stop after
        `step`; see `hosts.stop_requests`.
      held: called before anything is written; raises if the folder is not this run's any more.
    """

    placed: NamedSharding
    schedule: optax.Schedule
    checkpoints: Checkpoints
    writer: MetricsWriter
    asked_to_stop: Callable[[int], int]
    held: Callable[[], None]
    cadence: Cadence


class Due(NamedTuple):
    """What follows a step; `stop` is the exit status of a run that was asked to, else 0."""

    log: bool
    evaluate: bool
    save: bool
    stop: int


class Totals:
    """Sums and counts of metrics over several steps, divided once; means over seeds, if any."""

    def __init__(self, state: Json | None = None) -> None:
        self._totals = {name: np.array(pair) for name, pair in (state or {}).items()}

    def add(self, metrics: Metrics) -> list[str]:
        """Adds sums and counts; returns what is not finite, in words."""
        wrong = []
        for name, pair in jax.device_get(metrics).items():
            pair = np.asarray(pair, np.float64)
            self._totals[name] = self._totals.get(name, 0) + pair
            if not np.isfinite(pair).all():
                wrong.append(f"{name} {pair[0].flat[np.argmin(np.isfinite(pair[0]))]}")
        return wrong

    def state(self) -> Json:
        """All of it, to continue from."""
        return {name: pair.tolist() for name, pair in self._totals.items()}

    def means(self) -> Scalars:
        return {name: float(np.mean(s / np.maximum(n, 1))) for name, (s, n) in self._totals.items()}


class _Unread(NamedTuple):
    """What a step returned, before the host reads it, which waits for the devices."""

    step: int
    metrics: Metrics
    rows: HostBatch

    def read(self, totals: Totals, writer: MetricsWriter) -> None:
        """Adds the metrics to `totals`.

        Raises:
          FloatingPointError: if they are not finite.
        """
        wrong = totals.add(self.metrics)
        if wrong:
            kept = writer.keep_batch(self.step, self.rows)
            raise FloatingPointError(
                f"Step {self.step:,} gave {', '.join(wrong)}. Its batch was written to {kept}, and "
                "the checkpoints are of steps before it. A lower learning rate, a longer warmup or "
                "config.optimizer.clip_norm may help, in another --workdir."
            )


class _Meter:
    """The steps since the last line of the log: their metrics, their size, and their time."""

    def __init__(self, flops: Callable[[int, int], float], totals: Json | None = None):
        self.totals = Totals(totals)
        self._flops_of = flops
        self._steps = self._rows = self._tokens = 0
        self._flops = self._waited = 0.0
        self._start = time.perf_counter()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time in the context as waiting for data."""
        before = time.perf_counter()
        yield
        self._waited += time.perf_counter() - before

    def count(self, batch: Batch) -> None:
        """Counts a step on a global batch; tokens `[..., L]`, padding included."""
        size, length = batch["tokens"].size, batch["tokens"].shape[-1]
        self._steps += 1
        self._rows += size // length
        self._tokens += size
        self._flops += self._flops_of(size // length, length)

    def skip(self) -> None:
        """Leaves out the time up to now, if no step was counted."""
        if not self._steps:
            self._start = time.perf_counter()

    def scalars(self, learning_rate: float, peak: float | None) -> Scalars:
        """Means of the metrics, and rates; `peak` FLOP/s of all devices, None where not known."""
        seconds = time.perf_counter() - self._start
        found = {
            **self.totals.means(),
            "learning_rate": learning_rate,
            "examples_per_second": self._rows / seconds,
            "tokens_per_second": self._tokens / seconds,
            "data_wait": self._waited / seconds,
        }
        return found | ({"mfu": self._flops / seconds / peak} if peak else {})


def evaluate(
    eval_step: Callable[[Params, Batch], Metrics], params: Params, batches: Iterable[Batch]
) -> Scalars:
    """Means of a task's metrics over global batches."""
    totals = Totals()
    for batch in batches:
        totals.add(eval_step(params, batch))
    return totals.means()


def fit(
    state: TrainState,
    stages: Sequence[Stage],
    run: RunContext,
    place: Json | None = None,
) -> TrainState:
    """Trains from `state.step` to the end of the last stage; resumes inside any of them.

    Args:
      place: where a stage that resumes was: the state of the iterator over its batches, and the
        metrics since the last line of the log, so that the next line covers the same steps.

    Raises:
      FloatingPointError: if a loss or gradient is not finite; the batch is written to the run's
        folder.
      OSError: if something cannot be written, or the folder was removed.
      Interrupted: if the run was asked to stop, once it has saved.
    """
    step, begin = int(state.step), 0
    progress = Progress(sum(stage.steps for stage in stages), step)
    for stage in stages:
        end = begin + stage.steps
        if step < end:
            iterator, totals = iter(stage.batches), None
            if step > begin:
                assert place is not None
                iterator.set_state(place["data"])
                totals = place["totals"]
            # On a CPU minutes may pass between this line and the first of the log.
            say(f"{stage.name}: compiling, then steps {step + 1:,} to {end:,}")
            steps = range(step + 1, end + 1)
            meter = _Meter(stage.flops, totals)
            state = _fit_stage(state, stage, iterator, meter, steps, run, progress)
            step = end
        begin = end
    progress.close()
    return state


def _fit_stage(
    state: TrainState,
    stage: Stage,
    iterator: grain.DatasetIterator,
    meter: _Meter,
    steps: range,
    run: RunContext,
    progress: Progress,
) -> TrainState:
    writer, unread = run.writer, None
    for step in steps:
        # 1. Fetch. The device is still busy with the step before, so this wait is not idle time
        #    unless the pipeline is the slower of the two.
        with meter.waiting():
            rows = next(iterator)
            batch = sharding.to_global(rows, run.placed)
        meter.count(batch)
        # 2. Step: dispatched, not awaited; its metrics are read when the next one runs.
        begin = time.perf_counter()
        state, metrics = stage.train_step(state, batch)
        if step == steps[0]:  # Dispatching the others takes no time: this compiled.
            say(f"{stage.name}: compiled in {time.perf_counter() - begin:.0f} s")
        if unread is not None:
            unread.read(meter.totals, writer)
        unread = _Unread(step, metrics, rows)
        progress.advance()
        due = _due(step, step == steps[-1], run)
        if any(due):
            run.held()
        # 3. Log. What is not finite is never saved.
        if due.save or due.log:
            unread.read(meter.totals, writer)
            unread = None
        if due.log:
            scalars = meter.scalars(float(run.schedule(step - 1)), _peak(run.placed))
            writer.write(step, {f"train/{name}": value for name, value in scalars.items()})
            progress.report(step, "training", _brief(scalars))
            meter = _Meter(stage.flops)
        # 4. Evaluate.
        if due.evaluate:
            scalars = stage.evaluate(step, state.params)
            writer.write(step, {f"held_out/{name}": value for name, value in scalars.items()})
            progress.report(step, "held out", _whole(scalars))
            _check_held_out(step, scalars)
            meter.skip()
        # 5. Save, last: what a checkpoint's step has written is on disk before it.
        if due.save:
            run.held()  # The evaluation may have taken minutes.
            place = {"data": iterator.get_state(), "totals": meter.totals.state()}
            run.checkpoints.save(state, place)
        if due.stop:
            progress.close()
            raise Interrupted(
                f"Stopped and saved at step {step:,}. The same command resumes it.", due.stop
            )
    return state


def _check_held_out(step: int, scalars: Scalars) -> None:
    """Raises:
    FloatingPointError: if a held-out loss is not finite, whatever the training loss is.
    """
    losses = {name: value for name, value in scalars.items() if name.endswith("loss")}
    if wrong := [f"{name} {value}" for name, value in losses.items() if not np.isfinite(value)]:
        raise FloatingPointError(
            f"After step {step:,} held-out data gives {', '.join(wrong)}: the checkpoints are of "
            "steps before. A lower learning rate or a longer warmup may help, in another --workdir."
        )


def _due(step: int, last: bool, run: RunContext) -> Due:
    """What follows `step`, the last of its stage or not."""
    at = lambda every: last or (every > 0 and step % every == 0)
    stop, cadence = run.asked_to_stop(step), run.cadence
    return Due(
        log=at(cadence.log),
        evaluate=at(cadence.evaluate),
        save=bool(stop) or at(cadence.checkpoint),
        stop=stop,
    )


def _peak(placed: NamedSharding) -> float | None:
    """bfloat16 FLOP/s of all devices together; None if not known."""
    of_one = chips.peak_flops(placed.mesh.devices.flat[0].device_kind)
    return of_one and of_one * placed.mesh.size


def _whole(scalars: Scalars) -> Scalars:
    """All but the details."""
    return {name: value for name, value in scalars.items() if "/" not in name}


def _brief(scalars: Scalars) -> Scalars:
    """The scalars worth a line on the terminal."""
    worth = ("loss", "accuracy", "examples_per_second", "mfu")
    return {name: value for name, value in scalars.items() if name.endswith(worth)}
