"""Memory of attention with every encoding, and on request its time, against attention without.

Command:  python benchmarks/encoding_memory.py [--length=4096] [--encodings=fire --rounds=3]
Hardware: one CPU; for times one core of it, as with `taskset -c 0`.
Time:     six minutes for the memory of all encodings, most of it compiling.

One layer of two heads, forward and backward, `embed` and the projections to queries and keys that
an encoding may ask for included: the temporary memory of the compiled program in MiB, at positions
0, 1, 2, ... and, after a comma, with --packed at positions that start again in the middle of the
row. Ratios are to `none`. With --rounds=N each encoding is run N times next to `none`, and the
median of the ratios of their processor times is printed with the least and the greatest.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import catalogue
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.stages import Compiled

from pe_jax.attention import attention
from pe_jax.encodings import Context, PositionEncoding, Positions, embed, from_name, none
from pe_jax.properties.encoding_measures import on_all_axes

_LENGTH = flags.DEFINE_integer("length", 4096, "Queries and keys.")
_ENCODINGS = flags.DEFINE_multi_string("encodings", [], "Names with options; default: all.")
_PACKED = flags.DEFINE_bool("packed", False, "Positions of two documents in the row as well.")
_ROUNDS = flags.DEFINE_integer("rounds", 0, "Of times.")
_HEADS, _SIZE = 2, 64
MIB = 2**20


def sizes() -> dict[str, int]:
    """Return the sizes that encodings are built for."""
    return {
        "hidden_size": _HEADS * _SIZE,
        "head_size": _SIZE,
        "num_heads": _HEADS,
        "max_length": _LENGTH.value,
    }


def program(encoding: PositionEncoding, *, packed: bool) -> tuple[Compiled, Mapping]:
    """Return the compiled layer with its gradients, and its arguments."""
    length, width = _LENGTH.value, _HEADS * _SIZE
    index = np.arange(length)
    positions: Positions = index % (length // 2) if packed else range(length)
    if encoding.axes > 1:
        positions = on_all_axes(np.asarray(positions), encoding)
    positions = jnp.asarray(positions)[None] if packed else positions
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    arguments = {
        "params": jax.jit(encoding.init)(jax.random.key(0)),
        "qkv": tuple(normal(1, length, _HEADS, _SIZE) for _ in range(3)),
        "x": normal(1, length, width),
        "w": width**-0.5 * normal(width, _HEADS, _SIZE),
    }
    tokens = jnp.zeros((1, length), jnp.int32)

    def loss(arguments: Mapping) -> jax.Array:
        x = embed(encoding, arguments["params"], arguments["x"], positions, tokens=tokens)
        q, k, v = (y + x.reshape(y.shape) for y in arguments["qkv"])
        project = lambda y: jnp.einsum("...D,Dhd->...hd", y, arguments["w"])
        context = Context(positions, positions, x, x, (project, project))
        out = attention(q, k, v, encoding.in_attention, arguments["params"], context)
        return (out**2).sum()

    return jax.jit(jax.value_and_grad(loss)).lower(arguments).compile(), arguments


def seconds(run: Compiled, arguments: Mapping) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    jax.block_until_ready(run(arguments))
    return time.process_time() - start


def temporary(run: Compiled) -> float:
    """Return the temporary memory of a compiled program in MiB."""
    analysis = run.memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes / MIB


def main(_) -> None:
    names = _ENCODINGS.value or [row.name for row in catalogue.rows(sizes())]
    baseline = program(none(), packed=False)
    least = temporary(baseline[0])
    print(f"none: {least:.0f} MiB at {_LENGTH.value} tokens")
    for name in names:
        encoding = from_name(name, **sizes())
        compiled = program(encoding, packed=False)
        memory = [temporary(compiled[0])]
        if _PACKED.value:
            memory.append(temporary(program(encoding, packed=True)[0]))
        cells = [
            ", ".join(f"{n:.0f}" for n in memory),
            ", ".join(f"{n / least:.1f}" for n in memory),
        ]
        if _ROUNDS.value:
            for side in (compiled, baseline):
                seconds(*side)
            ratios = [seconds(*compiled) / seconds(*baseline) for _ in range(_ROUNDS.value)]
            median = statistics.median(ratios)
            cells.append(f"{median:.1f} ({min(ratios):.1f}–{max(ratios):.1f})")
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    app.run(main)
