"""Worker processes that make batches: no more than the machine has cores, and none that outlives
its run."""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.connection
import os
import threading

import grain

from pe_jax import cpu
from pe_jax.console.terminal import say


def in_workers(dataset: grain.IterDataset, workers: int) -> grain.IterDataset:
    """The same batches in the same order, made by worker processes; by threads if `workers` is 0.

    More workers than this machine has cores make nothing faster: a message says how many there are.
    """
    if not workers:
        return dataset
    options = grain.MultiprocessingOptions(num_workers=_at_most_the_cores(workers))
    return dataset.mp_prefetch(options, worker_init_fn=_end_with_the_run)


@functools.cache  # One message a process.
def _at_most_the_cores(workers: int) -> int:
    cores = cpu.cores()
    if workers > cores:
        say(
            f"config.data.workers={workers}, and this process may use {cores} core(s): {cores} "
            "worker(s) make batches."
        )
    return min(workers, cores)


def _end_with_the_run(index: int, count: int) -> None:
    """Ends this worker once the process that started it has ended, however that ended: killed, it
    cannot tell its workers."""
    del index, count
    run = multiprocessing.parent_process()
    assert run is not None

    def wait() -> None:
        multiprocessing.connection.wait([run.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
