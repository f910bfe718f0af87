"""What would attention of one layer cost on a TPU, by encoding? Compiled for it, nothing run.

    python benchmarks/tpu_layers.py [--encodings=none,rope] [--length=512] [--rows=16] [--chip=v5e]
        [--out=FILE.json]

Estimated milliseconds of attention forward and backward, without projections, 12 heads of 64 in
bfloat16 on one chip, by the method of docs/tpu-estimates.md, and their ratio to the first encoding.
Needs the extra tpu. A minute for each encoding. With --out the milliseconds are in a file, and
encodings that are there are not compiled again: docs/tpu_layers.json is what docs/catalogue.md
shows.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hlo
import jax
import jax.numpy as jnp
import tpu_costs
from _layer import layer_gradients
from absl import app, flags
from jax.sharding import NamedSharding, PartitionSpec
from tpu_slices import Slice, make_slice

from pe_jax import encodings
from pe_jax.attention.implementations import kernel_in_auto
from pe_jax.common.files import write_text
from pe_jax.common.markdown import raw_table
from pe_jax.common.values import split_names
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.training import sharding

_ENCODINGS = flags.DEFINE_string(
    "encodings", "none,rope", "Position encodings of one axis, the first for ratios."
)
_LENGTH = flags.DEFINE_integer("length", 512, "Queries and keys.")
_ROWS = flags.DEFINE_integer("rows", 16, "Of the batch.")
_CHIP = flags.DEFINE_string("chip", "v5e", "See `TPUS` in tpu_slices.py.")
_OUT = flags.DEFINE_string("out", None, "JSON file of milliseconds, by encoding.")

HEADS, SIZE = 12, 64


def seconds_of_layer(
    name: str, rows: int, length: int, chips: Slice
) -> dict[str, float]:
    """Return the seconds of attention with an encoding by kind of work, see `tpu_costs.seconds`.

    Args:
      chips: a single chip.
    """
    encoding = encodings.from_name(
        name,
        hidden_size=HEADS * SIZE,
        head_size=SIZE,
        num_heads=HEADS,
        max_length=length,
    )
    here = NamedSharding(chips.mesh, PartitionSpec())
    params = jax.eval_shape(encoding.init, jax.random.key(0))
    qkv = jax.ShapeDtypeStruct((3, rows, length, HEADS, SIZE), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((rows, length, HEADS * SIZE), jnp.bfloat16)
    kernel = jax.ShapeDtypeStruct((HEADS * SIZE, HEADS, SIZE), jnp.float32)
    shapes = (qkv, params, x, (kernel, kernel))
    qkv, params, x, kernels = sharding.abstract(shapes, here)
    layer = inspect.unwrap(layer_gradients(encoding, "auto"))
    with kernel_in_auto(), jax.sharding.use_abstract_mesh(chips.mesh.abstract_mesh):
        jitted = jax.jit(layer, out_shardings=here)
        lowered = jitted.lower(qkv, params, None, None, x, kernels)
    work = hlo.read(lowered.compile().as_text() or "").work
    return tpu_costs.seconds(work, chips)


def main(_: list[str]) -> None:
    chips = make_slice(f"{_CHIP.value}:1x1")
    out = Path(_OUT.value) if _OUT.value else None
    known = json.loads(out.read_text("utf-8")) if out and out.exists() else {}
    names = split_names(_ENCODINGS.value)
    for name in names:
        if name in known:
            continue
        log(f"Compiling {name}.")
        seconds = seconds_of_layer(name, _ROWS.value, _LENGTH.value, chips)
        known[name] = {
            "ms": round(1e3 * sum(seconds.values()), 4),
            "kernel": bool(seconds["kernels"]),
        }
        log(f"{name}: {known[name]['ms']:.3f} ms")
        if out:
            write_text(out, json.dumps(known, indent=1) + "\n")
    first = known[names[0]]["ms"]
    rows = []
    for name in names:
        ms = known[name]["ms"]
        kernel = "yes" if known[name]["kernel"] else "no"
        rows.append([name, f"{ms:.3f}", f"{ms / first:.2f}", kernel])
    print("\n".join(raw_table(["encoding", "estimate, ms", "ratio", "kernel"], rows)))


if __name__ == "__main__":
    app.run(main)
