"""A training step compiled for TPUs that are not attached: whether it fits, and bounds of its time.

`estimate_stage` compiles the actual step of a config with the TPU compiler; the report is in
`compile_for.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import hlo
import jax
import tpu_costs
from step_shapes import (
    AnyConfig,
    abstract_arguments,
    expected_vocab_size,
    make_mesh,
    make_program,
)
from tpu_slices import GIB, Slice

from pe_jax.attention.implementations import kernel_in_auto
from pe_jax.common.files import Json
from pe_jax.common.schema import changed
from pe_jax.trainer.configs.pretraining import StageConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.pytrees import PyTree
from pe_jax.trainer.training.step import TrainState
from pe_jax.trainer.training.workdir import ResolvedConfig


class Estimate(NamedTuple):
    """One stage of a config, compiled for a slice.

    Attributes:
      topology: name of the slice; chips: how many it has.
      length, rows: of the global batch, that of all seeds.
      model_flops: of a step, all chips together.
      failure: the compiler's message if the step does not fit, else empty.
      memory: bytes on a chip by kind, see the function `memory`.
      flops: the compiler's count for a chip: all operations, the body of a loop once.
      bounds: lower bounds of the seconds of a step: the model's `products` at the peak; state and
        batch, read from and written to `memory` once; all that the program sends through the
        `links`, if all of their bandwidths are known.
      program: what was compiled, if it fits, as do `memory`, `flops` and `bounds`.
    """

    topology: str
    chips: int
    length: int
    rows: int
    model_flops: float
    compile_seconds: float
    failure: str = ""
    memory: dict[str, int] = {}
    flops: float = 0.0
    bounds: dict[str, float] = {}
    program: jax.stages.Compiled | None = None

    @property
    def fits(self) -> bool:
        return not self.failure

    @property
    def bytes(self) -> int:
        return sum(self.memory.values())

    @property
    def mfu_bound(self) -> float:
        """The model's FLOPs at the peak over the largest bound of the step's time."""
        return self.bounds["products"] / max(self.bounds.values())

    def as_json(self) -> Json:
        numbers = self._asdict()
        del numbers["program"]
        return numbers | {
            "fits": self.fits,
            "mfu_bound": self.mfu_bound if self.fits else None,
        }


def estimate_stage(
    resolved: ResolvedConfig[AnyConfig], stage: StageConfig, chips: Slice
) -> Estimate:
    """Compile the training step of `stage` for `chips`; one that does not fit is not an error.

    The batch must divide among the chips, see `sharding.check_rows`.
    """
    config = resolved.config
    model = dataclasses.replace(resolved.model, vocab_size=expected_vocab_size(config))
    mesh = make_mesh(config, chips.mesh)
    program, flops = make_program(config, mesh, model, stage)
    state, batch, constants = abstract_arguments(config, program, stage)
    with _kernel_of(chips):
        lowered = program.train_step(stage.accumulation).lower(state, batch, *constants)
    start = time.perf_counter()
    compiled, failure = None, ""
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        failure = (
            str(error).strip().splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ")
        )
    estimate = Estimate(
        chips.name,
        chips.mesh.size,
        stage.length,
        len(program.seeds) * stage.batch_size,
        model_flops=flops,
        compile_seconds=time.perf_counter() - start,
        failure=failure,
    )
    if compiled is None:
        return estimate
    analysis, stats = compiled.cost_analysis(), compiled.memory_analysis()
    assert analysis is not None and stats is not None  # The TPU compiler gives both.
    work = hlo.read(compiled.as_text() or "").work
    moved = stats.argument_size_in_bytes + stats.output_size_in_bytes
    bounds = {
        "products": flops / chips.mesh.size / chips.tpu.peak,
        "memory": moved / chips.tpu.hbm_bandwidth,
    }
    if chips.slices == 1 or chips.tpu.network_bandwidth:
        bounds["links"] = tpu_costs.link_seconds(work, chips)
    return estimate._replace(
        memory=memory(stats, state, batch, constants),
        flops=analysis["flops"],
        bounds=bounds,
        program=compiled,
    )


def memory(
    stats: jax.stages.CompiledMemoryStats,
    state: TrainState,
    batch: PyTree,
    constants: tuple[PyTree, ...] = (),
) -> dict[str, int]:
    """Return the bytes on each chip by kind; the program needs their sum.

    Args:
      state, batch, constants: shapes with shardings of the program's arguments.
    """
    parameters, optimizer = shard_bytes(state.params), shard_bytes(state.opt_state)
    rows, teacher = shard_bytes(batch), shard_bytes(constants)
    arguments = (
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
    )
    return {
        "parameters": parameters,
        "optimizer state": optimizer,
        **({"teacher": teacher} if constants else {}),
        "batch": rows,
        "temporaries": stats.temp_size_in_bytes,
        "generated code": stats.generated_code_size_in_bytes,
        "padding, metrics": arguments - parameters - optimizer - teacher - rows,
    }


def shard_bytes(tree: PyTree) -> int:
    """Return the bytes of `tree`, shapes with shardings, on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _kernel_of(chips: Slice) -> contextlib.AbstractContextManager[None]:
    """Return the context in which `"auto"` takes the TPU kernel, as in a run on these chips whose
    `check_kernel` passes. TPU v4 has no rotation of rows by different numbers of lanes, which the
    kernel is built on."""
    if chips.mesh.devices.flat[0].device_kind.lower() == "tpu v4":
        return contextlib.nullcontext()
    return kernel_in_auto()


def largest_batch(
    resolved: ResolvedConfig[AnyConfig], stage: StageConfig, chips: Slice, fits: bool
) -> tuple[int, int]:
    """Return rows a chip (in fine-tuning, of each seed) with which `stage` fits, and slightly more
    with which it does not; `fits` says whether it does as it is."""
    sharing = make_mesh(resolved.config, chips.mesh).shape[sharding.AXIS]

    def attempt(rows: int) -> bool:
        other = changed(stage, {"batch_size": rows * sharing})
        estimate = estimate_stage(resolved, other, chips)
        used = f"{estimate.bytes / GIB:.2f} GiB" if estimate.fits else "does not fit"
        log(
            f"Length {stage.length}, {rows:,} rows a chip: {used} "
            f"({estimate.compile_seconds:.0f} s)."
        )
        return estimate.fits

    unit = math.lcm(8, stage.accumulation)
    return largest(attempt, stage.batch_size // sharing, fits, unit)


def largest(
    attempt: Callable[[int], bool], start: int, fits: bool, unit: int
) -> tuple[int, int]:
    """Return two sizes: an attempt succeeds with the first, or it is 0, and fails with the second.

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
