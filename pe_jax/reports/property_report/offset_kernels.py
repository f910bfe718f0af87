"""Offset kernels: mean logits over random tokens at each pair of positions, of every encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import figures, properties
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.files import Json
from pe_jax.models import attended, kernel_map
from pe_jax.properties import Estimate
from pe_jax.reports.property_report import render
from pe_jax.reports.property_report.matrices import logit_panels, matrix_figure
from pe_jax.reports.property_report.render import Figure, Findings, Settings, Table
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.violations import (
    Numbers,
    average,
    cells,
    violations_of_each,
)
from pe_jax.reports.tables import Row

# Random inputs by `config.kernel`: a function that draws them, texts in each, and a description.
INPUTS: dict[str, tuple[Callable[..., jax.Array], int, str]] = {
    "words": (
        properties.random_words, 2, "pairs of random words: every query is one, every key the other"
    ),
    "texts": (
        properties.random_texts, 1, "texts of random words, as the model attends within them"
    ),
}  # fmt: skip


@render.once
def kernel(subject: Subject, settings: Settings) -> Estimate:
    """Return Φ and its standard error `[N, H, L, L]` of all layers, NaN where nothing is attended
    to.

    Raises:
      ValueError: if there are too few words.
    """
    config, model = settings.config, subject.bert
    draw, texts, _ = INPUTS[config.kernel]
    assert subject.words is not None
    length = min(config.length, subject.length)
    if len(subject.words) < 2:
        raise ValueError(f"{subject.name} has no two whole words in its vocabulary to pair.")
    tokens = draw(
        jax.random.key(config.seed),
        jnp.asarray(subject.words, jnp.int32),
        count=_sample_count(config),
        length=length,
    )
    # Bounds the memory of a batch's logits, and of the [L, L, d] that some encodings make.
    size = length**2 * model.num_heads * model.num_layers * texts
    return properties.offset_kernel(
        kernel_map(model),
        subject.params,
        tokens,
        where=_entries(subject, length)[:, None],
        batch=max(1, min(16 // texts, 2**25 // size)),
    )


def _sample_count(config: PropertiesConfig) -> int:
    """Return the number of samples whose texts together are `config.words`."""
    return max(1, config.words // INPUTS[config.kernel][1])


def _entries(subject: Subject, length: int) -> np.ndarray:
    """Return the mask of entries that the layers have, `[N, L, L]`."""
    return np.asarray(attended(subject.bert, length))


def violations_by_layer(
    subject: Subject, settings: Settings, windows: Sequence[int]
) -> list[list[Numbers]]:
    """Return the violations of Φ by layer and head."""
    phi = kernel(subject, settings).mean
    layers = []
    for matrices, entries in zip(phi, _entries(subject, phi.shape[-1]), strict=True):
        by_name = violations_of_each(matrices, windows, entries)
        layers.append(
            [{name: float(v[head]) for name, v in by_name.items()} for head in range(len(matrices))]
        )
    return layers


def _about(findings: Findings, config: PropertiesConfig) -> str:
    del findings
    return (
        f"Mean logits (times √d, before softmax) over {_sample_count(config)} "
        f"{INPUTS[config.kernel][2]}. Violations of Φ[i, j] off the diagonal and within reach, "
        "the mean over the heads; error: the standard error of Φ, its level left out, over Φ's "
        "standard deviation. By head, and as functions of the offset: offset_kernel.json."
    )


@render.part_of_each(
    "Offset kernel",
    render.MODEL,
    Table(_about, ["model", "layer", render.VIOLATIONS, ("error", ".2f")]),
)
def offset_kernel(subject: Subject, settings: Settings) -> Findings:
    """Measure Φ by layer, of each head and their mean, and as a function of the offset."""
    config, name = settings.config, subject.name
    phi, error = map(np.asarray, kernel(subject, settings))
    entries = _entries(subject, phi.shape[-1])
    layers: list[Json] = []
    rows: list[Row] = []
    for i, heads in enumerate(violations_by_layer(subject, settings, settings.windows)):
        curve, spread = properties.offset_curve(phi[i], where=entries[i])
        mean, noise = average(heads), _noise(phi[i], error[i])
        layers.append(
            {
                "average": mean,
                "heads": heads,
                "error": noise.tolist(),
                "curve": render.for_json(curve),
                "spread": render.for_json(spread),
            }
        )
        rows.append([name, str(i), *cells(mean, settings.windows), noise.mean()])
    if len(phi) == 1:  # All models of one layer share a figure.
        pictures = _figures({name: phi[0]}, "", "", config)
    else:
        by_layer = {f"layer {i}": matrices for i, matrices in enumerate(phi)}
        pictures = _figures(by_layer, f"_{name}", f" of {name}", config)
    numbers = {"inputs": config.kernel, "samples": _sample_count(config), "layers": layers}
    return Findings({name: numbers}, rows, pictures)


def _is_constant(phi: np.ndarray) -> np.ndarray:
    """Return which of the matrices `[H, L, L]` are constant up to rounding, `[H]`."""
    axes = (-2, -1)
    return np.nanstd(phi, axes) <= 1e-6 * np.nanmax(np.abs(phi), axes)


def _noise(phi: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the standard error over the standard deviation of Φ's entries, of each head; 0 where
    Φ is constant."""
    constant = _is_constant(phi)
    root = np.sqrt(np.nanmean(error**2, (-2, -1)))
    deviation = np.where(constant, 1.0, np.nanstd(phi, (-2, -1)))
    return np.where(constant, 0.0, root / deviation)


def _figures(
    kernels: dict[str, np.ndarray], suffix: str, subject: str, config: PropertiesConfig
) -> list[Figure]:
    """Return figures of the matrices, and of their means by offset, of titled Φ `[H, L, L]`."""
    panels = [
        panel for title, phi in kernels.items() for panel in logit_panels(title, phi, config.heads)
    ]
    return [
        matrix_figure(
            f"offset_kernel{suffix}",
            panels,
            f"Offset kernel{subject}: mean logits of random words",
            "logit − mean, in standard deviations σ",
            limit=3.0,
        ),
        Figure(
            f"offset_kernel_curves{suffix}",
            figures.offset_curves,
            [_curve(title, phi) for title, phi in kernels.items()],
            title=f"Offset kernel{subject} by offset\n"
            "grey: single heads; blue: their mean, shaded ± its spread over positions",
            label="mean logit · √d, less its mean",
        ),
    ]


def _curve(title: str, phi: np.ndarray) -> figures.OffsetPanel:
    entries = ~np.isnan(phi[0])
    shape = phi - np.nanmean(phi, (-2, -1), keepdims=True)
    shape[_is_constant(phi)] *= 0  # Rounding errors are not drawn as if they were a shape.
    mean, spread = properties.offset_curve(shape.mean(0), where=entries)
    heads, _ = properties.offset_curve(shape, where=entries)
    return figures.OffsetPanel(title, *map(np.asarray, (mean, spread, heads)))
