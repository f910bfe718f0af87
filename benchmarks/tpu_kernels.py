"""Which kernel of attention is shortest on a TPU? Ours against those that JAX ships, nothing run.

    python benchmarks/tpu_kernels.py [--lengths=128,512] [--rows=64,16] [--chip=v5e]

Attention of one layer, forward and backward, 12 heads of 64, bfloat16. The compiler estimates no
cycles of a custom kernel, but it writes down the instruction bundles that it makes of one: a bundle
issues in a cycle at best, so bundles times the programs of the grid over the clock is a time that
leaves out stalls. Tiles are as long as the input (512 at most), so that a program's loop runs once.
With longer inputs only bundles compare, those of a tile of 512 × 512 with what begins and ends it:

    python benchmarks/tpu_kernels.py --lengths=1024 --rows=1 --kernel=ours '--kernel=ours, bias'

`all else` is the compiler's estimate of what surrounds the kernels, such as other layouts.

Needs the extra tpu. About a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from absl import app, flags

from pe_jax.common.markdown import raw_table

_LENGTHS = flags.DEFINE_list("lengths", ["128", "512"], "Of inputs.")
_ROWS = flags.DEFINE_list("rows", ["64", "16"], "For each length.")
_CHIP = flags.DEFINE_string("chip", "v5e", "See `TPUS`.")
_ONE = flags.DEFINE_string(
    "one", None, "Internal: NAME,LENGTH,ROWS, compiled in this process."
)

HEADS, SIZE = 12, 64
_DUMPS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_html=false"


class Kernel(NamedTuple):
    """A kernel under test.

    Attributes:
      make: `make(length) -> attention(q, k, v, seed)`, arrays `[B, L, H, d]`.
      heads: how many a program of its grid computes.
    """

    make: Callable[[int], Callable]
    heads: int


def ours(
    length: int, dropout: float = 0.0, relative: bool = False, biased: bool = False
) -> Callable:
    import jax.numpy as jnp

    from pe_jax.attention.tpu_kernel.flash import flash_attention

    table = jnp.ones((129, SIZE)) if relative else None
    bias = jnp.ones((2 * length - 1, HEADS)) if biased else None
    return lambda q, k, v, seed: flash_attention(
        q, k, v, table, table, bias=bias, dropout_rate=dropout, seed=seed
    )


def ours_of_all_offsets(
    length: int, at_keys: bool, at_queries: bool = False
) -> Callable:
    """A vector per head for every offset of the input, that joins the keys or the queries."""
    import jax.numpy as jnp

    from pe_jax.attention.tpu_kernel.flash import flash_attention

    table = jnp.ones((2 * length - 1, HEADS, SIZE))
    return lambda q, k, v, seed: flash_attention(
        *(q, k, v),
        key_table=table if at_keys else None,
        query_table=table if at_queries else None,
    )


def splash(length: int) -> Callable:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernel,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_mask as masks,
    )

    mask = masks.MultiHeadMask([masks.FullMask((length, length))] * HEADS)
    sizes: dict[str, Any] = dict.fromkeys(
        "block_q block_kv block_kv_compute block_q_dkv block_kv_dkv block_kv_dkv_compute "
        "block_q_dq block_kv_dq".split(),
        length,
    )
    run = kernel.make_splash_mha(
        mask=mask, head_shards=1, q_seq_shards=1, block_sizes=kernel.BlockSizes(**sizes)
    )
    major = lambda x: jnp.swapaxes(x, 1, 2)
    return lambda q, k, v, seed: major(
        jax.vmap(run)(major(q * jnp.asarray(SIZE**-0.5, q.dtype)), major(k), major(v))
    )


def stock(length: int) -> Callable:
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu import flash_attention as flash

    names = (
        "block_q block_k_major block_k block_q_major_dkv block_k_major_dkv block_k_dkv block_q_dkv "
        "block_k_major_dq block_k_dq block_q_dq"
    )
    sizes = flash.BlockSizes(block_b=1, **dict.fromkeys(names.split(), length))
    major = lambda x: jnp.swapaxes(x, 1, 2)
    return lambda q, k, v, seed: major(
        flash.flash_attention(
            major(q), major(k), major(v), sm_scale=SIZE**-0.5, block_sizes=sizes
        )
    )


KERNELS: dict[str, Kernel] = {
    "ours": Kernel(ours, 2),
    "ours, bias": Kernel(lambda length: ours(length, biased=True), 2),
    "ours, dropout": Kernel(lambda length: ours(length, 0.1), 2),
    "ours, dropout, relative terms": Kernel(lambda length: ours(length, 0.1, True), 2),
    "ours, vectors of all offsets at keys": Kernel(
        lambda length: ours_of_all_offsets(length, at_keys=True), 2
    ),
    "ours, vectors of all offsets at keys and queries": Kernel(
        lambda length: ours_of_all_offsets(length, at_keys=True, at_queries=True), 2
    ),
    "splash attention (no dropout)": Kernel(splash, 1),
    "flash attention (no dropout)": Kernel(stock, 1),
}
_KERNELS = flags.DEFINE_multi_enum(
    "kernel", [*KERNELS], [*KERNELS], "Give it once for each."
)


def compile_one(name: str, length: int, rows: int) -> None:
    """Prints the cycles of everything but kernels."""
    import hlo
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec
    from tpu_slices import make_slice

    chips = make_slice(f"{_CHIP.value}:1x1")
    here = NamedSharding(chips.mesh, PartitionSpec())
    array = jax.ShapeDtypeStruct(
        (rows, length, HEADS, SIZE), jnp.bfloat16, sharding=here
    )
    seed = jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=here)
    attention = KERNELS[name].make(length)

    def both(q, k, v, grad, seed):
        out, back = jax.vjp(lambda q, k, v: attention(q, k, v, seed), q, k, v)
        return out, back(grad)

    with jax.sharding.use_abstract_mesh(chips.mesh.abstract_mesh):
        text = (
            jax.jit(both, out_shardings=here)
            .lower(*[array] * 4, seed)
            .compile()
            .as_text()
        )
    print(sum(one.times * one.cycles for one in hlo.read(text or "").work))


def bundles(folder: Path) -> int:
    """Of all custom kernels that were compiled into `folder`, a file each."""
    found = 0
    for path in folder.glob("*schedule-analysis_final_bundles.txt"):
        if not re.search(
            r"-TLP-\d+-", path.name
        ):  # That one is the program around them.
            counts = re.findall(
                r"\[opcode\]\s+(\d+) scheduled bundles .*: custom-call ",
                path.read_text(),
            )
            found += sum(map(int, counts))
    return found


def row(name: str, length: int, rows: int) -> list[str]:
    from tpu_slices import TPUS

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                sys.executable,
                __file__,
                f"--chip={_CHIP.value}",
                f"--one={name}|{length}|{rows}",
            ],
            env={
                **os.environ,
                "LIBTPU_INIT_ARGS": _DUMPS.format(folder),
                "JAX_PLATFORMS": "cpu",
                "TPU_SKIP_MDS_QUERY": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        of_program = bundles(Path(folder))
    programs = rows * HEADS // KERNELS[name].heads
    milliseconds = lambda cycles: f"{1e3 * TPUS[_CHIP.value].seconds(cycles):.2f}"
    rest = milliseconds(int(done.stdout))
    return [
        name,
        f"{of_program:,}",
        f"{programs:,}",
        milliseconds(of_program * programs),
        rest,
    ]


def main(_) -> None:
    if _ONE.value:
        one, *sizes = _ONE.value.split("|")
        return compile_one(one, *map(int, sizes))
    header = ["kernel", "bundles", "programs", "ms", "all else, ms"]
    for length, rows in zip(
        map(int, _LENGTHS.value), map(int, _ROWS.value), strict=True
    ):
        print(f"\n{rows} rows of {length} on {_CHIP.value}:\n")
        print(
            "\n".join(
                raw_table(header, [row(name, length, rows) for name in _KERNELS.value])
            )
        )


if __name__ == "__main__":
    app.run(main)
