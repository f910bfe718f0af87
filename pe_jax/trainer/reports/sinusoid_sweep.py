"""A sweep over fixed sinusoids from the command line: base and dimension against a property."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.common.files import write_text
from pe_jax.common.shapes import Array, Bool, Float
from pe_jax.properties import Toeplitz
from pe_jax.trainer import figures
from pe_jax.trainer.configs.sweep import MEASURES, SweepConfig
from pe_jax.trainer.console.terminal import Progress
from pe_jax.trainer.reports.pages import write_page

_BERT = (10_000.0, 768.0)  # Base and dimension of the sinusoids of BERT-base.


def sweep_sinusoids(config: SweepConfig, out: Path) -> str:
    """Write `sweep.json`, `sweep.png`, `report.md` and `.html` to `out`; return the page."""
    bases = np.geomspace(config.bases[0], config.bases[1], config.base_count)
    dims = config.even_dims
    label = MEASURES[config.measure].format(config.window)
    last = config.length - 1
    values = _measured(bases, dims, config)
    base, dim = _BERT
    is_swept = bases[0] <= base <= bases[-1] and dims[0] <= dim <= dims[-1]
    figure = figures.sweep_map(
        values,
        ("base", bases),
        ("dimension", dims),
        title=f"Fixed sinusoids by base and dimension, offsets up to {last}",
        label=label,
        marked=_BERT if is_swept else None,
    )
    figures.save(figure, out / "sweep.png", config.vector)
    numbers = {
        "bases": bases.tolist(),
        "dims": dims.tolist(),
        config.measure: values.tolist(),
    }
    write_text(out / "sweep.json", json.dumps(numbers) + "\n")

    def described(index: np.intp) -> str:
        i, j = np.unravel_index(index, values.shape)
        return f"{values[i, j]:.4g} (base {bases[i]:.4g}, D = {dims[j]})"

    text = f"""# {values.size:,} fixed sinusoids: {label}

Bases {bases[0]:g} to {bases[-1]:g}, dimensions {dims[0]} to {dims[-1]}, offsets up to {last}.
Least: {described(values.argmin())}; greatest: {described(values.argmax())}.

![the sweep](sweep.png)
"""
    return write_page(out / "report.md", text)


def _measured(bases: np.ndarray, dims: np.ndarray, config: SweepConfig) -> np.ndarray:
    """Return the measure of every pair, `[bases, dims]`, in one compiled program."""
    i = np.arange(dims[-1] // 2)

    def measured(setting: dict[str, jax.Array]) -> jax.Array:
        frequencies = setting["base"] ** (-2 * i / setting["dim"])
        psi = _psi(frequencies, i < setting["dim"] // 2, config.length)
        if config.measure == "turning_point":
            return properties.turning_point(psi)
        weighted = config.measure == "monotonicity_weighted"
        return properties.monotonicity(
            Toeplitz(psi=psi), config.window, weighted=weighted
        )

    settings = {
        "base": np.repeat(bases, len(dims)).astype(np.float32),
        "dim": np.tile(dims, len(bases)).astype(np.int32),
    }
    bar = Progress(len(bases) * len(dims), unit="setting", lines=0.0)
    values = properties.sweep(
        measured, settings, memory=config.memory, progress=bar.advance
    )
    bar.close()
    return values.reshape(len(bases), len(dims))


def _psi(
    frequencies: Float[Array, " F"], exists: Bool[Array, " F"], length: int
) -> Float[Array, " M"]:
    """Return ψ(0) .. ψ(length - 1) of the frequencies that exist.

    Σ cos(w (a + b)) = Σ cos(w a) cos(w b) - sin(w a) sin(w b), with offsets a below √M and b its
    multiples: a product of matrices, and 4 √M sines and cosines a frequency instead of M.
    """
    step = math.isqrt(length - 1) + 1
    angles = frequencies[:, None] * np.arange(step)
    near = jnp.concatenate([jnp.cos(angles), -jnp.sin(angles)])  # [2F, √M]
    far = jnp.concatenate([jnp.cos(step * angles), jnp.sin(step * angles)])
    far = jnp.where(jnp.tile(exists, 2)[:, None], far, 0)
    return jnp.matmul(far.T, near, precision=jax.lax.Precision.HIGHEST).ravel()[:length]
