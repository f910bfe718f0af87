"""Worker processes that make batches."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import re
import threading
from collections.abc import Iterable, Iterator

import grain
import numpy as np

from pe_jax.common import cpu


def in_workers(
    dataset: grain.IterDataset, workers: int
) -> Iterable[dict[str, np.ndarray]]:
    """Make the same batches in the same order in worker processes; without workers, threads.

    Raises:
      ChildProcessError: while they are read, if a worker process is killed.
    """
    if not workers:
        return dataset
    options = grain.MultiprocessingOptions(num_workers=min(workers, cpu.cores()))
    return _received(dataset.mp_prefetch(options, worker_init_fn=_end_with_parent))


def _received(dataset: grain.IterDataset) -> Iterator[dict[str, np.ndarray]]:
    """Yield the batches of worker processes."""
    try:
        with _safe_path():
            batches = iter(dataset)
            first = next(batches)  # Starts the processes.
        yield first
        yield from batches
    except RuntimeError as error:
        if "terminated unexpectedly" not in str(error):  # An error within a worker.
            raise
        found = re.search(r"exit code (-?\d+)", str(error))
        code = found[1] if found else "unknown"
        raise ChildProcessError(
            f"A process that makes batches was killed (exit code {code}), often because memory ran "
            "out. Lower config.data.workers. The same command resumes."
        ) from error


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Start processes that do not search the working directory, where a `json.py` would run."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _end_with_parent(index: int, count: int) -> None:
    """End this worker once the process that started it has ended, even if it was killed."""
    del index, count
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
