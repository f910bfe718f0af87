"""Does the cost of attention fall with the window? Attention of one layer, forward and backward.

Command:  python benchmarks/windows.py
Hardware: one CPU, otherwise idle.
Time:     two minutes.

Ratios to attention without a window, in the same form and round: the median with the least and the
greatest. A block of 128 queries meets 128 + 2·reach keys.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
from absl import app, flags

from pe_jax import encodings
from pe_jax.attention import attention

_LENGTH = flags.DEFINE_integer("length", 4096, "Queries and keys.")
_REACHES = flags.DEFINE_list("reaches", ["32", "64", "128", "512", "1024"], "Of windows.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Of each.")
_HEADS, _SIZE = 4, 64


def prepare(name: str) -> Callable[[], float]:
    """Seconds of one call."""
    encoding = encodings.from_name(
        name, hidden_size=_HEADS * _SIZE, head_size=_SIZE, num_heads=_HEADS, max_length=512
    )
    params = encoding.init(jax.random.key(0))
    qkv = jax.random.normal(jax.random.key(1), (3, 1, _LENGTH.value, _HEADS, _SIZE))
    loss = lambda qkv: attention(*qkv, encoding, params).sum()
    gradient = jax.jit(jax.grad(loss)).lower(qkv).compile()

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(gradient(qkv))
        return time.perf_counter() - start

    seconds()
    return seconds


def main(_: list[str]) -> None:
    for base in ("none", "alibi"):
        names = [base, *(f"{base}+window(reach={reach})" for reach in _REACHES.value)]
        calls = {name: prepare(name) for name in names}
        rounds = [{name: call() for name, call in calls.items()} for _ in range(_ROUNDS.value)]
        for name in names:
            ratios = [one[name] / one[base] for one in rounds]
            milliseconds = 1e3 * statistics.median(one[name] for one in rounds)
            print(
                f"{_LENGTH.value} {name:25s} {milliseconds:8.1f} ms, ratio "
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)
