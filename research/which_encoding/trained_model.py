"""What a trained model of the comparison costs, and its picture."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax

from pe_jax.configs.properties import PropertiesConfig
from pe_jax.properties import picture
from pe_jax.properties.encoding_measures import mirrored, one_layer, position_vectors
from pe_jax.properties.pictures import Picture, from_proximities
from pe_jax.reports.property_report.logits import attention_among_copies
from pe_jax.reports.property_report.subjects import from_run
from pe_jax.tasks import pretraining
from pe_jax.training import sharding


def step_ratio(run: pretraining.Run, rounds: int = 5) -> float:
    """Return the time of a step of the last stage over that of `none`: the median of rounds."""
    host_batch = next(iter(run.stages[-1].batches(0)))
    batch = sharding.to_global(host_batch, run.program.batch_sharding)
    model = dataclasses.replace(run.program.model, position="none")
    none = pretraining.make_program(run.config, run.program.mesh, model, 10**6)
    steps: list[Callable] = [none.train_step(), run.stages[-1].train_step]
    states = [none.init(), run.program.init()]
    ratios = []
    for _ in range(rounds + 1):  # The first compiles.
        times = []
        for number, step in enumerate(steps):
            start = time.perf_counter()
            states[number], metrics = step(states[number], batch)
            jax.block_until_ready(metrics)
            times.append(time.perf_counter() - start)
        ratios.append(times[1] / times[0])
    return statistics.median(ratios[1:])


def trained_picture(folder: Path) -> Picture:
    """Return the picture of the first layer of a run: of P·Pᵀ where the encoding adds vectors to
    the input, else of the logits of inputs that repeat one of 50 words, mean over words."""
    subject = from_run(folder)
    if position_vectors(subject.encoding, subject.bert.hidden_size):
        return picture(subject.encoding, subject.position, lengths=[64])
    encoding, params = one_layer(subject.encoding, subject.position)
    phi = attention_among_copies(subject, PropertiesConfig(length=64, words=50), "logits")
    return from_proximities(encoding, params, "logits", {64: mirrored(encoding, phi)})
