"""Can a linear map read the position off its vector? (The regression probe of the blog post.)"""

from __future__ import annotations

from typing import Any

import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject, axis, position_vectors


def regression(subjects: list[Subject], settings: Settings) -> Section | None:
    """Trained on even positions, tested on all; every position that the table has."""
    numbers: dict[str, Any] = {}
    rows, paths = [], []
    for subject in subjects:
        for part, params in subject.parts():
            label = subject.label(part)
            x = subject.span(part, subject.length)
            fits = properties.regress(
                np.asarray(position_vectors(part, params, x)), x, ridge=settings.config.ridge
            )
            best = max(fits, key=lambda fit: fit.r2["test"])
            numbers[label] = [
                {"ridge": fit.ridge, "r2": fit.r2, "mean_absolute_error": fit.mean_absolute_error}
                for fit in fits
            ]
            shown = {"least squares": fits[0]}
            if best is not fits[0]:  # A penalty helped.
                shown[f"ridge {best.ridge:.0e}"] = best
            for name, fit in shown.items():
                rows.append(
                    [label, str(len(x)), name,
                     *(f"{fit.r2[some]:.3f}" for some in ("all", "test")),
                     *(f"{fit.mean_absolute_error[some]:.2f}" for some in ("all", "test"))]
                )  # fmt: skip
            panels = [
                (name if fit is fits[0] else f"{name}, best on odd", fit.predicted, x % 2 == 0)
                for name, fit in shown.items()
            ]
            paths.append(
                figures.prediction_plot(
                    x,
                    panels,
                    settings.figure(f"regression_{label}"),
                    title=f"Read off its vector by a linear map: {label}",
                    what=axis(part),
                    vector=settings.config.vector,
                )
            )
    if not rows:
        return None
    lines = [
        "A linear map from position vector to position, trained on the even positions. R² and the",
        "mean absolute error (in positions) on all positions, and on the odd ones, never seen:",
        "by least squares, and with the ridge penalty (a multiple of the largest squared singular",
        "value) that does best on the odd ones. The whole path: regression.json.",
        "",
        *table(
            ["position vectors", "N", "fit", "R², all", "R², odd", "error, all", "error, odd"],
            rows,
        ),
    ]
    return Section("Regression probe", numbers, lines, paths)
