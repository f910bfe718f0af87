"""Stopping on request: SIGTERM, which schedulers send before they preempt a machine, or Ctrl-C.

The loop checks after every step; the run then saves and ends with an exit status that says so, and
the same command resumes it. A second signal ends it at once.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

import orbax.checkpoint as ocp

from pe_jax.training.sharding import host

# 75 is EX_TEMPFAIL of sysexits.h, "try again"; 130 is what shells return for Ctrl-C.
EXIT_STATUS = {signal.SIGTERM: 75, signal.SIGINT: 130}


@contextlib.contextmanager
def interruptions() -> Iterator[Callable[[int], int]]:
    """Catches the signals within the context.

    Yields:
      `asked(step)`: 0, or the exit status if the run is to stop after `step`. On several hosts all
      of them get the same answer, whichever got the signal; all of them ask after every step.
    """
    if host()[1] > 1:  # The runtime has caught SIGTERM, and agrees on a step for all to stop after.
        status = EXIT_STATUS[signal.SIGTERM]
        yield lambda step: status if ocp.utils.reached_preemption(step) else 0
        return
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in EXIT_STATUS}

    def note(number: int, frame: object) -> None:
        received.append(EXIT_STATUS[signal.Signals(number)])
        restore()  # The next one has its usual effect.

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        for number in EXIT_STATUS:
            signal.signal(number, note)
    except ValueError:  # Python allows it in the main thread only.
        yield lambda step: 0
        return
    try:
        yield lambda step: received[0] if received else 0
    finally:
        restore()
