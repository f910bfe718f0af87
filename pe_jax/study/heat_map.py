"""Violations of properties against scores, over the models of an arm: the article's heat map."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pe_jax import properties
from pe_jax.reports.property_report.scores_against_properties import heat_map
from pe_jax.study.evidence import GLUE, GLUE_MEAN, PROPERTIES, SQUAD_F1, Evidence
from pe_jax.study.plan import KEPT

FILE = "correlation"  # As its files begin.
_PROBES = ("words", "kernel")


def draw(arm: str, evidence: Evidence, out: Path) -> list[Path]:
    """The heat maps of an arm, `correlation_*.png` in `out`; none while too few models have scores
    that differ.

    A model's values are means over its seeds. The one that kept its positions is left out: its
    encoding is there as well.
    """
    models = [model for model in evidence.models(arm) if KEPT not in model]

    def column(measure: str) -> list[float]:
        means = [[*evidence.of(arm, model, measure).values()] or [np.nan] for model in models]
        return [float(np.mean(one)) for one in means]

    violations = {f"{probe}, {name}": column(f"{probe}, {name}")
                  for probe in _PROBES for name in PROPERTIES}  # fmt: skip
    measured = np.isfinite([*violations.values()]).all(0)

    def can_go_together(values: list[float]) -> bool:
        known = np.array(values)[np.isfinite(values) & measured]
        return len(known) >= properties.MINIMUM_RUNS and np.ptp(known) > 0

    scores = {name: column(name) for name in (SQUAD_F1, *GLUE, GLUE_MEAN)}
    scores = {name: values for name, values in scores.items() if can_go_together(values)}
    if not scores:
        return []
    out.mkdir(parents=True, exist_ok=True)
    found = properties.correlate(violations, scores)
    title = f"Violations against scores, {arm.replace('_', ' ')}"
    return [
        heat_map(kind, found, out / f"{FILE}_{kind}.png", title) for kind in ("pearson", "spearman")
    ]
