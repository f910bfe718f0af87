"""A sweep over the properties of sinusoids as a side of `compare.py`; a step is all settings."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from _worker import Advance, serve

from pe_jax import encodings, properties


def prepare(job: dict, arrays: dict[str, np.ndarray]) -> tuple[Advance, dict[str, Any]]:
    """The sweep as `advance`, whose loss is the mean of its results; job: length."""
    x = np.arange(job["length"])

    def metrics(frequencies):
        phi = properties.proximity(encodings.sinusoid(x, frequencies))
        invariance, symmetry = (
            properties.translation_invariance(phi),
            properties.symmetry(phi),
        )
        return jnp.stack([invariance, symmetry, properties.monotonicity(phi)])

    settings = arrays["frequencies"]
    run = properties.compile_sweep(metrics, settings)

    def advance(steps: int) -> float:
        for _ in range(steps):
            found = run(settings)
        return float(found.mean())

    return advance, {}


if __name__ == "__main__":
    serve(prepare)
