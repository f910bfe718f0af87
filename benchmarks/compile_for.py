"""Does a config's training step fit on a TPU slice? Compiled for it, nothing run.

    python benchmarks/compile_for.py --config=configs/pretrain_base.py --topology=v5e:4x4
        [--config.KEY=VALUE] [--tokens=N] [--price=DOLLARS] [--largest_batch] [--out=FILE.json]

Reports memory, FLOPs, lower bounds and an estimate of the time of every stage, and the chip-hours
of all stages (docs/tpu.md). Needs the extra tpu, but no TPU and no data; a large model takes
minutes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from absl import flags
from compiled_step import Estimate, estimate_stage, largest_batch
from step_shapes import AnyConfig, make_mesh, resolve, stages
from tpu_slices import GIB, Slice, make_slice
from tpu_waterfall import Waterfall, waterfall

from pe_jax.common.files import Json, to_path, write_text
from pe_jax.common.markdown import raw_table
from pe_jax.common.schema import Config, from_values
from pe_jax.trainer.configs.all_tasks import TRAINING
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.configs.pretraining import EncoderTrainingConfig
from pe_jax.trainer.console import command
from pe_jax.trainer.console.config_files import define_config
from pe_jax.trainer.console.terminal import log, show
from pe_jax.trainer.data import TOKENIZED
from pe_jax.trainer.tasks.run import model_size
from pe_jax.trainer.training import sharding

_FLAGS = flags.FlagValues()
_CONFIG = define_config(_FLAGS, "A config of train.py, by name or as a file.")
_TOPOLOGY = flags.DEFINE_string(
    "topology", "v5e:4x4", "A TPU slice.", flag_values=_FLAGS
)
_LARGEST_BATCH = flags.DEFINE_bool(
    "largest_batch",
    False,
    "Find the largest batch by several compilations.",
    flag_values=_FLAGS,
)
_TOKENS = flags.DEFINE_integer(
    "tokens",
    None,
    "Tokens of the text, for stages in epochs; default: of config.data.source=tokenized:FOLDER.",
    lower_bound=1,
    flag_values=_FLAGS,
)
_PRICE = flags.DEFINE_float(
    "price", None, "Dollars of a chip-hour.", lower_bound=0.0, flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
    "out", None, "JSON file for the results.", flag_values=_FLAGS
)

_BOUNDS = {
    "products": "the model's products, at the peak",
    "memory": "state and batch, through memory once",
    "links": "what the program sends, through the links",
}
_LOW_MFU = 0.3
_METHOD = """\
Nothing has run: all times are estimates. The bounds are by the chips' published rates; a step takes
longer than the largest of them. MFU is the model's FLOPs (matrix products only, three times the
forward pass) over the time and the chips' bfloat16 peak. benchmarks/tpu_waterfall.py shows what the
estimated time is spent on."""


def compile_for(
    config: AnyConfig,
    topology: str,
    *,
    find_largest: bool = False,
    tokens: int | None = None,
    price: float | None = None,
    out: Path | None = None,
) -> Iterator[str]:
    """Yield the report on all stages of `config`, each as soon as it is compiled for `topology`.

    Args:
      topology: such as v5e:4x4.
      find_largest: also searches for the largest batch of each stage.
      tokens: of the text, for stages in epochs; None reads them of a `tokenized:` source.
      price: dollars of a chip-hour; None leaves dollars out.
      out: JSON file for the numbers of the stages so far.

    Raises:
      ValueError: for a topology that does not exist, or a config that cannot run there.
    """
    resolved = resolve(config)
    config, model = resolved
    chips = make_slice(topology)
    mesh = make_mesh(config, chips.mesh)
    for stage in stages(config):
        sharding.check_rows("batch_size", stage.batch_size, mesh, stage.accumulation)
    size = model_size(model)
    devices = f"{chips.mesh.size} {chips.tpu.kind} ({topology})"
    yield f"# {size}, {model.encoding().name}, {model.dtype} on {devices}\n"
    if chips.tpu.devices > 1:
        yield f"A chip is {chips.tpu.devices} devices of JAX. A chip is one of them below.\n"
    numbers: list[Json] = []
    seconds: list[float | None] = []
    for stage in stages(config):
        log(
            f"Compiling length {stage.length} for {devices}; a large model takes minutes."
        )
        estimate = estimate_stage(resolved, stage, chips)
        log(f"Compiled in {estimate.compile_seconds:.0f} s.")
        row = estimate.as_json()
        lines = _stage(estimate, chips)
        seconds.append(None)
        if estimate.fits and not chips.untimed_reason:
            times = waterfall(estimate, chips)
            seconds[-1] = times.step_seconds
            row |= {"step_seconds": times.step_seconds, "mfu": times.mfu}
            lines += ["", *_estimated(estimate, times)]
        if find_largest:
            log("Searching for the largest batch: several more compilations.")
            most, more = largest_batch(resolved, stage, chips, fits=estimate.fits)
            row["largest_batch"] = {"fits": most, "does_not_fit": more}
            lines += ["", f"Largest batch: {most:,} rows a chip fit, {more:,} do not."]
        numbers.append(row)
        if out:
            write_text(out, json.dumps(numbers, indent=2) + "\n")
        yield "\n".join([*lines, ""])
    if chips.untimed_reason:
        yield f"No times: {chips.untimed_reason}.\n"
    elif not isinstance(config, FinetuningConfig):
        tokens = tokens or _tokens_of(config)
        yield "\n".join([*_cost(config, seconds, chips.mesh.size, tokens, price), ""])
    yield _METHOD


def _estimated(estimate: Estimate, times: Waterfall) -> list[str]:
    """Return the line of the estimated time, and a warning where chips would mostly wait."""
    step = times.step_seconds
    lines = [
        f"Estimated: {1e3 * step:.2f} ms a step, {estimate.rows / step:,.0f} sequences a second, "
        f"MFU {times.mfu:.1%}."
    ]
    if times.mfu < _LOW_MFU:
        tokens = estimate.rows * estimate.length // estimate.chips
        lines += [
            "",
            f"**Warning: an MFU below {_LOW_MFU:.0%}.** A step has {tokens:,} tokens a chip, and "
            "the exchange of gradients and the optimizer's update take as long as with more. Use "
            "fewer chips, or raise batch_size.",
        ]
    return lines


def _tokens_of(config: EncoderTrainingConfig) -> int | None:
    """Return the tokens of the text of `config` if it is a folder of tokenized text, here."""
    source = config.data.source
    if not source.startswith(TOKENIZED):
        return None
    about = Path(source.removeprefix(TOKENIZED)) / "about.json"
    if not about.is_file():
        return None
    return int(json.loads(about.read_text("utf-8"))["tokens"])


def _cost(
    config: EncoderTrainingConfig,
    seconds: list[float | None],
    chips: int,
    tokens: int | None,
    price: float | None,
) -> list[str]:
    """Return the table of the chip-hours of all stages.

    Args:
      seconds: of a step of each stage; None where it does not fit.
      tokens: of the text; None where they are not known.
    """
    rows = []
    total = 0.0
    for (name, stage), step_seconds in zip(config.stages.items(), seconds, strict=True):
        steps = stage.steps
        if not steps and tokens:
            steps = math.ceil(stage.epochs * tokens / stage.length / stage.batch_size)
        if not steps:
            return [
                f"Chip-hours: {name} takes {stage.epochs:g} epochs, of which the number of steps "
                "depends on the text. Give --tokens=N (`about.json` of a prepared folder has it)."
            ]
        if step_seconds is None:
            return [f"Chip-hours: {name} does not fit."]
        hours = steps * step_seconds / 3600
        total += chips * hours
        rows.append([name, f"{steps:,}", f"{hours:,.2f}", f"{chips * hours:,.1f}"])
    rows.append(["all", "", f"{total / chips:,.2f}", f"{total:,.1f}"])
    table = raw_table(["stage", "steps", "hours", "chip-hours"], rows)
    lines = [f"## All stages: {total:,.1f} chip-hours", "", *table, ""]
    if price is not None:
        lines.append(f"{price * total:,.2f} dollars at {price:g} a chip-hour.")
    lines.append(
        "By the estimates above; without compiling, evaluation and checkpoints."
    )
    return lines


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
    bounds = [
        [_BOUNDS[name], f"{1e3 * seconds:.2f}"]
        for name, seconds in estimate.bounds.items()
    ]
    counts = {
        "model's": estimate.model_flops / estimate.chips,
        "compiler's count, loops once": estimate.flops,
    }
    flops = [
        [name, f"{count / 1e9:,.1f} G", f"{count * estimate.chips / 1e9:,.1f} G"]
        for name, count in counts.items()
    ]
    lines += ["", *raw_table(["memory of a chip", "MiB"], memory)]
    lines += ["", *raw_table(["time of a step, at least", "ms"], bounds)]
    return [*lines, "", *raw_table(["FLOPs of a step", "a chip", "all chips"], flops)]


def run() -> None:
    if _CONFIG.value is None:
        raise ValueError("--config is required; --help lists the available configs.")
    config: Config = from_values(_CONFIG.value, TRAINING)
    assert isinstance(config, AnyConfig)
    out = to_path(_OUT.value) if _OUT.value else None
    sections = compile_for(
        config,
        _TOPOLOGY.value,
        find_largest=_LARGEST_BATCH.value,
        tokens=_TOKENS.value,
        price=_PRICE.value,
        out=out,
    )
    for section in sections:
        show(section)


if __name__ == "__main__":
    command.main(run, _FLAGS, __doc__, "train.py")
