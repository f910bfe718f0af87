"""A side of `pytorch_step.py` as a process that trains when told to, and sleeps otherwise."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Advance = Callable[
    [int], float
]  # Takes that many training steps; the loss of the last of them.


def serve(
    prepare: Callable[[dict, dict[str, np.ndarray]], tuple[Advance, dict[str, Any]]],
) -> None:
    """Answers the parent until it closes the pipe, a line of JSON for a line of JSON.

    The job is the only argument: the side's options, the model's sizes, threads, and the file of
    the batch. The first line out is what `prepare(job, batch)` says of the side, with the loss of
    its first step; every number in is answered with the seconds a step of that many steps.
    """
    job = json.loads(sys.argv[1])
    # Whatever a library prints must not come between the parent's lines.
    out, sys.stdout = sys.stdout, sys.stderr
    with np.load(job["batch"]) as file:
        batch = dict(file)
    start = time.perf_counter()
    advance, about = prepare(job, batch)
    first_loss = advance(1)  # Compiles.
    about.update(
        first_loss=first_loss, seconds_to_first_step=time.perf_counter() - start
    )
    print(json.dumps(about), file=out, flush=True)
    for line in sys.stdin:
        steps = json.loads(line)
        advance(1)  # Another side had the caches; not timed.
        start = time.perf_counter()
        last_loss = advance(steps)
        seconds = (time.perf_counter() - start) / steps
        print(
            json.dumps({"seconds": seconds, "last_loss": last_loss}),
            file=out,
            flush=True,
        )
