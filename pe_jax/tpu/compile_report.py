"""The report of a config compiled for a TPU slice: every stage, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from pe_jax.configs.training import PretrainingConfig
from pe_jax.console.markdown import table
from pe_jax.console.terminal import say
from pe_jax.models.config import from_config
from pe_jax.tasks.pretraining import resolve
from pe_jax.tasks.train import model_size
from pe_jax.tpu.stage_estimate import Costs, Estimate, estimate_stage, largest_batch
from pe_jax.tpu.topology import Slice, make_slice
from pe_jax.training import sharding
from pe_jax.training.chips import GIB

_METHOD = """\
Nothing has run: times are estimates. The compiler's own are its cycles over the chip's clock. The
bounds are lower bounds by published rates: kernels by max(FLOPs / peak, bytes / memory bandwidth),
other instructions by their bytes, collectives by the bytes that a ring sends. What overlaps with
the computation counts as hidden. MFU is the model's FLOPs (matrix products only, three times the
forward pass) over the time and the chips' bfloat16 peak."""
_SOURCES = {
    "estimated": "compiler's estimate",
    "kernels": "custom kernels, bound",
    "unestimated": "other instructions, bound",
    "collectives": "collectives, bound",
}


def compile_for(
    config: PretrainingConfig, topology: str, *, find_largest: bool = False, out: Path | None = None
) -> Iterator[str]:
    """The report on all stages of `config`, compiled for `topology`; trains nothing.

    Yields:
      What is known, part by part: each stage as soon as it is compiled. `out` then has it too.

    Args:
      topology: such as v5e:4x4.
      find_largest: also searches for the largest batch of each stage.
      out: JSON file for the numbers.

    Raises:
      ValueError: for a topology that does not exist, or a config that cannot run there.
    """
    config = resolve(config)
    stages = list(config.stages.values())
    chips = make_slice(topology)
    for stage in stages:
        sharding.check_rows(stage.batch_size, chips.mesh, stage.accumulation)
    model, size = config.model, model_size(from_config(config.model))
    devices = f"{chips.mesh.size} {chips.tpu.kind} ({topology})"
    yield f"# {size}, {model.position}, {model.dtype} on {devices}\n"
    numbers = []
    for stage in stages:
        say(f"Compiling length {stage.length} for {devices}; a large model takes minutes.")
        found = estimate_stage(config, stage, chips)
        say(f"Compiled in {found.compile_seconds:.0f} s.")
        row = dataclasses.asdict(found)
        lines = _stage(found, chips)
        if find_largest:
            say("Searching for the largest batch: several more compilations.")
            most, more = largest_batch(config, stage, chips, fits=found.costs is not None)
            row["largest_batch"] = {"fits": most, "does_not_fit": more}
            lines += ["", f"Largest batch: {most:,} rows a chip fit, {more:,} do not."]
        numbers.append(row)
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(numbers, indent=2) + "\n")
        yield "\n".join([*lines, ""])
    yield _METHOD


def _stage(found: Estimate, chips: Slice) -> list[str]:
    room = f"{chips.tpu.hbm / GIB:.2f} GiB a chip"
    lines = [f"## Length {found.length}: {found.rows:,} rows, {found.rows // found.chips:,} a chip"]
    costs = found.costs
    if costs:
        seconds = costs.step_seconds
        lines += [
            "",
            f"Fits: {costs.bytes / GIB:.2f} of {room}. About {1e3 * seconds:.2f} ms a step, "
            f"{found.rows / seconds:,.0f} sequences a second, MFU {costs.mfu:.1%}.",
        ]
    else:
        lines += ["", f"**Does not fit** in {room}. The compiler: {found.failure}"]
    if costs:
        tables = _memory(costs), _time(costs), _parts(found, costs, chips), _moved(costs)
        for part in (*tables, _flops(found, costs)):
            lines += ["", *part]
    return lines


def _memory(costs: Costs) -> list[str]:
    sizes = costs.memory | {"sum": costs.bytes}
    rows = [[kind, f"{size / 2**20:,.1f}"] for kind, size in sizes.items()]
    return table(["memory of a chip", "MiB"], rows)


def _time(costs: Costs) -> list[str]:
    whole = costs.step_seconds
    named = {_SOURCES[source]: seconds for source, seconds in costs.seconds.items()}
    rows = [
        [name, f"{1e3 * seconds:.2f}", f"{seconds / whole:.1%}"]
        for name, seconds in (named | {"step": whole}).items()
    ]
    lines = table(["time of a step", "ms", "share"], rows)
    if costs.unknown_loops:
        lines += ["", f"{costs.unknown_loops} loops of unknown length were counted as run once."]
    return lines


def _parts(found: Estimate, costs: Costs, chips: Slice) -> list[str]:
    """What the step's time is spent on, and the least that it could be."""
    least = found.model_flops / found.chips / chips.tpu.peak
    whole = costs.step_seconds
    rows = [
        [name, f"{1e3 * seconds:.2f}", f"{seconds / whole:.1%}"]
        for name, seconds in costs.parts.items()
    ]
    rows.append(
        ["the model's products at the chip's peak", f"{1e3 * least:.2f}", f"{costs.mfu:.1%}"]
    )
    return table(["a step's time is spent on", "ms", "share"], rows)


def _moved(costs: Costs) -> list[str]:
    megabytes = lambda size: f"{size / 1e6:,.1f}"
    rows = []
    for one in costs.collectives:
        name = one["name"] + ", overlapped" * one["overlapped"]
        rows.append([name, f"{one['count']:,}", megabytes(one["bytes"])])
    copies = ["copies within a chip, overlapped", "", megabytes(costs.copied)]
    return table(["moved in a step", "count", "MB"], [*rows, copies])


def _flops(found: Estimate, costs: Costs) -> list[str]:
    by_chip = {
        "model's": found.model_flops / found.chips,
        "compiler's count, loops once": costs.flops,
    }
    giga = lambda flops: f"{flops / 1e9:,.1f} G"
    rows = [[name, giga(flops), giga(flops * found.chips)] for name, flops in by_chip.items()]
    return table(["FLOPs of a step", "a chip", "all chips"], rows)
