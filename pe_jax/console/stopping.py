"""Stopping on request: SIGTERM, which schedulers send before they preempt a machine, or Ctrl-C.

A command catches both from its first line to its last. Outside of training they end it at once;
while it trains they wait for the end of a step, and a save that has begun is finished. The exit
status says that the same command resumes. A second signal has its usual effect.

At once means that the process ends where it is. An exception raised there instead would be lost in
a callback or a destructor, or would end the process with a stack dump inside an extension module
that is being imported. Nothing has to be cleaned up: files appear whole or not at all.

Nothing is imported here that takes time: signals may come while the rest is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from pe_jax.errors import Interrupted

# 75 is EX_TEMPFAIL of sysexits.h, "try again"; 130 is what shells return for Ctrl-C.
EXIT_STATUS = {signal.SIGTERM: 75, signal.SIGINT: 130}

_MESSAGE = "Stopped. The same command starts again from what is saved."


def leave(status: int) -> None:
    """Ends the process where it is."""
    os.write(2, f"{_MESSAGE}\n".encode())
    os._exit(status)


class _Signals:
    """The handlers of this process, and what came.

    Attributes:
      before: the handlers that ours have replaced; empty while they are not installed.
      received: the exit status that the first signal asks for; 0 before there was one.
      waiting: within how many contexts of `deferred` the process is.
    """

    def __init__(self) -> None:
        self.before: dict[signal.Signals, Callable | int | None] = {}
        self.received = 0
        self.waiting = 0

    def catch(self) -> None:
        if self.before or threading.current_thread() is not threading.main_thread():
            return  # Python allows it in the main thread only.
        self.received = 0
        self.before = {number: signal.signal(number, self._note) for number in EXIT_STATUS}

    def release(self) -> None:
        while self.before:
            number, handler = self.before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = EXIT_STATUS[signal.Signals(number)]
        self.release()
        if not self.waiting:
            leave(self.received)


_SIGNALS = _Signals()


def catch() -> None:
    """Let SIGTERM and Ctrl-C end the process from now on; the first line of a command."""
    _SIGNALS.catch()


def done() -> None:
    """The last line of a command: nothing is left to stop but the interpreter, so both signals are
    ignored."""
    for number in _SIGNALS.before:
        signal.signal(number, signal.SIG_IGN)


def end() -> None:
    """Signals have the effect that they had before `catch`."""
    _SIGNALS.received = 0
    _SIGNALS.release()


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], int]]:
    """Signals wait for the end of the context, whether the command catches them elsewhere or not.

    Yields:
      `asked()`: the exit status that a signal asks for, 0 if none came.

    Raises:
      Interrupted: at the end, if a signal came and nothing else is raised.
    """
    came, commands = _SIGNALS.received, bool(_SIGNALS.before) or bool(_SIGNALS.received)
    if not commands:  # As a library: the caller's handlers are back behind the context.
        _SIGNALS.catch()
    _SIGNALS.waiting += 1
    try:
        yield lambda: _SIGNALS.received
    finally:
        _SIGNALS.waiting -= 1
        received = _SIGNALS.received
        if not commands:
            _SIGNALS.release()
            _SIGNALS.received = 0
    if received and not came and not _SIGNALS.waiting:
        raise Interrupted(_MESSAGE, received)
