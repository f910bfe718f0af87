"""Standard streams: results on standard output, messages and progress bars on standard error.

Where nobody reads a stream, or it cannot be written, a run goes on.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import time
from typing import IO

from tqdm import tqdm

from pe_jax.common.markdown import WIDTH, printable

# Short names of the scalars that a run writes.
_SHORT = {
    "masked_lm": "MLM",
    "next_sentence": "NSP",
    "examples_per_second": "inputs/s",
    "accuracy": "acc",
}

_quiet = False


def prepare_streams() -> None:
    """Open the standard streams that are closed, and let the others write every character.

    The next file would get the number of a closed stream, and with it what libraries print. In a
    locale without UTF-8 other characters are printed as escapes.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(_null(), number)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show(text: str) -> None:
    """Print results to standard output, at once. A reader that leaves, as `head` or a terminal that
    is closed, is no error; a full disk ends the command with one line."""
    if _quiet:
        return
    try:
        print(printable(text, keep="\n\t"), flush=True)
    except OSError as error:
        nobody_reads = _is_unread(sys.stdout, error)
        discard(sys.stdout)
        if nobody_reads:
            return
        raise SystemExit(
            f"error: standard output was not written: {error.strerror}."
        ) from error


def _is_unread(stream: IO[str], error: OSError) -> bool:
    """True if nobody can read a stream any more: a pipe without reader, or a closed terminal."""
    if error.errno == errno.EPIPE:
        return True
    # A terminal that was closed is a device still, but `isatty` is False.
    return error.errno == errno.EIO and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)


def discard(stream: IO[str]) -> None:
    """Send what a stream still holds, and all that follows, nowhere: it cannot be written."""
    os.dup2(_null(), stream.fileno())


def _null() -> int:
    return os.open(os.devnull, os.O_RDWR)


def be_quiet() -> None:
    """Print only errors from now on: the first of several hosts prints for all."""
    global _quiet
    _quiet = True


def log(line: str) -> None:
    """Print a line to standard error, above the progress bar if there is one."""
    if _quiet:
        return
    try:
        tqdm.write(printable(line, keep="\n\t"), file=sys.stderr)
    except OSError:  # A run goes on where nobody reads its messages.
        discard(sys.stderr)


def log_field(name: str, what: str) -> None:
    """Print a line of the introduction of a job: a name, then its value."""
    log(f"{name:10}{what}")


def counted(number: int, noun: str) -> str:
    """Return a number of things, such as "1 layer" or "1,200 layers"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Progress:
    """A bar with rate and remaining time on a terminal, plain lines elsewhere.

    Args:
      total, done: how many there are, and how many were done before.
      unit, job: name of what is counted, singular; and of the job, in front of each line.
      lines: if not on a terminal, print progress about every tenth of the total, but at most once
        in so many seconds. None, for a job that reports numbers of its own, prints nothing.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        *,
        unit: str = "step",
        job: str = "",
        lines: float | None = None,
    ):
        terminal = sys.stderr.isatty() and not _quiet
        self._bar = tqdm(
            total=total,
            initial=done,
            unit=unit,
            desc=job or None,
            disable=not terminal,
            smoothing=0.1,
            leave=None,  # A bar below another one disappears when it is done.
        )
        self._total = total
        self._done = done
        self._unit = f"{unit}es" if unit.endswith("ch") else f"{unit}s"
        self._job = f"{job}: " if job else ""
        self._lines = None if terminal else lines
        self._start = self._last = time.perf_counter()
        self._printed = 0

    def advance(self, count: int = 1) -> None:
        self._bar.update(count)
        self._done += count
        tenth = 10 * self._done // max(self._total, 1)
        if self._lines is None or tenth <= self._printed:
            return
        now = time.perf_counter()
        if now - self._last >= self._lines:
            self._printed = tenth
            self._last = now
            numbers = f"{self._done:,} of {self._total:,} {self._unit}"
            log(f"{self._job}{numbers}, {now - self._start:.1f} s")

    def report(self, step: int, what: str, scalars: dict[str, float]) -> None:
        """Print scalars in one line; the rest, should they not fit, in lines below."""
        digits = len(str(self._total))
        line = f"step {step:>{digits}}/{self._total}  {what:8}"
        for name, value in scalars.items():
            for long, short in _SHORT.items():
                name = name.replace(long, short)
            name = name.replace("_", " ")
            number = f"{name} {value:.3f}" if abs(value) < 1 else f"{name} {value:.4g}"
            if len(line) + 2 + len(number) > WIDTH:
                log(line)
                line = " " * 9
            line += f"  {number}"
        log(line)

    def close(self) -> None:
        self._bar.close()
