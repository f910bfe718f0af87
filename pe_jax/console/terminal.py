"""Messages and progress bars, on standard error."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

_quiet = False


def be_quiet() -> None:
    """From now on this process prints only errors: the first of several hosts prints for all."""
    global _quiet
    _quiet = True


def say(line: str) -> None:
    """Prints a line to standard error, above the progress bar if there is one.

    Results go to standard output instead.
    """
    if not _quiet:
        tqdm.write(line, file=sys.stderr)


class Progress:
    """A bar with rate and remaining time on a terminal, plain lines elsewhere.

    Args:
      total: how many there are; done: how many were done before.
      unit: plural name of what is counted.
      lines: if not on a terminal, print progress about every tenth of the total, but at most once
        in so many seconds. None, for a job that reports numbers of its own, prints nothing.
    """

    def __init__(
        self, total: int, done: int = 0, *, unit: str = "steps", lines: float | None = None
    ):
        terminal = sys.stderr.isatty() and not _quiet
        self._bar = tqdm(
            total=total,
            initial=done,
            unit=f" {unit}",
            disable=not terminal,
            smoothing=0.1,
            leave=None,  # A bar below another one disappears when it is done.
        )
        self._total, self._done, self._unit = total, done, unit
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
            self._printed, self._last = tenth, now
            say(f"{self._done:,} of {self._total:,} {self._unit}, {now - self._start:.1f} s")

    def report(self, step: int, what: str, scalars: dict[str, float]) -> None:
        """Prints one line of scalars."""
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in scalars.items())
        say(f"step {step:>{len(str(self._total))}}/{self._total}  {what}  {numbers}")

    def close(self) -> None:
        self._bar.close()
