"""Values of the flags of a study's commands, checked."""

from __future__ import annotations

from collections.abc import Sequence

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


def chosen(holder: flags.FlagHolder[list[str]], accepted: Sequence[str]) -> list[str]:
    """Return the names that a flag gives, or all accepted ones if it gives none.

    Raises:
      app.UsageError: if the study does not have one of them; the message lists those that it has.
    """
    unknown = [name for name in holder.value if name not in accepted]
    if unknown:
        raise app.UsageError(
            f"--{holder.name} has {', '.join(unknown)}; accepted: {', '.join(accepted)}."
        )
    return holder.value or list(accepted)
