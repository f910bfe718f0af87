"""How do time and memory grow: attention, the training step, metrics by length, sweeps by settings?

Command:  taskset -c 1 python benchmarks/scaling.py [--parts=attention,step,metrics,sweeps]
Hardware: one core of a CPU; may be shared, as processor time is counted.
Time:     20 minutes.

Each row of the printed table has the seconds and MiB of the smallest and the largest size, and the
slopes: of log(time) and log(memory) over log(size), fitted to the upper half of the sizes, beside
those of the formula. Time is the least processor time of a few calls. Memory is that of temporary
arrays by XLA's analysis of the program; of the training step with parameters and optimizer state;
of sweeps the most that the process took beyond what it had before the first one.

- attention: one layer of 2 heads of 64, one row, `auto`, forward and backward, float32.
- step: the pretraining step of BERT-mini on one row, float32, dropout 0.1.
- metrics: of one matrix Φ [L, L], or of the `Toeplitz` ψ [L].
- sweeps: turning points of sinusoids with 32 frequencies over 128 offsets, and monotonicity within
  10 offsets of 16 positions by the general code; two float32 a setting.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _layer import gradients_of_layer
from _step import make_batch, make_step
from absl import app, flags, logging

from pe_jax import encodings, properties

_PARTS = flags.DEFINE_list(
    "parts", ["attention", "step", "metrics", "sweeps"], "Of the table."
)
_ENCODINGS = flags.DEFINE_list(
    "encodings",
    ["none", "learned_relative", "rope", "alibi"],
    "Of attention and of the step.",
)
_LONGEST = flags.DEFINE_integer(
    "longest", 16_384, "Length of attention; the step has a quarter."
)
_MOST = flags.DEFINE_integer("most", 10**6, "Settings of a sweep.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Of each size.")
MIB = 2**20
VOCABULARY = 30_522


class Case(NamedTuple):
    """What is measured at several sizes, with the slopes of time and memory of its formula."""

    name: str
    sizes: list[int]
    measure: Callable[[int], tuple[float, float]]  # Size -> (seconds, bytes).
    time: str
    memory: str


def processor_seconds(call: Callable[[], object]) -> float:
    """Return the least processor time of a few calls; of a single call if that takes 2 seconds."""
    times: list[float] = []
    while len(times) <= _ROUNDS.value and sum(times) < 2:
        start = time.process_time()
        jax.block_until_ready(call())
        times.append(time.process_time() - start)
    return min(times)


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    """Return the temporary memory of a compiled program."""
    analysis = compiled.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def attention(name: str, length: int) -> tuple[float, float]:
    """Measure one layer, forward and backward."""
    compiled, arguments = gradients_of_layer(
        name, "auto", (1, length, 2, 64), "float32"
    )
    return processor_seconds(partial(compiled, *arguments)), temporary_bytes(compiled)


def step(name: str, length: int) -> tuple[float, float]:
    """Measure the training step on one row."""
    model = {
        "size": "mini",
        "position": name,
        "max_length": length,
        "vocab_size": VOCABULARY,
    }
    made = make_step(make_batch(1, length, VOCABULARY), model)
    compiled = made.step.lower(made.state, made.batch).compile()
    analysis = compiled.memory_analysis()
    state = made.state

    def call() -> object:
        nonlocal state  # It is donated.
        state, metrics = compiled(state, made.batch)
        return metrics

    return processor_seconds(
        call
    ), analysis.temp_size_in_bytes + analysis.argument_size_in_bytes


def metric(
    fn: Callable[[jax.Array], object], axes: int, length: int
) -> tuple[float, float]:
    """Measure a metric of a random Φ [L, L], or of a random ψ [L]."""
    x = jax.random.normal(jax.random.key(0), (length,) * axes)
    compiled = jax.jit(fn).lower(x).compile()
    return processor_seconds(partial(compiled, x)), temporary_bytes(compiled)


def turn(setting: dict[str, jax.Array]) -> jax.Array:
    """Return the turning point of one sinusoid."""
    frequencies = setting["scale"] * setting["base"] ** (-jnp.arange(32) / 32)
    return properties.turning_point(properties.psi(frequencies, jnp.arange(128)))


def violation(setting: dict[str, jax.Array]) -> jax.Array:
    """Return the violation of monotonicity of one sinusoid, from its Φ."""
    frequencies = setting["scale"] * setting["base"] ** (-jnp.arange(8) / 8)
    phi = properties.proximity(encodings.sinusoid(jnp.arange(16), frequencies))
    return properties.monotonicity(phi, 10)


def sweep(
    fn: Callable[[dict[str, jax.Array]], jax.Array], count: int
) -> tuple[float, float]:
    """Measure sweeps of a function of two numbers."""
    rng = np.random.default_rng(0)
    bases = (10 ** rng.uniform(1, 6, count)).astype(np.float32)
    settings = {"base": bases, "scale": rng.random(count, np.float32)}
    run = properties.compile_sweep(fn, settings)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(
        0
    )  # What was freed would be taken again without being counted.
    Path("/proc/self/clear_refs").write_text(
        "5"
    )  # From here on the peak is measured anew.
    before = resident("VmRSS")
    seconds = processor_seconds(lambda: run(settings))
    return seconds, resident("VmHWM") - before


def resident(field: str) -> int:
    """Return resident memory of this process in bytes: VmRSS now, VmHWM at most."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{field}:")[2].split()[0])


