"""Frequencies: single cosines, their sum ψ, and how far it decreases (figures 4 and 6)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject


def frequencies(subjects: list[Subject], settings: Settings) -> Section | None:
    """ψ(m), its turning point, and the range of frequencies for every sinusoidal part."""
    length = settings.config.length
    m = np.arange(length)
    numbers: Json = {}
    rows, paths, curves = [], [], {}
    for subject in subjects:
        for part in subject.viewed():
            if part.card.frequencies is None:
                continue
            label = subject.label(part)
            w = np.abs(np.asarray(part.card.frequencies(part.params))).ravel()  # cos is even.
            curve = np.asarray(properties.psi(w, m)) / len(w)
            turn = int(properties.turning_point(curve))
            curves[label] = (curve, turn)
            numbers[label] = {
                "frequencies": w.tolist(),
                "turning_point": turn,
                "psi": curve.tolist(),
            }
            slow, fast = (w < np.pi / length).mean(), (w > np.pi).mean()
            rows.append(
                [label, str(len(w)), f"{w.min():.2g}", f"{np.median(w):.2g}", f"{w.max():.3g}",
                 f"{slow:.0%}", f"{fast:.0%}", str(turn)]
            )  # fmt: skip
            paths.append(_figure(label, w, m, curve, turn, settings))
    if not curves:
        return None
    paths.append(
        figures.psi_curves(
            {label: curve for label, (curve, _) in curves.items()},
            {label: turn for label, (_, turn) in curves.items()},
            settings.figure("figure6_psi"),
            title="ψ(m): dot product of two sinusoids m positions apart",
            vector=settings.config.vector,
        )
    )
    shares = (f"below π/{length}", "above π")
    lines = [
        f"Frequencies in radians per position. Cosines below π/{length} decrease over all {length}",
        "positions, those above π alternate from one position to the next. ψ(m) = Σ cos(ω_i m)",
        "decreases up to the turning point.",
        "",
        *table(
            ["sinusoids", "F", "least", "median", "greatest", *shares, "turn"],
            rows,
        ),
    ]
    return Section("Frequencies", numbers, lines, paths)


def _figure(
    label: str, w: np.ndarray, m: np.ndarray, curve: np.ndarray, turn: int, settings: Settings
) -> Path:
    """Five frequencies from the slowest to the fastest, and the sum of all."""
    chosen = np.sort(w)[np.unique(np.linspace(0, len(w) - 1, min(5, len(w))).astype(int))]
    cosines = np.asarray(properties.cosines(chosen, m))
    return figures.cosine_curves(
        {f"ω = {one:.2g}": curve for one, curve in zip(chosen, cosines, strict=True)},
        curve,
        settings.figure(f"figure4_waves_{label}"),
        title=f"Cosines of frequencies and their sum: {label}",
        turning_point=turn,
        vector=settings.config.vector,
    )
