"""Parts on one layer's attention: identical word probing (paper, 3.1, eq. 5, figure 3), and
positions through W_Q and W_K (figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import jax
import numpy as np

from pe_jax import properties
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.models import attention_map, projections, query_key_matrices
from pe_jax.reports.property_report import render
from pe_jax.reports.property_report.matrices import logit_panel, logit_panels, matrix_figure
from pe_jax.reports.property_report.render import Findings, Settings, Table
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.violations import (
    Numbers,
    average,
    cells,
    violations,
)

Quantity: TypeAlias = Literal["logits", "weights"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
HEADS = ("average", "each")  # Whose figures are drawn.

_WEIGHT_METRICS = {
    "forward_share": "forward share",
    "chen_locality": "Chen locality",
    "chen_symmetry": "Chen symmetry",
}


@render.once
def attention_among_copies(subject: Subject, settings: Settings, quantity: Quantity) -> jax.Array:
    """Return Ā `[H, L, L]` of one layer, the mean over random words: logits or weights."""
    config, model = settings.config, subject.bert
    assert subject.words is not None
    if not len(subject.words):
        raise ValueError(f"{subject.name} has no whole words in its vocabulary to probe with.")
    rng = np.random.default_rng(config.seed)
    count = _word_count(subject, config)
    words = rng.choice(subject.words, count, replace=False).astype(np.int32)
    length = min(config.length, subject.length)
    attend = attention_map(model, layer=config.layer, what=quantity)
    # Bounds the memory of a batch's logits, and of the [L, L, d] that some encodings make.
    batch = max(1, min(16, 2**25 // (length**2 * model.num_heads)))
    return properties.identical_words(attend, subject.params, words, length=length, batch=batch)


def _word_count(subject: Subject, config: PropertiesConfig) -> int:
    """Return the number of words to draw: `config.words`, or all of a smaller vocabulary."""
    return 0 if subject.words is None else min(config.words, len(subject.words))


def _about_words(findings: Findings, config: PropertiesConfig) -> str:
    count = min(numbers["words"] for numbers in findings.numbers.values())
    return (
        f"Copies of one word fill the input; attention {config.attention} of layer {config.layer}, "
        f"averaged over {count} random words and the heads. The violations are of that matrix; "
        "forward share (-1 to 1), locality and symmetry (Chen et al. 2023, 1 = it holds) are of "
        "the softmaxed weights. By head: words.json."
    )


@render.part_of_each(
    "Identical words",
    render.MODEL,
    Table(
        _about_words,
        ["model", render.VIOLATIONS, *((name, ".3f") for name in _WEIGHT_METRICS.values())],
    ),
)
def identical_words(subject: Subject, settings: Settings) -> Findings:
    """Measure Ā, averaged over the heads and by head, and the attention weights."""
    config, name = settings.config, subject.name
    logits = np.asarray(attention_among_copies(subject, settings, "logits"))
    weights = np.asarray(attention_among_copies(subject, settings, "weights"))
    shown = weights if config.attention == "weights" else logits
    mean = shown.mean(0)
    average_metrics = _metrics(mean, weights.mean(0), settings)
    numbers = {
        "words": _word_count(subject, config),
        "spread": float(mean.std()),
        "average": average_metrics,
        "heads": [_metrics(*pair, settings) for pair in zip(shown, weights, strict=True)],
    }
    row = [
        name,
        *cells(average_metrics, config.windows),
        *map(average_metrics.get, _WEIGHT_METRICS),
    ]
    figure = matrix_figure(
        "figure3_words",
        logit_panels(name, shown, config.heads),
        f"Attention {config.attention} among identical words, layer {config.layer}",
        f"{config.attention} − mean, in standard deviations σ",
        limit=3.0,
    )
    return Findings({name: numbers}, [row], [figure])


def _metrics(phi: np.ndarray, weights: np.ndarray, settings: Settings) -> Numbers:
    """Return the violations of Ā, with direction and distance of the softmaxed attention."""
    of_weights = {name: float(getattr(properties, name)(weights)) for name in _WEIGHT_METRICS}
    return violations(phi, settings.windows) | of_weights


@render.part_of_all(
    "Positions by head",
    render.MODEL,
    Table(
        "P·W_Q·W_Kᵀ·Pᵀ of layer {config.layer}: the term that absolute positions add to the "
        "logits, without words. Violations; of several subjects the means over their heads "
        "(each head is in heads.json).",
        ["position vectors", "head", render.VIOLATIONS],
    ),
    Table(
        "W_Q·W_Kᵀ of each layer (Saponati et al. 2025): symmetry from -1 (antisymmetric) over "
        "0 (random) to 1; directionality from -1 (rows stand out) to 1 (columns do).",
        ["model", "layer", ("symmetry", ".3f"), ("directionality", "+.3f")],
    ),
)
def positions_by_head(subjects: Sequence[Subject], settings: Settings) -> Findings:
    """Measure P·W_Q·W_Kᵀ·Pᵀ of absolute components by head, and each layer's W_Q·W_Kᵀ."""
    findings = Findings()
    models = [subject for subject in subjects if subject.model is not None]
    for subject in models:
        products, layers = _products_of_subject(subject, settings, findings), _layers(subject)
        findings.add(Findings({"position_products": products, "layers": {subject.name: layers}}))
        for label, heads in products.items():
            by_head = {str(h): numbers for h, numbers in enumerate(heads)}
            shown = by_head if len(models) == 1 else {"mean": average(heads)}
            findings.rows += [
                [label, head, *cells(numbers, settings.windows)] for head, numbers in shown.items()
            ]
        findings.more_rows += [
            [subject.name, str(i), *numbers.values()] for i, numbers in enumerate(layers)
        ]
    return findings


def _products_of_subject(
    subject: Subject, settings: Settings, findings: Findings
) -> dict[str, list[Numbers]]:
    """Return the violations of every head by component, and add a figure for each component."""
    layer, by_label = settings.config.layer, {}
    for component in subject.with_vectors():
        if component.kind != "absolute":
            continue  # Relative vectors are added to the keys after the projection.
        label, x = component.label, component.positions(settings.config.length)
        kernels = projections(subject.params, layer)
        products = np.asarray(properties.position_products(component.vectors(x), *kernels))
        by_label[label] = [violations(phi, settings.windows) for phi in products]
        figure = matrix_figure(
            f"figure7_heads_{label}",
            [logit_panel(f"head {h}", phi) for h, phi in enumerate(products)],
            f"P·W_Q·W_Kᵀ·Pᵀ by head, layer {layer}: {label}",
            "product − mean, in standard deviations σ",
            limit=3.0,
        )
        findings.figures.append(figure)
    return by_label


def _layers(subject: Subject) -> list[Numbers]:
    """Return symmetry and directionality of every layer's W_Q·W_Kᵀ."""
    matrices = query_key_matrices(subject.params, subject.bert.num_layers)
    symmetry = properties.saponati_symmetry(matrices)
    directionality = properties.saponati_directionality(matrices)
    return [
        {"symmetry": float(s), "directionality": float(d)}
        for s, d in zip(symmetry, directionality, strict=True)
    ]
