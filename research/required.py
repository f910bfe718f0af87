"""Flags that a command of a study cannot do without."""

from __future__ import annotations

from absl import app, flags


def required(*holders: flags.FlagHolder[str | None]) -> list[str]:
    """Return the values of flags. absl's own `required` accepts an empty one, such as that of a
    shell variable that is not set.

    Raises:
      app.UsageError: if some have none; the message names them.
    """
    missing = [f"--{holder.name}" for holder in holders if not holder.value]
    if missing:
        raise app.UsageError(f"Required, and missing: {', '.join(missing)}.")
    return [str(holder.value) for holder in holders]
