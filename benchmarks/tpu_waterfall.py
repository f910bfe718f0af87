"""What does a training step's time on TPUs go to? Compiled for them, nothing run.

    python benchmarks/tpu_waterfall.py --config=configs/pretrain_base.py --topology=v5e:4x4
        [--config.KEY=VALUE]

Compiles each stage as `compile_for.py` does, and reads the optimized program: the
compiler's own estimate in cycles, lower bounds for what it does not estimate, and what the chips
exchange. docs/tpu-estimates.md explains the method. Needs the extra tpu; a large model takes
minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hlo
import tpu_costs
from absl import flags
from compiled_step import Estimate, estimate_stage
from tpu_slices import GIB, Slice, make_slice

from pe_jax.common.files import Json
from pe_jax.common.markdown import raw_table
from pe_jax.common.schema import from_values
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.console.config_files import define_config
from pe_jax.trainer.tasks.text_training import resolve

# Flags of their own: the tests import this module beside train.py, which has a --config too.
_FLAGS = flags.FlagValues()
_CONFIG = define_config(_FLAGS, "A config of pretraining, by name or as a file.")
_TOPOLOGY = flags.DEFINE_string(
    "topology", "v5e:4x4", "A TPU slice.", flag_values=_FLAGS
)

_SOURCES = {
    "estimated": "compiler's estimate",
    "kernels": "custom kernels, bound",
    "unestimated": "other instructions, bound",
    "collectives": "collectives, bound",
}
_METHOD = """\
Nothing has run: times are estimates. The compiler's own are its cycles over the chip's clock. The
bounds are lower bounds by published rates: kernels by max(FLOPs / peak, bytes / memory bandwidth),
other instructions by their bytes, collectives by the bytes that a ring sends. What overlaps with
the computation counts as hidden. MFU is the model's FLOPs (matrix products only, three times the
forward pass) over the time and the chips' bfloat16 peak."""


class Waterfall(NamedTuple):
    """The time of a step.

    Attributes:
      seconds: by kind of work, see `tpu_costs.seconds`.
      parts: the same by what they are spent on, see `tpu_costs.parts`.
      collectives: see `tpu_costs.collectives`.
      copied: bytes that are copied asynchronously.
      mfu: the model's FLOPs over those seconds at the chips' peak.
      unknown_loops: how many loops of unknown trip count `seconds` counts as run once.
    """

    seconds: dict[str, float]
    parts: dict[str, float]
    collectives: list[Json]
    copied: int
    mfu: float
    unknown_loops: int

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


def waterfall(estimate: Estimate, chips: Slice) -> Waterfall:
    """Return the time of a step that fits, from its compiled program."""
    assert estimate.program is not None
    reading = hlo.read(estimate.program.as_text() or "")
    seconds = tpu_costs.seconds(reading.work, chips)
    least = estimate.model_flops / (chips.tpu.peak * chips.mesh.size)
    return Waterfall(
        seconds=seconds,
        parts=tpu_costs.parts(reading.work, chips),
        collectives=tpu_costs.collectives(reading.work),
        copied=sum(one.times * one.bytes for one in reading.work if one.kind == "copy"),
        mfu=least / sum(seconds.values()),
        unknown_loops=len(reading.unknown_loops),
    )


def report(estimate: Estimate, chips: Slice) -> str:
    """Return the tables of one stage."""
    rows = f"{estimate.rows:,} rows, {estimate.rows // estimate.chips:,} a chip"
    lines = [f"## Length {estimate.length}: {rows}", ""]
    if not estimate.fits:
        return "\n".join([*lines, f"Does not fit: {estimate.failure}", ""])
    times = waterfall(estimate, chips)
    step = times.step_seconds
    lines += [
        f"{estimate.bytes / GIB:.2f} GiB a chip. About {1e3 * step:.2f} ms a step, "
        f"{estimate.rows / step:,.0f} sequences a second, MFU {times.mfu:.1%}.",
        "",
    ]

    def share(name: str, seconds: float) -> list[str]:
        return [name, f"{1e3 * seconds:.2f}", f"{seconds / step:.1%}"]

    sources = [
        share(_SOURCES[name], seconds) for name, seconds in times.seconds.items()
    ]
    lines += raw_table(
        ["time of a step", "ms", "share"], [*sources, share("step", step)]
    )
    if times.unknown_loops:
        lines += [
            "",
            f"{times.unknown_loops} loops of unknown length were counted as run once.",
        ]
    parts = [share(name, seconds) for name, seconds in times.parts.items()]
    parts.append(share("the model's products at the chip's peak", times.mfu * step))
    lines += ["", *raw_table(["a step's time is spent on", "ms", "share"], parts)]
    moved = [
        [one["name"] + ", overlapped" * one["overlapped"], f"{one['count']:,}",
         f"{one['bytes'] / 1e6:,.1f}"]
        for one in times.collectives
    ]  # fmt: skip
    moved.append(["copies within a chip, overlapped", "", f"{times.copied / 1e6:,.1f}"])
    return "\n".join(
        [*lines, "", *raw_table(["moved in a step", "count", "MB"], moved), ""]
    )


def main() -> None:
    resolved = resolve(from_values(_CONFIG.value, PretrainingConfig))
    chips = make_slice(_TOPOLOGY.value)
    if chips.untimed_reason:  # Before the minutes of compiling.
        raise ValueError(
            f"There is no estimate of times: {chips.untimed_reason}. Use "
            "benchmarks/compile_for.py, which prints memory and lower bounds."
        )
    for stage in resolved.config.stages.values():
        print(report(estimate_stage(resolved, stage, chips), chips), flush=True)
    print(_METHOD)


if __name__ == "__main__":
    _FLAGS(sys.argv)
    main()
