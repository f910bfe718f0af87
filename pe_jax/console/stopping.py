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

_handlers_before: dict[signal.Signals, Callable | int | None] = {}  # Empty unless ours are there.
_released: set[signal.Signals] = set()
_received = 0  # The exit status that the first signal asks for.
_deferring = 0  # Within how many contexts of `deferred` the process is.


def catch() -> None:
    """Let SIGTERM and Ctrl-C end the process from now on; the first line of a command."""
    global _received
    if _handlers_before or threading.current_thread() is not threading.main_thread():
        return  # Python allows it in the main thread only.
    _received = 0
    for number in EXIT_STATUS.keys() - _released:
        _handlers_before[number] = signal.signal(number, _note)


def release(number: signal.Signals) -> None:
    """Leave a signal from now on to a handler that has replaced the one of `catch`."""
    _released.add(number)
    _handlers_before.pop(number, None)


def end() -> None:
    """Signals have the effect that they had before `catch`."""
    global _received
    _received = 0
    _restore_handlers()


def done() -> None:
    """The last line of a command: both signals are ignored while the interpreter stops."""
    for number in _handlers_before:
        signal.signal(number, signal.SIG_IGN)


def requested(step: int = 0) -> int:
    """The exit status that a signal asks for, 0 if none came; the same after every step."""
    del step
    return _received


@contextlib.contextmanager
def deferred() -> Iterator[Callable[..., int]]:
    """Signals wait for the end of the context, whether the command catches them elsewhere or not;
    then, if one came and nothing else is raised, Interrupted is. Yields `requested`."""
    global _deferring
    earlier = _received
    as_library = not (_handlers_before or _received)  # The caller's handlers return afterwards.
    if as_library:
        catch()
    _deferring += 1
    try:
        yield requested
    finally:
        _deferring -= 1
        status = _received
        if as_library:
            end()
    if status and not earlier and not _deferring:
        raise Interrupted(_MESSAGE, status)


def leave(status: int) -> None:
    """Ends the process where it is."""
    with contextlib.suppress(OSError):  # Nobody reads it any more.
        os.write(2, f"{_MESSAGE}\n".encode())
    os._exit(status)


def _note(number: int, frame: FrameType | None) -> None:
    global _received
    _received = EXIT_STATUS[signal.Signals(number)]
    _restore_handlers()
    if not _deferring:
        leave(_received)


def _restore_handlers() -> None:
    while _handlers_before:
        number, handler = _handlers_before.popitem()
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
