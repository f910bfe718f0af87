"""Offset kernels: mean logits over random tokens at each pair of positions, of every encoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.models import attended, kernel_map
from pe_jax.properties import Kernel
from pe_jax.reports.property_report.measures import (
    Numbers,
    cells,
    columns,
    measure_each,
    standardized,
    two_digits,
)
from pe_jax.reports.property_report.section import Section, Settings, for_json
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.shapes import Array


class _Inputs(NamedTuple):
    """Random inputs of the kernel.

    Attributes:
      draw: of `count` inputs, each of so many `texts`.
      text: what they are, for the report.
    """

    draw: Callable[..., jax.Array]
    texts: int
    text: str


# By `config.kernel`.
INPUTS = {
    "words": _Inputs(
        properties.random_words, 2, "pairs of random words: every query is one, every key the other"
    ),
    "texts": _Inputs(
        properties.random_texts, 1, "texts of random words, as the model attends within them"
    ),
}


def kernel(subject: Subject, settings: Settings) -> Kernel:
    """Φ and its standard error `[N, H, L, L]` of all layers, NaN where nothing is attended to.

    Several parts of a report use the same Φ: it is measured once.

    Raises:
      ValueError: if there are too few words.
    """
    if subject not in settings.kernels:
        settings.kernels[subject] = _kernel(subject, settings.config)
    return settings.kernels[subject]


def _kernel(subject: Subject, config: ConfigDict) -> Kernel:
    model, inputs = subject.model, INPUTS[config.kernel]
    assert model is not None and subject.words is not None
    length = min(config.length, subject.length)
    if len(subject.words) < 2:
        raise ValueError(f"{subject.name} has no two whole words in its vocabulary to pair.")
    tokens = inputs.draw(
        jax.random.key(config.seed),
        jnp.asarray(subject.words, jnp.int32),
        count=_count(config),
        length=length,
    )
    # Bounds the memory of a batch's logits, and of the [L, L, d] that some encodings make.
    size = length**2 * model.num_heads * model.num_layers * inputs.texts
    return properties.offset_kernel(
        kernel_map(model),
        subject.params,
        tokens,
        where=_where(subject, length)[:, None],
        batch=max(1, min(16 // inputs.texts, 2**25 // size)),
    )


def _count(config: ConfigDict) -> int:
    """Samples whose texts together are `config.words`."""
    return max(1, config.words // INPUTS[config.kernel].texts)


def _where(subject: Subject, length: int) -> np.ndarray:
    """Entries that the layers have, `[N, L, L]`."""
    assert subject.model is not None
    return np.asarray(attended(subject.model, length))


def measure_kernel(phi: Array, where: np.ndarray, windows: tuple[int, ...]) -> list[Numbers]:
    """The violations of each head in one layer.

    Args:
      phi: `[H, L, L]`.
      where: entries that exist, `[L, L]`.
    """
    found = measure_each(phi, windows, where)
    return [{name: float(v[head]) for name, v in found.items()} for head in range(len(phi))]


def average(several: list[Numbers]) -> Numbers:
    """The mean of each violation over heads, layers or models, where all have it: a layer with a
    window may lack some."""
    shared = [name for name in several[0] if all(name in one for one in several)]
    return {name: float(np.mean([one[name] for one in several])) for name in shared}


def layer_numbers(
    subject: Subject, settings: Settings, windows: tuple[int, ...]
) -> list[list[Numbers]]:
    """The violations of Φ by layer and head."""
    phi = kernel(subject, settings).mean
    both = zip(phi, _where(subject, phi.shape[-1]), strict=True)
    return [measure_kernel(one, where, windows) for one, where in both]


def kernels(subjects: list[Subject], settings: Settings) -> Section | None:
    """Properties of Φ by layer, of each head and their mean, and Φ as a function of the offset."""
    subjects = [subject for subject in subjects if subject.model]
    if not subjects:
        return None
    config = settings.config
    numbers: Json = {}
    rows, single, paths = [], [], []
    names = columns(settings.windows)
    for subject in subjects:
        phi, error = (np.asarray(one) for one in kernel(subject, settings))
        layers = []
        for i, heads in enumerate(layer_numbers(subject, settings, settings.windows)):
            curve = properties.offset_curve(phi[i], where=_where(subject, phi.shape[-1])[i])
            mean = average(heads)
            noise = _noise(phi[i], error[i])
            layers.append(
                {
                    "average": mean,
                    "heads": heads,
                    "error": noise.tolist(),
                    "curve": for_json(curve.mean),
                    "spread": for_json(curve.spread),
                }
            )
            rows.append(
                [subject.name, str(i), *cells(mean, list(names)), f"{float(noise.mean()):.2f}"]
            )
        numbers[subject.name] = {
            "inputs": config.kernel,
            "samples": _count(config),
            "layers": layers,
        }
        if len(phi) == 1:
            single.append((subject.name, phi[0]))
        else:
            panels = [(f"layer {i}", one) for i, one in enumerate(phi)]
            paths += _figures(panels, f"_{subject.name}", f" of {subject.name}", settings)
    if single:
        paths = _figures(single, "", "", settings) + paths
    lines = [
        f"Mean logits (times √d, before softmax) over {_count(config)} "
        f"{INPUTS[config.kernel].text}.",
        "Violations of Φ[i, j] off the diagonal and within reach, the mean over the heads; error:",
        "the standard error of Φ, its level left out, over Φ's standard deviation. By head, and as",
        "functions of the offset: offset_kernel.json.",
        "",
        *table(["model", "layer", *names.values(), "error"], rows),
    ]
    return Section("Offset kernel", numbers, lines, paths)


def _is_constant(phi: np.ndarray) -> np.ndarray:
    """Whether the matrices `[H, L, L]` are constant up to rounding, `[H]`."""
    axes = (-2, -1)
    return np.nanstd(phi, axes) <= 1e-6 * np.nanmax(np.abs(phi), axes)


def _noise(phi: np.ndarray, error: np.ndarray) -> np.ndarray:
    """The standard error over the standard deviation of Φ's entries, of each head; 0 where Φ is
    constant."""
    constant = _is_constant(phi)
    root = np.sqrt(np.nanmean(error**2, (-2, -1)))
    deviation = np.where(constant, 1.0, np.nanstd(phi, (-2, -1)))
    return np.where(constant, 0.0, root / deviation)


def _figures(
    kernels: list[tuple[str, np.ndarray]], suffix: str, whose: str, settings: Settings
) -> list[Path]:
    """The matrices, and their means by offset, of titled Φ `[H, L, L]`."""
    config = settings.config
    matrices, curves = [], []
    for title, phi in kernels:
        each = config.heads == "each"
        shown = [(f"{title}, head {h}", one) for h, one in enumerate(phi)] if each else []
        for name, one in shown or [(title, phi.mean(0))]:
            ends = (0, len(one) - 1, "query position", "key position")
            sigma = f"σ = {two_digits(np.nanstd(one))}"
            matrices.append(figures.Panel(f"{name}\n{sigma}", standardized(one), *ends))
        curves.append(_curve(title, phi))
    return [
        figures.matrix_grid(
            matrices,
            settings.figure(f"offset_kernel{suffix}"),
            title=f"Offset kernel{whose}: mean logits of random words",
            label="logit − mean, in standard deviations σ",
            limits=(-3.0, 3.0),
            vector=config.vector,
        ),
        figures.offset_curves(
            curves,
            settings.figure(f"offset_kernel_curves{suffix}"),
            title=f"Offset kernel{whose} by offset\n"
            "grey: single heads; blue: their mean, shaded ± its spread over positions",
            label="mean logit · √d, less its mean",
            vector=config.vector,
        ),
    ]


def _curve(title: str, phi: np.ndarray) -> figures.OffsetPanel:
    here = ~np.isnan(phi[0])
    shape = phi - np.nanmean(phi, (-2, -1), keepdims=True)
    shape[_is_constant(phi)] *= 0  # Rounding errors are not drawn as if they were a shape.
    mean, spread = properties.offset_curve(shape.mean(0), where=here)
    heads, _ = properties.offset_curve(shape, where=here)
    return figures.OffsetPanel(title, *(np.asarray(one) for one in (mean, spread, heads)))
