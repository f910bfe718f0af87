"""Positions through W_Q and W_K: P·W_Q·W_Kᵀ·Pᵀ by head (paper, figure 7), and W_Q·W_Kᵀ itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.models import projections, query_key_matrices
from pe_jax.reports.property_report.measures import Numbers, cells, columns, measure, standardized
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject, position_vectors


def heads(subjects: list[Subject], settings: Settings) -> Section | None:
    """The position-position term of absolute parts by head, and each layer's W_Q·W_Kᵀ."""
    subjects = [subject for subject in subjects if subject.model]
    if not subjects:
        return None
    by_head, paths = _position_products(subjects, settings)
    by_layer = {subject.name: _layers(subject) for subject in subjects}
    lines = []
    if by_head:
        names = columns(settings.windows)
        lines += [
            f"P·W_Q·W_Kᵀ·Pᵀ of layer {settings.config.layer}: what absolute positions add to the",
            "logits, without words. Violations; of several subjects the means over their heads",
            "(each head is in heads.json).",
            "",
            *table(
                ["position vectors", "head", *names.values()],
                [
                    [label, head, *cells(numbers, list(names))]
                    for label, each in by_head.items()
                    for head, numbers in _shown(each, alone=len(subjects) == 1).items()
                ],
            ),
            "",
        ]
    lines += [
        "W_Q·W_Kᵀ of each layer (Saponati et al. 2025): symmetry from -1 (antisymmetric) over 0",
        "(random) to 1; directionality from -1 (rows stand out) to 1 (columns do).",
        "",
        *table(
            ["model", "layer", "symmetry", "directionality"],
            [
                [name, str(layer), f"{one['symmetry']:.3f}", f"{one['directionality']:+.3f}"]
                for name, layers in by_layer.items()
                for layer, one in enumerate(layers)
            ],
        ),
    ]
    numbers: Json = {"position_products": by_head, "layers": by_layer}
    return Section("Positions by head", numbers, lines, paths)


def _position_products(
    subjects: list[Subject], settings: Settings
) -> tuple[dict[str, list[Numbers]], list[Path]]:
    """Properties of every head, and a figure, for each absolute part."""
    by_head, paths = {}, []
    for subject in subjects:
        for part in subject.parts():
            if part.card.kind != "absolute":
                continue  # Relative vectors are added to the keys after the projection.
            label, layer = subject.label(part), settings.config.layer
            x = subject.span(part, settings.config.length)
            vectors = position_vectors(part, part.params, x)
            products = np.asarray(
                properties.position_products(vectors, *projections(subject.params, layer))
            )
            by_head[label] = [measure(phi, settings.windows) for phi in products]
            panels = [
                figures.Panel(
                    f"head {h}",
                    standardized(phi),
                    int(x[0]),
                    int(x[-1]),
                    "query position",
                    "key position",
                )
                for h, phi in enumerate(products)
            ]
            paths.append(
                figures.matrix_grid(
                    panels,
                    settings.figure(f"figure7_heads_{label}"),
                    title=f"P·W_Q·W_Kᵀ·Pᵀ by head, layer {layer}: {label}",
                    label="product − mean, in standard deviations",
                    limits=(-3.0, 3.0),
                    vector=settings.config.vector,
                )
            )
    return by_head, paths


def _layers(subject: Subject) -> list[Numbers]:
    """Symmetry and directionality of every layer's W_Q·W_Kᵀ."""
    assert subject.model is not None
    matrices = query_key_matrices(subject.params, subject.model.num_layers)
    both = zip(
        properties.saponati_symmetry(matrices),
        properties.saponati_directionality(matrices),
        strict=True,
    )
    return [{"symmetry": float(s), "directionality": float(d)} for s, d in both]


def _shown(by_head: list[Numbers], *, alone: bool) -> dict[str, Numbers]:
    """The rows of the table: every head of a single subject, else their mean."""
    if alone:
        return {str(h): numbers for h, numbers in enumerate(by_head)}
    return {"mean": {k: float(np.mean([one[k] for one in by_head])) for k in by_head[0]}}
