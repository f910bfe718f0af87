"""What error messages share: near names for one that is not known, and the error of a stop."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean tiny?`, or nothing where no known name is near."""
    near = difflib.get_close_matches(name, known, n=3)
    return f" Did you mean {' or '.join(near)}?" if near else ""


class Interrupted(Exception):
    """A run that was asked to stop, and has saved.

    Attributes:
      status: what the process exits with.
    """

    def __init__(self, step: int, status: int):
        super().__init__(f"Stopped and saved at step {step:,}. The same command resumes it.")
        self.status = status
