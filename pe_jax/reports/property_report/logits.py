"""Parts on attention logits by position: identical word probing (paper, 3.1, eq. 5, figure 3),
offset kernels of every encoding, and positions through W_Q and W_K (figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import figures, properties
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.files import Json
from pe_jax.models import (
    attended,
    attention_map,
    kernel_map,
    projections,
    query_key_matrices,
)
from pe_jax.properties import Estimate
from pe_jax.reports.property_report import render
from pe_jax.reports.property_report.matrices import (
    Numbers,
    average,
    cells,
    logit_panel,
    logit_panels,
    violations,
    violations_of_each,
)
from pe_jax.reports.property_report.render import Figure, Findings, logit_figure
from pe_jax.reports.property_report.subjects import Subject, once
from pe_jax.reports.tables import Row, for_json

_WEIGHT_METRICS = {
    "forward_share": "forward share",
    "chen_locality": "Chen locality",
    "chen_symmetry": "Chen symmetry",
}

# Random inputs by `config.kernel`: a function that draws them, texts in each, and a description.
_INPUTS = {
    "words": (
        properties.random_words, 2, "pairs of random words: every query is one, every key the other"
    ),
    "texts": (
        properties.random_texts, 1, "texts of random words, as the model attends within them"
    ),
}  # fmt: skip


@once
def attention_among_copies(
    subject: Subject, config: PropertiesConfig, quantity: Literal["logits", "weights"]
) -> jax.Array:
    """Return Ā `[H, L, L]` of one layer, the mean over random words: logits or weights."""
    model = subject.bert
    if not len(subject.words):
        raise ValueError(f"The vocabulary of {subject.name} has no whole words to probe with.")
    rng = np.random.default_rng(config.seed)
    count = min(config.words, len(subject.words))
    words = rng.choice(subject.words, count, replace=False).astype(np.int32)
    length = min(config.length, subject.length)
    attend = attention_map(model, layer=config.layer, what=quantity)
    # Bounds the memory of a batch's logits, and of the [L, L, d] that some encodings make.
    batch = max(1, min(16, 2**25 // (length**2 * model.num_heads)))
    return properties.identical_words(attend, subject.params, words, length=length, batch=batch)


def _about_words(findings: Findings, config: PropertiesConfig) -> str:
    count = min(numbers["words"] for numbers in findings.numbers.values())
    return (
        f"Copies of one word fill the input; attention {config.attention} of layer {config.layer}, "
        f"averaged over {count} random words and the heads. The violations are of that matrix; "
        "forward share (-1 to 1), locality and symmetry (Chen et al. 2023, 1 = it holds) are of "
        "the softmaxed weights. By head: words.json."
    )


@render.part(
    "Identical words",
    render.MODEL,
    (
        _about_words,
        ["model", render.VIOLATIONS, *((name, ".3f") for name in _WEIGHT_METRICS.values())],
    ),
)
def identical_words(subject: Subject, config: PropertiesConfig) -> Findings:
    """Measure Ā, averaged over the heads and by head, and the attention weights."""
    logits = np.asarray(attention_among_copies(subject, config, "logits"))
    weights = np.asarray(attention_among_copies(subject, config, "weights"))
    shown = weights if config.attention == "weights" else logits

    def metrics(phi: np.ndarray, weights: np.ndarray) -> Numbers:
        weight_metrics = {
            name: float(getattr(properties, name)(weights)) for name in _WEIGHT_METRICS
        }
        return violations(phi, config.windows) | weight_metrics

    mean = shown.mean(0)
    mean_metrics = metrics(mean, weights.mean(0))
    numbers = {
        "words": min(config.words, len(subject.words)),
        "spread": float(mean.std()),
        "average": mean_metrics,
        "heads": [metrics(*pair) for pair in zip(shown, weights, strict=True)],
    }
    violation_cells = cells(mean_metrics, config.windows)
    row = [subject.name, *violation_cells, *map(mean_metrics.get, _WEIGHT_METRICS)]
    panels = logit_panels(subject.name, shown, config.heads)
    title = f"Attention {config.attention} among identical words, layer {config.layer}"
    figure = logit_figure("figure3_words", panels, title, config.attention)
    return Findings({subject.name: numbers}, [row], [figure])


@once
def kernel(subject: Subject, config: PropertiesConfig) -> Estimate:
    """Return Φ and its standard error `[N, H, L, L]` of all layers, NaN where nothing is attended
    to.

    Raises:
      ValueError: if there are too few words.
    """
    model, (draw, texts, _) = subject.bert, _INPUTS[config.kernel]
    length = min(config.length, subject.length)
    if len(subject.words) < 2:
        raise ValueError(
            f"The vocabulary of {subject.name} has fewer than two whole words to pair."
        )
    words = jnp.asarray(subject.words, jnp.int32)
    rng = jax.random.key(config.seed)
    tokens = draw(rng, words, count=_sample_count(config), length=length)
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
    return max(1, config.words // _INPUTS[config.kernel][1])


def _entries(subject: Subject, length: int) -> np.ndarray:
    """Return the mask of entries that the layers have, `[N, L, L]`."""
    return np.asarray(attended(subject.bert, length))


def violations_by_layer(
    subject: Subject, config: PropertiesConfig, windows: Sequence[int]
) -> list[list[Numbers]]:
    """Return the violations of Φ by layer and head."""
    phi, layers = kernel(subject, config).mean, []
    for matrices, entries in zip(phi, _entries(subject, phi.shape[-1]), strict=True):
        by_name = violations_of_each(matrices, windows, entries)
        layers.append(
            [{name: float(v[head]) for name, v in by_name.items()} for head in range(len(matrices))]
        )
    return layers


def _about_kernel(findings: Findings, config: PropertiesConfig) -> str:
    del findings
    return (
        f"Mean logits (times √d, before softmax) over {_sample_count(config)} "
        f"{_INPUTS[config.kernel][2]}. Violations of Φ[i, j] off the diagonal and within reach, "
        "the mean over the heads; error: the standard error of Φ, its level left out, over Φ's "
        "standard deviation. By head, and as functions of the offset: offset_kernel.json."
    )


@render.part(
    "Offset kernel",
    render.MODEL,
    (_about_kernel, ["model", "layer", render.VIOLATIONS, ("error", ".2f")]),
)
def offset_kernel(subject: Subject, config: PropertiesConfig) -> Findings:
    """Measure Φ by layer, of each head and their mean, and as a function of the offset."""
    name = subject.name
    phi, error = map(np.asarray, kernel(subject, config))
    entries = _entries(subject, phi.shape[-1])
    layers: list[Json] = []
    rows: list[Row] = []
    for i, heads in enumerate(violations_by_layer(subject, config, config.windows)):
        curve, spread = properties.offset_curve(phi[i], where=entries[i])
        mean, noise = average(heads), _noise(phi[i], error[i])
        layers.append(
            {
                "average": mean,
                "heads": heads,
                "error": noise.tolist(),
                "curve": for_json(curve),
                "spread": for_json(spread),
            }
        )
        rows.append([name, str(i), *cells(mean, config.windows), noise.mean()])
    if len(phi) == 1:  # All models of one layer share a figure.
        pictures = _kernel_figures({name: phi[0]}, "", "", config)
    else:
        by_layer = {f"layer {i}": matrices for i, matrices in enumerate(phi)}
        pictures = _kernel_figures(by_layer, f"_{name}", f" of {name}", config)
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


def _kernel_figures(
    kernels: dict[str, np.ndarray], suffix: str, subject: str, config: PropertiesConfig
) -> list[Figure]:
    """Return figures of the matrices, and of their means by offset, of titled Φ `[H, L, L]`."""
    panels = [
        panel for title, phi in kernels.items() for panel in logit_panels(title, phi, config.heads)
    ]
    title = f"Offset kernel{subject}: mean logits of random words"
    curves = Figure(
        f"offset_kernel_curves{suffix}",
        figures.offset_curves,
        [_curve(title, phi) for title, phi in kernels.items()],
        title=f"Offset kernel{subject} by offset\n"
        "grey: single heads; blue: their mean, shaded ± its spread over positions",
        label="mean logit · √d, less its mean",
    )
    return [logit_figure(f"offset_kernel{suffix}", panels, title), curves]


def _curve(title: str, phi: np.ndarray) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    """Return the panel of `figures.offset_curves` of a Φ."""
    entries = ~np.isnan(phi[0])
    shape = phi - np.nanmean(phi, (-2, -1), keepdims=True)
    shape[_is_constant(phi)] *= 0  # Rounding errors are not drawn as if they were a shape.
    mean, spread = map(np.asarray, properties.offset_curve(shape.mean(0), where=entries))
    return title, mean, spread, np.asarray(properties.offset_curve(shape, where=entries)[0])


@render.part(
    "Positions by head",
    render.MODEL,
    (
        "P·W_Q·W_Kᵀ·Pᵀ of layer {config.layer}: the term that absolute positions add to the "
        "logits, without words. Violations; of several subjects the means over their heads "
        "(each head is in heads.json).",
        ["position vectors", "head", render.VIOLATIONS],
    ),
    (
        "W_Q·W_Kᵀ of each layer (Saponati et al. 2025): symmetry from -1 (antisymmetric) over "
        "0 (random) to 1; directionality from -1 (rows stand out) to 1 (columns do).",
        ["model", "layer", ("symmetry", ".3f"), ("directionality", "+.3f")],
    ),
    is_joint=True,
)
def positions_by_head(subjects: Sequence[Subject], config: PropertiesConfig, out: Path) -> Findings:
    """Measure P·W_Q·W_Kᵀ·Pᵀ of absolute components by head, and each layer's W_Q·W_Kᵀ."""
    del out
    products_of_all: dict[str, list[Numbers]] = {}
    layers_of_all: dict[str, list[Numbers]] = {}
    findings = Findings({"position_products": products_of_all, "layers": layers_of_all})
    models = [subject for subject in subjects if subject.model is not None]
    for subject in models:
        products = _products(subject, config, findings.figures)
        layers = _symmetries(subject)
        products_of_all |= products
        layers_of_all[subject.name] = layers
        for label, heads in products.items():
            by_head = {str(h): numbers for h, numbers in enumerate(heads)}
            shown = by_head if len(models) == 1 else {"mean": average(heads)}
            findings.rows += [
                [label, head, *cells(numbers, config.windows)] for head, numbers in shown.items()
            ]
        findings.more_rows += [
            [subject.name, str(i), *numbers.values()] for i, numbers in enumerate(layers)
        ]
    return findings


