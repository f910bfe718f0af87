"""Profiler traces of some steps of a run."""

from __future__ import annotations

from pathlib import Path

import jax

from pe_jax.console.terminal import say
from pe_jax.training.pytrees import Metrics


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
            say(f"Profile of steps up to {step:,} in {self._folder}: xprof --logdir=FOLDER")

    def close(self) -> None:
        """Write a trace whose steps did not all run."""
        if self._is_tracing:
            self._is_tracing = False
            jax.profiler.stop_trace()
