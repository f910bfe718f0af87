"""How fast are property sweeps? `pe_jax.properties.sweep` against the same metrics in NumPy.

Command:  python benchmarks/property_sweep.py [--lengths=128,512] [--out=FILE.json]
Hardware: one CPU, otherwise idle.
Time:     about three minutes.

The same sinusoids (random frequencies, D = 64), the same metrics: translation invariance, symmetry,
monotonicity within 10 and 50 offsets and over all. Of ψ, by a `Toeplitz` (structured), of the
matrix P·Pᵀ (general), and of that in NumPy: vectorised over rows and offsets, each pair compared
once, one matrix at a time, which keeps it in the caches, in one process and in one a core. All on
the same cores, in turns, each on as many settings as take about as long. Printed and written:
settings a second of each side, by the median round, the ratios to each NumPy side (median, least,
greatest), and the largest difference from NumPy's results.
"""

import json
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from absl import app, flags

_LENGTHS = flags.DEFINE_list("lengths", ["128", "512"], "Positions of the matrices.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Of each side.")
_COUNT = flags.DEFINE_integer(
    "count", 8, "Settings a round, of NumPy in one process at L = 512."
)
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")

CORES = len(os.sched_getaffinity(0))
WINDOWS = (10, 50)
DIM = 64


def in_numpy(frequencies: np.ndarray, length: int) -> np.ndarray:
    """The five metrics of one sinusoid."""
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies
    vectors = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    phi = vectors @ vectors.T
    off = ~np.eye(length, dtype=bool)
    # Row x, column L - 1 + m holds Φ[x, x + m].
    padded = np.pad(phi[:, ::-1], ((0, 0), (0, length))).ravel()[
        : length * (2 * length - 1)
    ]
    skewed = padded.reshape(length, 2 * length - 1)[:, ::-1]
    offsets = np.arange(1 - length, length)
    at = np.arange(length)[:, None] + offsets
    there = (at >= 0) & (at < length) & (offsets != 0)
    means = np.where(there, skewed, 0).sum(0) / np.maximum(there.sum(0), 1)
    unexplained = (np.where(there, skewed - means, 0) ** 2).sum()
    invariance = unexplained / ((phi - phi[off].mean())[off] ** 2).sum()
    odd = (phi - phi.T) / 2
    symmetry = (odd**2).sum() / ((phi - phi.mean()) ** 2).sum()
    rows = np.concatenate([skewed[:, length:], skewed[:, : length - 1][:, ::-1]])
    outwards = np.concatenate([there[:, length:], there[:, : length - 1][:, ::-1]])
    rows = np.where(outwards, rows, np.nan)
    monotonicity = []
    for window in (*WINDOWS, length - 1):
        inside = np.ascontiguousarray(rows[:, :window])
        twice = np.int64(0)
        for n in range(window - 1):
            far, near = inside[:, n + 1 :], inside[:, n : n + 1]
            twice += np.count_nonzero(far > near) + np.count_nonzero(far >= near)
        counts = outwards[:, :window].sum(1)
        monotonicity.append(twice / 2 / (counts * (counts - 1) / 2).sum())
    return np.array([invariance, symmetry, *monotonicity])


def many_in_numpy(frequencies: np.ndarray, length: int) -> np.ndarray:
    return np.stack([in_numpy(one, length) for one in frequencies])


def measure(length: int, pool: ProcessPoolExecutor) -> dict:
    """All sides in turns."""
    import jax.numpy as jnp

    from pe_jax import encodings, properties

    x = np.arange(length)

    def metrics(phi):
        return jnp.stack(
            [
                properties.translation_invariance(phi),
                properties.symmetry(phi),
                *(properties.monotonicity(phi, w) for w in (*WINDOWS, None)),
            ]
        )

    def structured(w):
        return metrics(properties.Toeplitz(psi=properties.psi(w, x)))

    def general(w):
        return metrics(properties.proximity(encodings.sinusoid(x, w)))

    count = _COUNT.value * (512 // length) ** 2
    counts = {"numpy": count, "numpy_all_cores": CORES * count}
    counts |= {"general": 16 * count, "structured": 512 * count}
    rng = np.random.default_rng(0)
    drawn = np.exp(rng.uniform(np.log(1e-4), 0, (max(counts.values()), DIM // 2)))
    settings = {side: drawn[:n].astype(np.float32) for side, n in counts.items()}
    sides = {
        "numpy": lambda w: many_in_numpy(w, length),
        "numpy_all_cores": lambda w: np.concatenate(
            list(pool.map(many_in_numpy, np.array_split(w, CORES), [length] * CORES))
        ),
        "general": properties.compile_sweep(general, settings["general"]),
        "structured": properties.compile_sweep(structured, settings["structured"]),
    }
    found = {side: run(settings[side]) for side, run in sides.items()}
    seconds: dict[str, list[float]] = {
        side: [] for side in sides
    }  # A setting, of each round.
    for _ in range(_ROUNDS.value):
        for side, run in sides.items():
            start = time.perf_counter()
            run(settings[side])
            seconds[side].append((time.perf_counter() - start) / counts[side])
    ratios = {
        f"{ours}_to_{theirs}": [
            a / b for a, b in zip(seconds[theirs], seconds[ours], strict=True)
        ]
        for ours in ("general", "structured")
        for theirs in ("numpy", "numpy_all_cores")
    }
    difference = {
        side: float(abs(found[side][:count] - found["numpy"]).max())
        for side in ("general", "structured")
    }
    return {
        "length": length,
        "cores": CORES,
        "settings_per_second": {
            s: 1 / statistics.median(each) for s, each in seconds.items()
        },
        "ratios": {
            k: [statistics.median(r), min(r), max(r)] for k, r in ratios.items()
        },
        "largest_difference": difference,
    }


def main(_) -> None:
    flags_of_xla = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = (
        f"{flags_of_xla} --xla_force_host_platform_device_count={CORES}"
    )
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # Of each process in the pool.
    os.environ["PYTHONSAFEPATH"] = (
        "1"  # They do not search the working directory for modules.
    )
    results = []
    with ProcessPoolExecutor(CORES, multiprocessing.get_context("spawn")) as pool:
        for length in map(int, _LENGTHS.value):
            row = measure(length, pool)
            results.append(row)
            print(f"L = {length}, {CORES} cores, settings a second:")
            for side, rate in row["settings_per_second"].items():
                print(f"  {side:16s} {rate:12,.1f}")
            for name, (middle, least, greatest) in row["ratios"].items():
                print(f"  {name:29s} {middle:7.1f} ({least:.1f} to {greatest:.1f})")
            print(f"  largest difference {row['largest_difference']}", flush=True)
            if _OUT.value:
                Path(_OUT.value).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
