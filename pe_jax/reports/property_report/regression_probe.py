"""Can a linear map decode the position from its vector? (The regression probe of the blog post.)"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject, axis, position_vectors


def regression(subjects: list[Subject], settings: Settings) -> Section | None:
    """Trained on even positions, tested on all; every position that the table has."""
    numbers: Json = {}
    rows, paths = [], []
    for subject in subjects:
        for part in subject.parts():
            label, x = subject.label(part), subject.span(part, subject.length)
            fits = properties.regress(
                np.asarray(position_vectors(part, part.params, x)), x, ridge=settings.config.ridge
            )
            numbers[label] = [
                {"ridge": fit.ridge, "r2": fit.r2, "mean_absolute_error": fit.mean_absolute_error}
                for fit in fits
            ]
            best = max(fits, key=lambda fit: fit.r2["test"])
            shown = {"least squares": fits[0]}
            if best is not fits[0]:  # A penalty helped.
                shown[f"ridge {best.ridge:g}"] = best
            rows += [_row(label, len(x), name, fit) for name, fit in shown.items()]
            paths.append(_figure(label, axis(part), x, shown, settings))
    if not rows:
        return None
    lines = [
        "A linear map from position vector to position, trained on the even positions. R² and the",
        "mean absolute error (in positions) on all positions, and on the odd ones, never seen:",
        "by least squares, and with the ridge penalty (a multiple of the largest squared singular",
        "value) that is best on the odd ones. All penalties: regression.json.",
        "",
        *table(
            ["position vectors", "N", "fit", "R², all", "R², odd", "error, all", "error, odd"],
            rows,
        ),
    ]
    return Section("Regression probe", numbers, lines, paths)


def _row(label: str, count: int, name: str, fit: properties.Fit) -> list[str]:
    return [
        label,
        str(count),
        name,
        *(f"{fit.r2[some]:.3f}" for some in ("all", "test")),
        *(f"{fit.mean_absolute_error[some]:.2f}" for some in ("all", "test")),
    ]


def _figure(
    label: str, what: str, x: np.ndarray, fits: dict[str, properties.Fit], settings: Settings
) -> Path:
    """Predicted against true positions, by least squares and the best penalty."""
    panels = [
        (name if number == 0 else f"{name}, best on odd ones", fit.predicted, x % 2 == 0)
        for number, (name, fit) in enumerate(fits.items())
    ]
    return figures.prediction_plot(
        x,
        panels,
        settings.figure(f"regression_{label}"),
        title=f"The {what} read off its vector by a linear map: {label}",
        what=what,
        vector=settings.config.vector,
    )
