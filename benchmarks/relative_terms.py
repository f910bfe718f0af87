"""What do relative terms cost? The training step with each encoding against learned_absolute.

    python benchmarks/relative_terms.py [--size=mini] [--shapes=16x128,4x512] [--encodings=...]

Full steps (forward, backward, AdamW; dropout 0.1; both pretraining heads) on random tokens, all in
one process and one run: the encodings take turns, several rounds. Prints medians and, for each
round, the time over that of learned_absolute in the same round; writes them to --out as JSON.
--implementations compares implementations of attention (auto, naive, table, fused) as well.
"""

import json
import statistics
import time
from pathlib import Path

import jax
from _step import make_batch, make_step
from absl import app, flags

_SIZE = flags.DEFINE_string("size", "mini", "Model size, see pe_jax.models.preset.")
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16"], "Of the computation."
)
_REMAT = flags.DEFINE_string("remat", "none", "What the backward pass makes again.")
_SHAPES = flags.DEFINE_list("shapes", ["16x128", "4x512"], "Rows x length of a batch.")
_ENCODINGS = flags.DEFINE_list(
    "encodings",
    ["learned_relative", "sinusoidal_relative", "learnable_sinusoidal_relative"],
    "Compared with learned_absolute.",
)
_IMPLEMENTATIONS = flags.DEFINE_list(
    "implementations", ["auto"], "Implementations of attention."
)
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Rounds of each.")
_SECONDS = flags.DEFINE_float(
    "seconds", 2.0, "Of one round of one encoding, at least one step."
)
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")

BASELINE = "learned_absolute"


def prepare(position: str, implementation: str, rows: int, length: int):
    """A function that runs one training step and waits for it; seconds to compile; temporaries."""
    vocab_size = 30_522
    model = {
        "size": _SIZE.value,
        "position": position,
        "max_length": length,
        "dtype": _DTYPE.value,
        "implementation": implementation,
        "remat": _REMAT.value,
        "vocab_size": vocab_size,
    }
    _, step, state, batch = make_step(make_batch(rows, length, vocab_size), model)
    start = time.perf_counter()
    compiled = step.lower(state, batch).compile()
    seconds = time.perf_counter() - start

    def once() -> None:
        nonlocal state
        state, metrics = compiled(state, batch)
        jax.block_until_ready(metrics)

    once()
    return once, seconds, compiled.memory_analysis().temp_size_in_bytes


def milliseconds(once) -> float:
    start, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < _SECONDS.value or not steps:
        once()
        steps += 1
    return 1e3 * elapsed / steps


def main(_) -> None:
    results = []
    for shape in _SHAPES.value:
        rows, length = (int(n) for n in shape.split("x"))
        sides = {(BASELINE, "auto"): prepare(BASELINE, "auto", rows, length)}
        for name in _ENCODINGS.value:
            for implementation in _IMPLEMENTATIONS.value:
                sides[name, implementation] = prepare(
                    name, implementation, rows, length
                )
        times: dict[tuple[str, str], list[float]] = {side: [] for side in sides}
        for _ in range(_ROUNDS.value):
            for side, (once, *_) in sides.items():
                times[side].append(milliseconds(once))
        base = times[BASELINE, "auto"]
        for (name, implementation), (_, compiling, memory) in sides.items():
            ratios = [
                t / b for t, b in zip(times[name, implementation], base, strict=True)
            ]
            row = {
                "size": _SIZE.value,
                "dtype": _DTYPE.value,
                "rows": rows,
                "length": length,
                "encoding": name,
                "implementation": implementation,
                "milliseconds": statistics.median(times[name, implementation]),
                "ratio": statistics.median(ratios),
                "ratio_least": min(ratios),
                "ratio_greatest": max(ratios),
                "compile_seconds": compiling,
                "temporary_bytes": memory,
                "temporary_ratio": memory / sides[BASELINE, "auto"][2],
            }
            results.append(row)
            print(
                f"{_SIZE.value} {shape} {name:30s} {implementation:9s} "
                f"{row['milliseconds']:9.1f} ms, ratio "
                f"{row['ratio']:.3f} ({min(ratios):.3f} to {max(ratios):.3f}), memory "
                f"{memory / 2**20:,.0f} MiB, ratio {row['temporary_ratio']:.2f}",
                flush=True,
            )
        if _OUT.value:
            Path(_OUT.value).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
