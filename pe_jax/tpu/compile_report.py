"""The report of a config compiled for a TPU slice: every stage, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pe_jax.chips import GIB
from pe_jax.console.markdown import table
from pe_jax.console.terminal import log
from pe_jax.files import write_text
from pe_jax.tasks.run import model_size
from pe_jax.tasks.step_shapes import AnyConfig, make_mesh, resolve, stages
from pe_jax.tpu.estimate import Estimate, estimate_stage, largest_batch
from pe_jax.tpu.topology import Slice, make_slice
from pe_jax.training import sharding

_BOUNDS = {
    "products": "the model's products, at the peak",
    "memory": "state and batch, through memory once",
    "links": "gradients in bfloat16, through the links",
}
_METHOD = """\
Nothing has run. The bounds of the time are by the chips' published rates; a step takes longer than
the largest of them. MFU is the model's FLOPs (matrix products only, three times the forward pass)
over the time and the chips' bfloat16 peak. benchmarks/tpu_waterfall.py reads an estimate of the
time from the compiled program."""


def compile_for(
    config: AnyConfig,
    topology: str,
    *,
    find_largest: bool = False,
    out: Path | None = None,
) -> Iterator[str]:
    """Yield the report on all stages of `config`, each as soon as it is compiled for `topology`.

    Args:
      topology: such as v5e:4x4.
      find_largest: also searches for the largest batch of each stage.
      out: JSON file for the numbers of the stages so far.

    Raises:
      ValueError: for a topology that does not exist, or a config that cannot run there.
    """
    config = resolve(config)
    chips = make_slice(topology)
    mesh = make_mesh(config, chips.mesh)
    for stage in stages(config):
        sharding.check_rows("batch_size", stage.batch_size, mesh, stage.accumulation)
    model, size = config.model, model_size(config.model)
    devices = f"{chips.mesh.size} {chips.tpu.kind} ({topology})"
    yield f"# {size}, {model.encoding().name}, {model.dtype} on {devices}\n"
    numbers = []
    for stage in stages(config):
        log(f"Compiling length {stage.length} for {devices}; a large model takes minutes.")
        estimate = estimate_stage(config, stage, chips)
        log(f"Compiled in {estimate.compile_seconds:.0f} s.")
        row = estimate.as_json()
        lines = _stage(estimate, chips)
        if find_largest:
            log("Searching for the largest batch: several more compilations.")
            most, more = largest_batch(config, stage, chips, fits=estimate.fits)
            row["largest_batch"] = {"fits": most, "does_not_fit": more}
            lines += ["", f"Largest batch: {most:,} rows a chip fit, {more:,} do not."]
        numbers.append(row)
        if out:
            write_text(out, json.dumps(numbers, indent=2) + "\n")
        yield "\n".join([*lines, ""])
    yield _METHOD


def _stage(estimate: Estimate, chips: Slice) -> list[str]:
    room = f"{chips.tpu.hbm / GIB:.2f} GiB a chip"
    rows = f"{estimate.rows:,} rows, {estimate.rows // estimate.chips:,} a chip"
    lines = [f"## Length {estimate.length}: {rows}", ""]
    if not estimate.fits:
        return [*lines, f"**Does not fit** in {room}. The compiler: {estimate.failure}"]
    least = max(estimate.bounds.values())
    lines.append(
        f"Fits: {estimate.bytes / GIB:.2f} of {room}. At least {1e3 * least:.2f} ms a step, "
        f"{estimate.rows / least:,.0f} sequences a second at most, MFU at most "
        f"{estimate.mfu_bound:.1%}."
    )
    sizes = estimate.memory | {"sum": estimate.bytes}
    memory = [[kind, f"{size / 2**20:,.1f}"] for kind, size in sizes.items()]
    bounds = [[_BOUNDS[name], f"{1e3 * seconds:.2f}"] for name, seconds in estimate.bounds.items()]
    counts = {
        "model's": estimate.model_flops / estimate.chips,
        "compiler's count, loops once": estimate.flops,
    }
    flops = [
        [name, f"{count / 1e9:,.1f} G", f"{count * estimate.chips / 1e9:,.1f} G"]
        for name, count in counts.items()
    ]
    lines += ["", *table(["memory of a chip", "MiB"], memory)]
    lines += ["", *table(["time of a step, at least", "ms"], bounds)]
    return [*lines, "", *table(["FLOPs of a step", "a chip", "all chips"], flops)]
