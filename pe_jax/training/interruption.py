"""When the training loop stops on request: all hosts of a run after the same step."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

import orbax.checkpoint as ocp

from pe_jax.console import stopping
from pe_jax.training.sharding import host


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[int], int]]:
    """Within the context SIGTERM and Ctrl-C wait for the end of a step.

    Yields:
      `asked(step)`: 0, or the exit status if the run is to stop after `step`. On several hosts all
      of them get the same answer, whichever got SIGTERM; all of them ask after every step.

    Raises:
      Interrupted: at the end, for a signal that came after the last step was begun.
    """
    if host()[1] > 1:  # The runtime has caught SIGTERM, and agrees on a step for all to stop after.
        status = stopping.EXIT_STATUS[signal.SIGTERM]
        yield lambda step: status if ocp.utils.reached_preemption(step) else 0
        return
    with stopping.deferred() as asked:
        yield lambda step: asked()
