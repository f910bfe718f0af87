"""Measurements of steps: means of their metrics, rates, and profiler traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from pe_jax.console.terminal import log
from pe_jax.files import Json
from pe_jax.training.pytrees import Batch, Metrics, Scalars

# By the name of a metric, its sum and count over several steps: `[2]`, or `[2, S]` of S seeds.
Totals = dict[str, np.ndarray]


def add(totals: Totals, metrics: Metrics) -> list[str]:
    """Adds sums and counts to `totals`; returns descriptions of values that are not finite."""
    wrong = []
    for name, pair in jax.device_get(metrics).items():
        pair = np.asarray(pair, np.float64)
        totals[name] = totals.get(name, 0) + pair
        if not np.isfinite(pair).all():
            wrong.append(f"{name} {pair[0].flat[np.argmin(np.isfinite(pair[0]))]}")
    return wrong


def means(totals: Totals) -> Scalars:
    """Sums divided by counts, once; means over seeds, if any."""
    return {name: float(np.mean(s / np.maximum(n, 1))) for name, (s, n) in totals.items()}


class Meter:
    """The steps since the last line of the log: their metrics, their size, and their time.

    Args:
      totals: of the metrics of steps before, as JSON has them.
    """

    def __init__(self, totals: Json):
        self.totals: Totals = {name: np.array(pair) for name, pair in totals.items()}
        self._rows = self._tokens = 0
        self._flops = self._waited = 0.0
        self._start = time.perf_counter()

    def count(self, batch: Batch, flops: Callable[[int, int], float], waited: float) -> None:
        """Counts a step on a global batch, that took so many seconds to fetch; tokens `[..., L]`,
        padding included."""
        size, length = batch["tokens"].size, batch["tokens"].shape[-1]
        self._rows += size // length
        self._tokens += size
        self._flops += flops(size // length, length)
        self._waited += waited

    def scalars(self, learning_rate: float, peak: float) -> Scalars:
        """Means of the metrics, of all seeds and `name/i` of each, and rates; `peak` FLOP/s of all
        devices, 0 where not known."""
        seconds = time.perf_counter() - self._start
        by_seed = {
            f"{name}/{i}": float(sum_ / max(count, 1))
            for name, pair in self.totals.items()
            if pair.ndim == 2
            for i, (sum_, count) in enumerate(pair.T)
        }
        scalars = {
            **means(self.totals),
            **by_seed,
            "learning_rate": learning_rate,
            "examples_per_second": self._rows / seconds,
            "tokens_per_second": self._tokens / seconds,
            "data_wait": self._waited / seconds,
        }
        return scalars | ({"mfu": self._flops / seconds / peak} if peak else {})


class Profiler:
    """Writes one trace of consecutive steps to `workdir/profile`, for XProf and TensorBoard.

    Args:
      workdir: the run's folder, local.
      steps: to trace, counted from 1; empty traces nothing.
    """

    def __init__(self, workdir: Path, steps: range):
        self._folder, self._steps = workdir / "profile", steps
        self._is_tracing = False

    def begin(self, step: int) -> None:
        """Start the trace with the first of the steps that runs."""
        if step in self._steps and not self._is_tracing:
            jax.profiler.start_trace(str(self._folder))
            self._is_tracing = True

    def end(self, step: int, metrics: Metrics) -> None:
        """Write the trace after the last of the steps, once the devices have finished it."""
        if self._is_tracing and step == self._steps[-1]:
            jax.block_until_ready(metrics)
            self.close()
            log(f"Profile of steps up to {step:,} in {self._folder}: xprof --logdir=FOLDER")

    def close(self) -> None:
        """Write a trace whose steps did not all run."""
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()
