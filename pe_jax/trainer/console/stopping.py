"""Stopping on request: SIGTERM, which schedulers send before they preempt a machine, or Ctrl-C.

A command catches both from its first line to its last. Outside of training they end it at once;
while it trains they wait for the end of a step, and a save that has begun is finished. The exit
status says that the same command resumes. A second signal ends it at once.

At once means that the process ends where it is. An exception raised there instead would be lost in
a callback or a destructor, or would end the process with a stack dump inside an extension module
that is being imported. Nothing has to be cleaned up: files appear whole or not at all.

Python runs handlers of signals in its main thread, which may be compiling for minutes. Another
thread answers meanwhile: it says that the command will stop, or ends it.

A command ignores SIGHUP, which a terminal sends when it is closed: the run continues.

Nothing is imported here that takes time: signals may come while the rest is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from pe_jax.common.errors import Interrupted

# 75 is EX_TEMPFAIL of sysexits.h, "try again"; 130 is what shells return for Ctrl-C.
EXIT_STATUS = {signal.SIGTERM: 75, signal.SIGINT: 130}

_MESSAGE = "Stopped. The same command starts again from what is saved."
_ANNOUNCEMENT = (
    "Stopping after the current step and a save. A step that is being compiled comes first. A "
    "second signal ends the command at once, without a save."
)
_PATIENCE = 0.3  # Seconds for the main thread to answer a signal.
_TWICE = 1.0  # Seconds: signals that come closer together are one.

# Empty unless ours are there.
_handlers_before: dict[signal.Signals, Callable | int | None] = {}
_released: set[signal.Signals] = set()
_received = 0  # The exit status that the first signal asks for,
_first = 0.0  # and when it came.
_announced = False
_deferring = 0  # Within how many contexts of `deferred` the process is.
_noted = threading.Event()  # The main thread has answered the first signal.
_leaving = threading.Lock()
_pipe: tuple[int, int] | None = None  # Python writes the numbers of signals to it.
_hangup_before: Callable | int | None = None  # None unless `catch` ignores SIGHUP.


def catch() -> None:
    """Let SIGTERM and Ctrl-C end the process from now on; the first line of a command."""
    global _hangup_before
    if not _install():
        return
    _start_answering()
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it already.
        _hangup_before = signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _install() -> bool:
    """Install the handlers; False if they are there, or this is no main thread."""
    global _received, _announced
    if _handlers_before or threading.current_thread() is not threading.main_thread():
        return False  # Python allows it in the main thread only.
    _received, _announced = 0, False
    _noted.clear()
    for number in EXIT_STATUS.keys() - _released:
        _handlers_before[number] = signal.signal(number, _note)
    return True


def _start_answering() -> None:
    """Start the thread that answers signals which the main thread does not answer soon."""
    global _pipe
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)  # As Python requires.
    earlier = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    if earlier != -1:  # Another library uses it, such as an event loop.
        signal.set_wakeup_fd(earlier)
        os.close(read_end)
        os.close(write_end)
        return
    _pipe = read_end, write_end
    # The thread blocks both signals, so that they reach the main thread wherever that blocks none.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_STATUS)
    threading.Thread(
        target=_answer, args=(read_end,), name="signals", daemon=True
    ).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _answer(read_end: int) -> None:
    """Answer signals until the other end of the pipe is closed."""
    first = 0.0
    while numbers := os.read(read_end, 1):
        number = numbers[0]
        if number not in EXIT_STATUS or number in _released:
            continue
        status = EXIT_STATUS[signal.Signals(number)]
        if first:
            if _is_second(first):
                leave(status)
            continue
        first = time.monotonic()
        if _noted.wait(_PATIENCE):  # The main thread answers.
            continue
        if not _deferring:
            leave(status)
        _announce()
    os.close(read_end)


def _is_second(first: float) -> bool:
    """True if a signal now is another one than that of time `first`. `timeout` and programs that
    start others send the same signal twice."""
    return time.monotonic() - first >= _TWICE


def _announce() -> None:
    """Print that the command will stop, once."""
    global _announced
    if not _announced:
        _announced = True
        _print(_ANNOUNCEMENT)


def _print(line: str) -> None:
    with contextlib.suppress(OSError):  # Nobody reads it any more.
        os.write(2, f"{line}\n".encode())


def _stop_answering() -> None:
    global _pipe
    if _pipe:
        signal.set_wakeup_fd(-1)
        os.close(_pipe[1])  # The thread reads the end of the pipe.
        _pipe = None


def _forget_pipe() -> None:
    """In a forked process, which would write its signals to the pipe of this one."""
    global _pipe
    if _pipe:
        _pipe = None
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_pipe)


def release(number: signal.Signals) -> None:
    """Leave a signal from now on to a handler that has replaced the one of `catch`."""
    _released.add(number)
    _handlers_before.pop(number, None)


def end() -> None:
    """Give signals the effect that they had before `catch`."""
    global _received, _hangup_before
    _received = 0
    _restore_handlers()
    _stop_answering()
    if _hangup_before is not None:
        signal.signal(signal.SIGHUP, _hangup_before)
        _hangup_before = None


def done() -> None:
    """End a command: nothing is left to stop but the interpreter, so both signals are ignored."""
    for number in _handlers_before:
        signal.signal(number, signal.SIG_IGN)


def requested(step: int = 0) -> int:
    """Return the exit status that a signal asks for, 0 if none came; the same after every step."""
    del step
    return _received


@contextlib.contextmanager
def deferred() -> Iterator[Callable[..., int]]:
    """Let signals wait for the end of the context, whether the command catches them or not.

    Yields:
      `requested`.

    Raises:
      Interrupted: at the end, if a signal came and nothing else is raised.
    """
    global _deferring
    earlier = _received
    # In a library the caller's handlers return afterwards.
    as_library = not _handlers_before and not _received
    if as_library:
        _install()
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
    """End the process where it is; return if another thread does so already."""
    if _leaving.acquire(blocking=False):
        _print(_MESSAGE)
        os._exit(status)


def _note(number: int, frame: FrameType | None) -> None:
    global _received, _first
    status = EXIT_STATUS[signal.Signals(number)]
    if _received:
        if _is_second(_first):
            leave(status)
        return
    _received, _first = status, time.monotonic()
    _noted.set()
    if not _pipe:
        # In a library; a second signal then has the effect that it had before.
        _restore_handlers()
    if not _deferring:
        leave(status)
    elif _pipe:
        _announce()


def _restore_handlers() -> None:
    while _handlers_before:
        number, handler = _handlers_before.popitem()
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