def _products(
    subject: Subject, config: PropertiesConfig, drawings: list[Figure]
) -> dict[str, list[Numbers]]:
    """Return the violations of every head by component; append a figure of each to `drawings`."""
    layer, by_label = config.layer, {}
    for component in subject.with_vectors():
        if component.card.kind != "absolute":
            continue  # Relative vectors are added to the keys after the projection.
        label, x = component.label, component.positions(config.length)
        kernels = projections(subject.params, layer)
        products = np.asarray(properties.position_products(component.vectors(x), *kernels))
        by_label[label] = [violations(phi, config.windows) for phi in products]
        panels = [logit_panel(f"head {h}", phi) for h, phi in enumerate(products)]
        title = f"P·W_Q·W_Kᵀ·Pᵀ by head, layer {layer}: {label}"
        drawings.append(logit_figure(f"figure7_heads_{label}", panels, title, "product"))
    return by_label


def _symmetries(subject: Subject) -> list[Numbers]:
    """Return symmetry and directionality of every layer's W_Q·W_Kᵀ."""
    matrices = query_key_matrices(subject.params, subject.bert.num_layers)
    symmetry = properties.saponati_symmetry(matrices)
    directionality = properties.saponati_directionality(matrices)
    return [
        {"symmetry": float(s), "directionality": float(d)}
        for s, d in zip(symmetry, directionality, strict=True)
    ]
