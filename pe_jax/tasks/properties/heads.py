"""Positions through W_Q and W_K: P·W_Q·W_Kᵀ·Pᵀ by head (paper, figure 7), and W_Q·W_Kᵀ itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from pe_jax import figures, properties
from pe_jax.models import projections, query_key_matrices
from pe_jax.tasks.markdown import table
from pe_jax.tasks.properties.measures import Numbers, cells, columns, measure, standardized
from pe_jax.tasks.properties.section import Section, Settings
from pe_jax.tasks.properties.subjects import Subject, position_vectors


def heads(subjects: list[Subject], settings: Settings) -> Section | None:
    """The position-position term of absolute parts by head, and each layer's W_Q·W_Kᵀ."""
    subjects = [subject for subject in subjects if subject.model]
    if not subjects:
        return None
    names = columns(settings.windows)
    numbers: dict[str, Any] = {}
    rows, layer_rows, paths = [], [], []
    for subject in subjects:
        assert subject.model is not None
        found = numbers[subject.name] = {"position_products": {}, "layers": []}
        for part, params in subject.parts():
            if part.kind != "absolute":
                continue  # A relative vector is added to the keys after the projection.
            x = subject.span(part, settings.config.length)
            products = np.asarray(
                properties.position_products(
                    position_vectors(part, params, x),
                    *projections(subject.params, settings.config.layer),
                )
            )
            by_head = [measure(phi, settings.windows) for phi in products]
            found["position_products"][part.name] = by_head
            rows += _rows(subject.label(part), by_head, list(names), each=len(subjects) == 1)
            paths.append(_figure(subject.label(part), products, x, settings))
        matrices = query_key_matrices(subject.params, subject.model.num_layers)
        symmetry = properties.saponati_symmetry(matrices)
        directionality = properties.saponati_directionality(matrices)
        for layer, (s, d) in enumerate(zip(symmetry, directionality, strict=True)):
            found["layers"].append({"symmetry": float(s), "directionality": float(d)})
            layer_rows.append([subject.name, str(layer), f"{float(s):.3f}", f"{float(d):+.3f}"])
    lines = []
    if rows:
        lines += [
            f"P·W_Q·W_Kᵀ·Pᵀ of layer {settings.config.layer}: what absolute positions add to the",
            "logits, without words. Violations"
            + (
                " by head:"
                if len(subjects) == 1
                else ", means over the heads (by head: heads.json):"
            ),
            "",
            *table(["position vectors", "head", *names.values()], rows),
            "",
        ]
    lines += [
        "W_Q·W_Kᵀ of each layer (Saponati et al. 2025): symmetry from -1 (antisymmetric) over 0",
        "(random) to 1; directionality from -1 (rows stand out) to 1 (columns do).",
        "",
        *table(["model", "layer", "symmetry", "directionality"], layer_rows),
    ]
    return Section("Positions by head", numbers, lines, paths)


def _rows(label: str, by_head: list[Numbers], names: list[str], *, each: bool) -> list[list[str]]:
    """A row for each head, or one of their means."""
    if each:
        return [[label, str(h), *cells(one, names)] for h, one in enumerate(by_head)]
    mean = {name: float(np.mean([one[name] for one in by_head])) for name in by_head[0]}
    return [[label, "mean", *cells(mean, names)]]


def _figure(label: str, products: np.ndarray, x: np.ndarray, settings: Settings):
    panels = [
        figures.Panel(
            f"head {h}", standardized(phi), int(x[0]), int(x[-1]), "query position", "key position"
        )
        for h, phi in enumerate(products)
    ]
    return figures.matrix_grid(
        panels,
        settings.figure(f"figure7_heads_{label}"),
        title=f"P·W_Q·W_Kᵀ·Pᵀ by head, layer {settings.config.layer}: {label}",
        label="product − mean, in standard deviations",
        limits=(-3.0, 3.0),
        vector=settings.config.vector,
    )
