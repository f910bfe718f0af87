"""A run of a study in its own process: run_one.py FOLDER NAME [CORE...]

`FOLDER` is that of the study. Without cores the run may use all of them. Signals stop it as they
stop `train.py`, and so does the end of its standard input: the study holds that open, and is gone
then, however it ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # The repository.

from pe_jax.trainer.console import stopping

if __name__ == "__main__":
    stopping.catch()

import os
import signal
import threading

from research.reproduction.process import execute_run


def _stop_with_the_study() -> None:
    def wait() -> None:
        while os.read(
            sys.stdin.fileno(), 1
        ):  # Without Python's lock, which it needs at its end.
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    _stop_with_the_study()
    folder, name, *cores = sys.argv[1:]
    if cores:
        os.sched_setaffinity(0, map(int, cores))  # Before JAX counts them.
    execute_run(Path(folder), name)
    stopping.done()