METRICS: dict[str, tuple[Callable[[jax.Array], object], int, str, str]] = {
    "translation invariance": (properties.translation_invariance, 2, "2", "2"),
    "symmetry": (properties.symmetry, 2, "2", "2"),
    "monotonicity": (properties.monotonicity, 2, "3", "2"),
    "monotonicity, weighted": (
        partial(properties.monotonicity, weighted=True),
        2,
        "3",
        "2",
    ),
    "monotonicity within 50": (
        partial(properties.monotonicity, window=50),
        2,
        "2",
        "2",
    ),
    "share of forward attention": (properties.forward_share, 2, "2", "2"),
    "monotonicity of ψ": (
        lambda x: properties.monotonicity(properties.Toeplitz(psi=x)),
        1,
        "2",
        "1",
    ),
    "turning point of ψ": (properties.turning_point, 1, "1", "1"),
}


def cases() -> Iterator[Case]:
    """Yield what the flags ask for."""
    doubled = lambda first, last: [2**n for n in range(first, last.bit_length())]
    if "attention" in _PARTS.value:
        lengths = doubled(7, _LONGEST.value)
        for name in _ENCODINGS.value:
            yield Case(
                f"attention, `{name}`", lengths, partial(attention, name), "2", "1"
            )
    if "step" in _PARTS.value:
        lengths = doubled(7, _LONGEST.value // 4)
        for name in _ENCODINGS.value:
            yield Case(
                f"BERT-mini, `{name}`",
                lengths,
                partial(step, name),
                "1 to 2",
                "up to 1",
            )
    if "metrics" in _PARTS.value:
        for name, (fn, axes, *slopes) in METRICS.items():
            lengths = doubled(
                7, 2048 if slopes[0] == "3" else 4096 if axes == 2 else 16_384
            )
            yield Case(name, lengths, partial(metric, fn, axes), *slopes)
    if "sweeps" in _PARTS.value:
        counts = [10**n for n in range(1, len(str(_MOST.value)))]
        yield Case("sweep of turning points", counts, partial(sweep, turn), "1", "0")
        yield Case("sweep of monotonicity", counts, partial(sweep, violation), "1", "0")


def slope(sizes: list[int], values: list[float]) -> float:
    """Return the slope of log(values) over log(sizes), fitted to the upper half."""
    half = len(sizes) // 2
    return float(
        np.polyfit(np.log(sizes[half:]), np.log(np.maximum(values[half:], 1)), 1)[0]
    )


def main(_) -> None:
    print("| what | from, to | seconds | slope, formula | MiB | slope, formula |")
    print("|---|---|---|---|---|---|")
    for case in cases():
        measured = []
        for size in case.sizes:
            measured.append(case.measure(size))
            logging.info("%s at %d: %.3g s, %d bytes", case.name, size, *measured[-1])
        seconds, memory = (list(values) for values in zip(*measured, strict=True))
        slopes = (
            slope(case.sizes, [1e9 * x for x in seconds]),
            slope(case.sizes, memory),
        )
        print(
            f"| {case.name} | {case.sizes[0]:,}, {case.sizes[-1]:,} "
            f"| {seconds[0]:.3g}, {seconds[-1]:.3g} | {slopes[0]:.2f}, {case.time} "
            f"| {memory[0] / MIB:.3g}, {memory[-1] / MIB:.3g} | {slopes[1]:.2f}, {case.memory} |",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
