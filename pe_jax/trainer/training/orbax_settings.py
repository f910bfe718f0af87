"""Orbax's settings for the checkpoints of a run, and its log without what it also raises."""

from __future__ import annotations

import functools
import logging

from orbax.checkpoint import v1 as ocp


def orbax_settings() -> ocp.Context:
    """Return the context in which checkpoints are written and read."""
    _silence_orbax()
    settings = ocp.Context()
    settings.checkpointables.registry = ocp.handlers.local_registry().add(
        ocp.handlers.JsonHandler, checkpointable_name="facts"
    )
    settings.pytree.loading.partial_load = (
        True  # The parameters without the rest of a state.
    )
    # Each device with a copy writes a slice; slicing small arrays takes longer than writing them.
    settings.array.saving.min_slice_bytes_for_replica_parallel = 2**20
    return settings


@functools.cache  # Once a process.
def _silence_orbax() -> None:
    """Hide what Orbax logs of exceptions that it raises as well, unless --verbosity=1."""
    if logging.getLogger("absl").isEnabledFor(logging.DEBUG):
        return

    def is_news(record: logging.LogRecord) -> bool:
        traceback = record.exc_info and record.exc_info[2]
        return not traceback or "orbax" not in traceback.tb_frame.f_code.co_filename

    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(is_news)
