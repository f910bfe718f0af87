"""A training step on TPUs that are not here: does it fit, what does it move, how long does it take?

`estimate_stage` compiles the real step of a config with the TPU compiler and reads the result. How
the time is estimated is said in `pe_jax.tpu.costs`; the report is `compile_report.py`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from pe_jax.attention.forms import PLATFORMS
from pe_jax.console.terminal import say
from pe_jax.data import load_tokenizer
from pe_jax.models import BertConfig, train_flops
from pe_jax.tasks.model_config import model_config
from pe_jax.tasks.pretraining import make_program, tokenizer_file
from pe_jax.tpu import costs as tpu_costs
from pe_jax.tpu import hlo
from pe_jax.tpu.topology import Slice
from pe_jax.training.chips import GIB


@dataclasses.dataclass(frozen=True)
class Costs:
    """What one step costs a chip.

    Attributes:
      memory: bytes by kind, see `costs.memory`.
      flops: the compiler's count: all operations, the body of a loop once.
      collectives: see `costs.collectives`.
      copied: bytes that are copied beside the computation.
      seconds: by what they go to, see `costs.seconds`.
      mfu: the model's FLOPs over those seconds at the chips' peak.
      unknown_loops: how many loops `seconds` takes as run once, for want of the number.
    """

    memory: dict[str, int]
    flops: float
    collectives: list[dict[str, Any]]
    copied: int
    seconds: dict[str, float]
    mfu: float
    unknown_loops: int

    @property
    def bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


@dataclasses.dataclass(frozen=True)
class Estimate:
    """One stage of a config, compiled for a slice.

    Attributes:
      chips: of the slice.
      length, rows: of the global batch.
      model_flops: of a step, all chips together.
      costs: None where it does not fit.
      failure: what the compiler says where it does not fit.
      compile_seconds: what the compilation took here.
    """

    topology: str
    chips: int
    length: int
    rows: int
    model_flops: float
    costs: Costs | None
    failure: str
    compile_seconds: float


def estimate_stage(config: ConfigDict, stage: ConfigDict, chips: Slice) -> Estimate:
    """Compiles the training step of `stage` for `chips` and reads what the compiler made of it.

    One that does not fit is no error. The batch divides among the chips, see `sharding.check_rows`.
    """
    model = _for_tpu(model_config(config, vocab_size=_vocab_size(config)), chips)
    program = make_program(config, chips.mesh, model, steps=1)
    state, batch = program.abstract_state(), program.abstract_batch(stage)
    flops = train_flops(model, stage.batch_size, stage.length, stage.max_predictions)
    lowered = program.train_step(stage).lower(state, batch)
    start = time.perf_counter()
    costs, failure = None, ""
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        failure = str(error).strip().splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ")
    took = time.perf_counter() - start
    if not failure:
        costs = _costs(compiled, state, batch, flops, chips)
    return Estimate(
        chips.name,
        chips.mesh.size,
        stage.length,
        stage.batch_size,
        model_flops=flops,
        costs=costs,
        failure=failure,
        compile_seconds=took,
    )


def _costs(compiled: Any, state: Any, batch: Any, model_flops: float, chips: Slice) -> Costs:
    reading = hlo.read(compiled.as_text())
    seconds = tpu_costs.seconds(reading.work, chips.tpu, chips.shape)
    return Costs(
        memory=tpu_costs.memory(compiled.memory_analysis(), state, batch),
        flops=compiled.cost_analysis()["flops"],
        collectives=tpu_costs.collectives(reading.work),
        copied=sum(one.times * one.bytes for one in reading.work if one.kind == "copy"),
        seconds=seconds,
        mfu=model_flops / sum(seconds.values()) / (chips.tpu.peak * chips.mesh.size),
        unknown_loops=len(reading.unknown_loops),
    )


def _for_tpu(model: BertConfig, chips: Slice) -> BertConfig:
    """The model as it runs on these chips, whatever machine compiles it."""
    kind = chips.mesh.devices.flat[0].device_kind.lower()
    return dataclasses.replace(model, platform=kind if kind in PLATFORMS else "tpu")


def _vocab_size(config: ConfigDict) -> int:
    """Of the vocabulary that the run would have, or of the one that would be trained."""
    file = tokenizer_file(config)
    return load_tokenizer(file).get_vocab_size() if file else config.data.vocab_size


def largest_batch(
    config: ConfigDict, stage: ConfigDict, chips: Slice, fits: bool
) -> tuple[int, int]:
    """Rows a chip with which `stage` fits, and a few more with which it does not.

    Args:
      fits: whether the stage fits as it is.
    """

    def attempt(rows: int) -> bool:
        other = stage.copy_and_resolve_references()
        other.batch_size = rows * chips.mesh.size
        found = estimate_stage(config, other, chips)
        used = f"{found.costs.bytes / GIB:.2f} GiB" if found.costs else "does not fit"
        say(f"Length {stage.length}, {rows:,} rows a chip: {used} ({found.compile_seconds:.0f} s).")
        return found.costs is not None

    unit = math.lcm(8, stage.accumulation)
    return largest(attempt, stage.batch_size // chips.mesh.size, fits, unit)


def largest(attempt: Callable[[int], bool], start: int, fits: bool, unit: int) -> tuple[int, int]:
    """Two sizes: an attempt succeeds with the first, or it is 0, and fails with the second.

    Doubles from `start`, which is known to succeed or not (`fits`), until an attempt fails, then
    halves the gap at multiples of `unit`, down to a `unit` or a sixteenth of the size.
    """
    low, high = (start, 2 * start) if fits else (0, start)
    while low and attempt(high):
        low, high = high, 2 * high
    while high - low > max(unit, low // 16):
        middle = max((low + high) // 2 // unit, low // unit + 1) * unit
        low, high = (middle, high) if attempt(middle) else (low, middle)
    return low, high
