"""How fast are property sweeps? `pe_jax.properties.sweep` against the same metrics in NumPy.

    python benchmarks/property_sweep.py [--lengths=128,512] [--count=1000] [--out=FILE.json]

The same sinusoids (random frequencies, D = 64), the same metrics: translation invariance, symmetry,
monotonicity within 10 and 50 offsets and over all. Both in one process and one run: blocks of
settings in turn, A B A B. NumPy is vectorised over rows and offsets, compares each pair once and
works on one matrix at a time, which keeps it in the caches: faster here than batches of matrices.
Prints and writes settings a second of each, by the median block, the ratio of each pair of blocks
(median, least, greatest), and the largest difference between their results.

Use --devices to split settings over simulated CPU devices; default one for each core.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from absl import app, flags

_LENGTHS = flags.DEFINE_list("lengths", ["128", "512"], "Positions of the matrices.")
_COUNT = flags.DEFINE_integer("count", 1000, "Settings.")
_BLOCKS = flags.DEFINE_integer("blocks", 10, "Parts that each side's work is cut into.")
_DEVICES = flags.DEFINE_integer("devices", len(os.sched_getaffinity(0)), "Simulated CPU devices.")
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")

WINDOWS = (10, 50)
DIM = 64


def in_numpy(frequencies: np.ndarray, length: int) -> np.ndarray:
    """The five metrics of one sinusoid."""
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies
    vectors = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    phi = vectors @ vectors.T
    off = ~np.eye(length, dtype=bool)
    # Row x, column L - 1 + m holds Φ[x, x + m].
    padded = np.pad(phi[:, ::-1], ((0, 0), (0, length))).ravel()[: length * (2 * length - 1)]
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
        twice = 0
        for n in range(window - 1):
            far, near = inside[:, n + 1 :], inside[:, n : n + 1]
            twice += np.count_nonzero(far > near) + np.count_nonzero(far >= near)
        counts = outwards[:, :window].sum(1)
        monotonicity.append(twice / 2 / (counts * (counts - 1) / 2).sum())
    return np.array([invariance, symmetry, *monotonicity])


def main(_) -> None:
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "")
        + f" --xla_force_host_platform_device_count={_DEVICES.value}"
    )
    import jax.numpy as jnp

    from pe_jax import encodings, properties

    results = []
    for length in map(int, _LENGTHS.value):
        rng = np.random.default_rng(0)
        settings = np.exp(rng.uniform(np.log(1e-4), 0, (_COUNT.value, DIM // 2)))
        settings = settings.astype(np.float32)
        x = np.arange(length)

        def fn(frequencies, x=x):
            phi = properties.proximity(encodings.sinusoid(x, frequencies))
            return jnp.stack(
                [
                    properties.translation_invariance(phi),
                    properties.symmetry(phi),
                    *(properties.monotonicity(phi, w) for w in WINDOWS),
                    properties.monotonicity(phi),
                ]
            )

        start = time.perf_counter()
        properties.sweep(fn, settings, progress=False)  # The whole, as a user would.
        whole = time.perf_counter() - start
        program = properties.compile_sweep(fn, settings[: -(-len(settings) // _BLOCKS.value)])
        ours, theirs, difference = [], [], 0.0
        for block in np.array_split(settings, _BLOCKS.value):
            start = time.perf_counter()
            found = program(block)
            ours.append((time.perf_counter() - start) / len(block))
            start = time.perf_counter()
            expected = np.stack([in_numpy(one, length) for one in block])
            theirs.append((time.perf_counter() - start) / len(block))
            difference = max(difference, float(abs(found - expected).max()))
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        row = {
            "length": length,
            "settings": len(settings),
            "devices": _DEVICES.value,
            "sweep_seconds_compilation_included": whole,
            "sweep_settings_per_second": 1 / statistics.median(ours),
            "numpy_settings_per_second": 1 / statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "ratio_least": min(ratios),
            "ratio_greatest": max(ratios),
            "largest_difference": difference,
        }
        results.append(row)
        print(
            f"L = {length}: sweep {row['sweep_settings_per_second']:.1f} settings/s, NumPy "
            f"{row['numpy_settings_per_second']:.1f}, ratio {row['ratio']:.1f} "
            f"({min(ratios):.1f} to {max(ratios):.1f}); all {len(settings)} in {whole:.1f} s with "
            f"compilation; largest difference {difference:.1e}",
            flush=True,
        )
        if _OUT.value:
            Path(_OUT.value).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
