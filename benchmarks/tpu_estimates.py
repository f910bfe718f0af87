"""What would BERT's training step cost on TPUs, by encoding? Compiled for them, nothing run.

    python benchmarks/tpu_estimates.py --out=estimates.jsonl [--encodings=...] [--lengths=128,512]
        [--rows=64,16] [--topologies=v5e:2x4,v5e:16x16,v6e:2x4,v4:2x2x2] [--size=base]
        [--scan_layers]

Each compilation takes about a minute; what is done is a line of --out, and the same command goes
on from there (--nocompile prints what is done). A table for each slice, by length: estimated
milliseconds of a step (by the method of tpu_waterfall.py, docs/tpu-estimates.md), the share
of them that comes from bounds instead of the compiler's estimate, the ratio to learned_absolute,
MFU, and the GiB of a chip, "no" where a step does not fit. bfloat16, AdamW, dropout as in
configs/pretraining.py, --rows a chip.
"""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from absl import app, flags
from compiled_step import estimate_stage
from tpu_slices import GIB, make_slice
from tpu_waterfall import waterfall

from pe_jax.common.markdown import raw_table
from pe_jax.common.values import split_names
from pe_jax.encodings.parser import PAPER
from pe_jax.models.config import ModelChanges
from pe_jax.trainer.configs.pretraining import PretrainingConfig, PretrainingStageConfig
from pe_jax.trainer.console.terminal import Progress, log
from pe_jax.trainer.training.workdir import ResolvedConfig

_ENCODINGS = flags.DEFINE_string("encodings", ",".join(PAPER), "Position encodings.")
_LENGTHS = flags.DEFINE_list("lengths", ["128", "512"], "Sequence lengths.")
_ROWS = flags.DEFINE_list("rows", ["64", "16"], "Rows a chip, for each length.")
_TOPOLOGIES = flags.DEFINE_list(
    "topologies", ["v5e:2x4", "v5e:16x16", "v6e:2x4", "v4:2x2x2"], "TPU slices."
)
_SIZE = flags.DEFINE_string("size", "base", "Of the model.")
_SCAN_LAYERS = flags.DEFINE_bool("scan_layers", False, "One program for all layers.")
_COMPILE = flags.DEFINE_bool(
    "compile", True, "What is not done yet; or print what is done."
)
_OUT = flags.DEFINE_string(
    "out", None, "JSON lines, one for each compilation.", required=True
)

REFERENCE = "learned_absolute"


def compile_one(key: dict) -> dict:
    """The costs of a step, as numbers."""
    chips = make_slice(key["topology"])
    changes = ModelChanges(
        size=key["size"],
        position=key["encoding"],
        dtype="bfloat16",
        scan_layers=key.get("scan_layers", False),
        max_length=max(512, key["length"]),
    )
    config = PretrainingConfig(model=changes)
    stage = PretrainingStageConfig(
        length=key["length"],
        batch_size=key["rows"] * chips.mesh.size,
        max_predictions=math.ceil(config.data.mask_rate * key["length"]),
    )
    estimate = estimate_stage(ResolvedConfig(config, changes.resolve()), stage, chips)
    times = waterfall(estimate, chips)._asdict() if estimate.fits else {}
    return estimate.as_json() | times


COLUMNS = ("ms", "bounds", "ratio", "MFU", "GiB")


def summary(done: dict, key: dict) -> list[str]:
    """Of a row of the table, what belongs to a length: `COLUMNS`."""
    if name(key) not in done:
        return [""] * len(COLUMNS)
    numbers = done[name(key)]
    if not numbers["fits"]:
        return ["–", "–", "–", "–", "no"]
    time = sum(numbers["seconds"].values())
    reference = done.get(name({**key, "encoding": REFERENCE}), {}).get("seconds")
    return [
        f"{1e3 * time:.2f}",
        f"{1 - numbers['seconds']['estimated'] / time:.0%}",
        f"{time / sum(reference.values()):.2f}" if reference else "–",
        f"{numbers['mfu']:.1%}",
        f"{sum(numbers['memory'].values()) / GIB:.2f}",
    ]


def name(key: dict) -> str:
    return json.dumps(key, sort_keys=True)


def main(_) -> None:
    out = Path(_OUT.value).expanduser()
    if len(_ROWS.value) != len(_LENGTHS.value):
        raise app.UsageError("--rows takes a number for each of --lengths.")
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = out.read_text().splitlines() if out.exists() else []
    done = {name(line["key"]): line["found"] for line in map(json.loads, lines)}
    lengths = list(zip(map(int, _LENGTHS.value), map(int, _ROWS.value), strict=True))
    positions = split_names(_ENCODINGS.value)
    make = lambda topology, encoding, length, rows: {
        "size": _SIZE.value,
        "topology": topology,
        "length": length,
        "rows": rows,
        "encoding": encoding,
        **({"scan_layers": True} if _SCAN_LAYERS.value else {}),
    }
    keys = [
        make(topology, encoding, *shape)
        for topology in _TOPOLOGIES.value
        for shape in lengths
        for encoding in positions
    ]
    left = [key for key in keys if name(key) not in done] if _COMPILE.value else []
    progress = Progress(len(keys), len(keys) - len(left), unit="compilation")
    for key in left:
        log(f"{key['encoding']}, length {key['length']}, {key['topology']}")
        found = done[name(key)] = compile_one(key)
        with out.open("a") as file:
            file.write(json.dumps({"key": key, "found": found}) + "\n")
        progress.advance()
        log(f"compiled in {found['compile_seconds']:.0f} s")
    progress.close()
    header = [
        "encoding",
        *(f"{length}: {what}" for length, _ in lengths for what in COLUMNS),
    ]
    shapes = ", ".join(f"{rows} rows of {length}" for length, rows in lengths)
    for topology in _TOPOLOGIES.value:
        print(f"\n{_SIZE.value} on {topology}, a chip has {shapes}:\n")
        rows = [
            [
                encoding,
                *(
                    cell
                    for at in lengths
                    for cell in summary(done, make(topology, encoding, *at))
                ),
            ]
            for encoding in positions
        ]
        print("\n".join(raw_table(header, rows)))


if __name__ == "__main__":
    app.run(main)
