"""What learned frequencies do: single cosines, their sum ψ, how far it falls (figures 4 and 6)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pe_jax import figures, properties
from pe_jax.tasks.markdown import table
from pe_jax.tasks.properties.section import Section, Settings
from pe_jax.tasks.properties.subjects import Subject


def frequencies(subjects: list[Subject], settings: Settings) -> Section | None:
    """ψ(m) and its turning point for every part made of waves, and where its frequencies lie."""
    length = settings.config.length
    m = np.arange(length)
    numbers: dict[str, Any] = {}
    rows, paths, curves = [], [], {}
    for subject in subjects:
        for part, params in subject.parts():
            if part.frequencies is None:
                continue
            label = subject.label(part)
            w = np.abs(np.asarray(part.frequencies(params)))  # cos does not know the sign.
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
    lines = [
        f"Frequencies in radians per position. Waves below π/{length} fall over all {length}",
        "positions, waves above π alternate from one position to the next. ψ(m) = Σ cos(ω_i m)",
        "falls without a break up to the turning point.",
        "",
        *table(
            ["waves", "F", "least", "median", "greatest", f"below π/{length}", "above π", "turn"],
            rows,
        ),
    ]
    return Section("Frequencies", numbers, lines, paths)


def _figure(label, w: np.ndarray, m: np.ndarray, curve: np.ndarray, turn: int, settings: Settings):
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
