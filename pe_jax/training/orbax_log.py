"""A save or a restore that fails is reported once, by `Checkpoints`.

Orbax writes and reads in many threads and tasks. Each logs the exception with its traceback, and
then raises it in the caller's thread as well or is never asked for it; those that finish later find
their event loop closed, and those that never finish fail once more when they are collected. That
would fill the screen around the line that matters, of a full disk or a damaged checkpoint.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import orbax.checkpoint as ocp

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_ORBAX = Path(ocp.__file__).parent
_NAMES = ("orbax", "OCDBT")  # Of its code, and of the database that it reads.
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
    if record.name == "asyncio":  # Of a task or a future, after the call that it was part of.
        named = any(name in record.getMessage() for name in _NAMES)
        return not (named or (record.exc_info and _passed_orbax(record.exc_info[2])))
    return not (_is_of_orbax(record.pathname) and record.funcName in _LOG_AND_RAISE)


def _came_too_late(failed: UnraisableHookArgs) -> bool:
    """Whether it is of a coroutine of Orbax that was left unfinished, or of a thread that no Python
    code runs in, which told an event loop that had ended."""
    if inspect.iscoroutine(failed.object):
        return _is_of_orbax(failed.object.cr_code.co_filename)
    error, own = failed.exc_value, failed.object is None
    return own and isinstance(error, RuntimeError) and str(error) == "Event loop is closed"


def _passed_orbax(raised: TracebackType | None) -> bool:
    return any(_is_of_orbax(f.f_code.co_filename) for f, _ in traceback.walk_tb(raised))


def _is_of_orbax(path: str) -> bool:
    return _ORBAX in Path(path).parents


def _all_is_shown() -> bool:
    return logging.getLogger("absl").isEnabledFor(logging.DEBUG)
