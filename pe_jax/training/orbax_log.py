"""A save that fails is reported once, by the error that `Checkpoints` raises.

Orbax writes in many threads and tasks. Each logs the exception with its traceback, and then raises
it in the caller's thread as well or is never asked for it; those that finish later find their event
loop closed. Where the disk is full, that would fill the screen before the line that matters.
"""

from __future__ import annotations

import functools
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import orbax.checkpoint as ocp

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

# Functions of Orbax that log what they raise.
_LOG_AND_RAISE = ("run", "_thread_func", "wait_until_finished")


@functools.cache  # Once a process.
def quieten() -> None:
    """Leaves out of the log what is raised as well; --verbosity=1 shows all."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_is_news)
    before = sys.unraisablehook

    def hook(failed: UnraisableHookArgs) -> None:
        if not _came_too_late(failed) or _all_is_shown():
            before(failed)

    sys.unraisablehook = hook


def _is_news(record: logging.LogRecord) -> bool:
    if record.exc_info is None or _all_is_shown():
        return True
    if record.name == "asyncio":  # A task or a future, of which the message says whose it is.
        return not ("never retrieved" in record.msg and "orbax" in record.getMessage())
    inside = Path(ocp.__file__).parent in Path(record.pathname).parents
    return not (inside and record.funcName in _LOG_AND_RAISE)


def _came_too_late(failed: UnraisableHookArgs) -> bool:
    """Whether a thread that no Python code runs in told an event loop that had ended."""
    error, own = failed.exc_value, failed.object is None
    return own and isinstance(error, RuntimeError) and str(error) == "Event loop is closed"


def _all_is_shown() -> bool:
    return logging.getLogger("absl").isEnabledFor(logging.DEBUG)
