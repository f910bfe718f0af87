"""Standard streams: results, and what happens where nobody reads them or they cannot be written."""

import io
import os
import sys
from typing import IO


def prepare() -> None:
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
    """Print results to standard output, at once. A reader that leaves, as `head`, is no error; a
    full disk ends the command with one line."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        raise SystemExit(f"error: standard output was not written: {error.strerror}.") from error


def discard(stream: IO[str]) -> None:
    """Send what a stream still holds, and all that follows, nowhere: it cannot be written."""
    os.dup2(_null(), stream.fileno())


def _null() -> int:
    return os.open(os.devnull, os.O_RDWR)
