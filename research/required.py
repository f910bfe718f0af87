"""Flags that a command of a study cannot do without."""

from __future__ import annotations

from collections.abc import Mapping

from absl import app


def required(given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the values of flags, by name.

    Raises:
      app.UsageError: if some have none; the message names them.
    """
    missing = [f"--{name}" for name, value in given.items() if not value]
    if missing:
        raise app.UsageError(f"Required, and missing: {', '.join(missing)}.")
    return {name: str(value) for name, value in given.items()}
