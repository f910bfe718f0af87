"""A training step on TPUs that are not attached: its memory, communication and time.

`estimate_stage` compiles the actual step of a config with the TPU compiler and reads the result.
`pe_jax.tpu.costs` documents how the time is estimated; the report is in `compile_report.py`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import jax

from pe_jax.attention.forms import PLATFORMS
from pe_jax.configs.training import PretrainingConfig, StageConfig
from pe_jax.console.terminal import say
from pe_jax.data import load_tokenizer
from pe_jax.files import Json
from pe_jax.models import BertConfig, train_flops
from pe_jax.models.config import from_config
from pe_jax.schema import changed
from pe_jax.tasks.pretraining import abstract_arguments, make_program, tokenizer_file
from pe_jax.tpu import costs as tpu_costs
from pe_jax.tpu import hlo
from pe_jax.tpu.topology import Slice
from pe_jax.training.chips import GIB
from pe_jax.training.pytrees import PyTree
from pe_jax.training.step import TrainState


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of one step for a chip.

    Attributes:
      memory: bytes by kind, see `costs.memory`.
      flops: the compiler's count: all operations, the body of a loop once.
      collectives: see `costs.collectives`.
      copied: bytes that are copied asynchronously.
      seconds: by kind of work, see `costs.seconds`.
      parts: the same by what they are spent on, see `costs.parts`.
      mfu: the model's FLOPs over those seconds at the chips' peak.
      unknown_loops: how many loops of unknown trip count `seconds` counts as run once.
    """

    memory: dict[str, int]
    flops: float
    collectives: list[Json]
    copied: int
    seconds: dict[str, float]
    parts: dict[str, float]
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
      topology: name of the slice; chips: how many it has.
      length, rows: of the global batch.
      model_flops: of a step, all chips together.
      costs: None if it does not fit.
      failure: the compiler's message if it does not fit.
      compile_seconds: how long the compilation took.
    """

    topology: str
    chips: int
    length: int
    rows: int
    model_flops: float
    costs: Costs | None
    failure: str
    compile_seconds: float


def estimate_stage(config: PretrainingConfig, stage: StageConfig, chips: Slice) -> Estimate:
    """Compiles the training step of `stage` for `chips` and reads the result.

    One that does not fit is not an error. The batch must divide among the chips, see
    `sharding.check_rows`.
    """
    model = _for_tpu(from_config(config.model, vocab_size=_vocab_size(config)), chips)
    program = make_program(config, chips.mesh, model, steps=1)
    state, batch = abstract_arguments(program, stage)
    flops = train_flops(model, stage.batch_size, stage.length, stage.max_predictions)
    lowered = program.train_step(stage.accumulation).lower(state, batch)
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


def _costs(
    compiled: jax.stages.Compiled,
    state: TrainState,
    batch: PyTree,
    model_flops: float,
    chips: Slice,
) -> Costs:
    text, analysis = compiled.as_text(), compiled.cost_analysis()
    assert text is not None and analysis is not None  # The TPU compiler gives both.
    reading = hlo.read(text)
    seconds = tpu_costs.seconds(reading.work, chips.tpu, chips.shape)
    return Costs(
        memory=tpu_costs.memory(compiled.memory_analysis(), state, batch),
        flops=analysis["flops"],
        collectives=tpu_costs.collectives(reading.work),
        copied=sum(one.times * one.bytes for one in reading.work if one.kind == "copy"),
        seconds=seconds,
        parts=tpu_costs.parts(reading.work, chips.tpu, chips.shape),
        mfu=model_flops / sum(seconds.values()) / (chips.tpu.peak * chips.mesh.size),
        unknown_loops=len(reading.unknown_loops),
    )


def _for_tpu(model: BertConfig, chips: Slice) -> BertConfig:
    """The model with the kernels of these chips, whatever machine compiles it."""
    kind = chips.mesh.devices.flat[0].device_kind.lower()
    return dataclasses.replace(model, platform=kind if kind in PLATFORMS else "tpu")


def _vocab_size(config: PretrainingConfig) -> int:
    """The size of the run's vocabulary, or of the one that it would train."""
    file = tokenizer_file(config)
    return load_tokenizer(file).get_vocab_size() if file else config.data.vocab_size


def largest_batch(
    config: PretrainingConfig, stage: StageConfig, chips: Slice, fits: bool
) -> tuple[int, int]:
    """Rows a chip with which `stage` fits, and slightly more with which it does not.

    Args:
      fits: whether the stage fits as it is.
    """

    def attempt(rows: int) -> bool:
        other = changed(stage, {"batch_size": rows * chips.mesh.size})
        found = estimate_stage(config, other, chips)
        used = f"{found.costs.bytes / GIB:.2f} GiB" if found.costs else "does not fit"
        say(f"Length {stage.length}, {rows:,} rows a chip: {used} ({found.compile_seconds:.0f} s).")
        return found.costs is not None

    unit = math.lcm(8, stage.accumulation)
    return largest(attempt, stage.batch_size // chips.mesh.size, fits, unit)


def largest(attempt: Callable[[int], bool], start: int, fits: bool, unit: int) -> tuple[int, int]:
    """Two sizes: an attempt succeeds with the first, or it is 0, and fails with the second.

    Doubles from `start`, whose success is known (`fits`), until an attempt fails, then bisects at
    multiples of `unit`, down to a `unit` or a sixteenth of the size.
    """
    low, high = (start, 2 * start) if fits else (0, start)
    while low and attempt(high):
        low, high = high, 2 * high
    while high - low > max(unit, low // 16):
        middle = max((low + high) // 2 // unit, low // unit + 1) * unit
        low, high = (middle, high) if attempt(middle) else (low, middle)
    return low, high
