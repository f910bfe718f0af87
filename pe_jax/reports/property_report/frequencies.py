"""Part on sinusoids: single cosines, their sum ψ, and how far it decreases (figures 4 and 6)."""

from __future__ import annotations

import numpy as np

from pe_jax import figures, properties
from pe_jax.reports.property_report import render
from pe_jax.reports.property_report.render import Figure, Findings, Settings, Table
from pe_jax.reports.property_report.subjects import Subject


@render.part_of_each(
    "Frequencies",
    "a sinusoidal encoding",
    Table(
        "Frequencies in radians per position. Cosines below π/{config.length} decrease over all "
        "{config.length} positions, those above π alternate from one position to the next. ψ(m) = "
        "Σ cos(ω_i m) decreases up to the turning point.",
        ["sinusoids", ("F", "d"), ("least", ".2g"), ("median", ".2g"), ("greatest", ".3g"),
         ("below π/{config.length}", ".0%"), ("above π", ".0%"), ("turn", "d")],
    ),
)  # fmt: skip
def frequencies(subject: Subject, settings: Settings) -> Findings:
    """Measure ψ(m), its turning point, and the range of frequencies of sinusoidal components."""
    length = settings.config.length
    offsets = np.arange(length)
    findings = Findings()
    for component in subject.components():
        if component.frequencies is None:
            continue
        label = component.label
        w = np.abs(np.asarray(component.frequencies))  # cos is even.
        psi = np.asarray(properties.psi(w, offsets)) / len(w)
        turn = int(properties.turning_point(psi))
        findings.numbers[label] = {
            "frequencies": w.tolist(),
            "turning_point": turn,
            "psi": psi.tolist(),
        }
        slow, fast = (w < np.pi / length).mean(), (w > np.pi).mean()
        findings.rows.append([label, len(w), w.min(), np.median(w), w.max(), slow, fast, turn])
        # Five frequencies from the slowest to the fastest.
        chosen = np.sort(w)[np.unique(np.linspace(0, len(w) - 1, min(5, len(w))).astype(int))]
        cosines = np.asarray(properties.cosines(chosen, offsets))
        waves = [(f"ω = {x:.2g}", values) for x, values in zip(chosen, cosines, strict=True)]
        total = figures.PsiCurve(label, psi, turn)
        title = f"Cosines of frequencies and their sum: {label}"
        both = "ψ(m): dot product of two sinusoids m positions apart"
        findings.figures += [
            Figure(
                f"figure4_waves_{label}", figures.cosine_curves, waves, title=title, total=total
            ),
            Figure("figure6_psi", figures.psi_curves, [total], title=both),
        ]
    return findings
