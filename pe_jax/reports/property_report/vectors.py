"""Dot products of position vectors, P·Pᵀ, and their properties (paper, section 5.1, figure 2)."""

from __future__ import annotations

import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.encodings import Placed
from pe_jax.reports.property_report.measures import (
    Numbers,
    cells,
    columns,
    measure,
    to_unit,
)
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject, axis, position_vectors

_NEAR = 8


def vectors(subjects: list[Subject], settings: Settings) -> Section | None:
    """P·Pᵀ of every part that has vectors and, for runs, before training."""
    names = columns(settings.windows)
    numbers: dict[str, dict[str, Numbers]] = {}
    rows, panels = [], []
    for subject in subjects:
        for part in subject.parts():
            x = subject.span(part, settings.config.length)
            label = subject.label(part)
            before = subject.params_of(part, subject.start) if subject.start else {}
            now = "trained" if subject.step else "untrained" if subject.untrained else "published"
            versions = {now: part.params}
            if before:
                versions["at the start"] = before
            for when, some in versions.items():
                phi = np.asarray(properties.proximity(position_vectors(part, some, x)))
                found = measure(phi, settings.windows)
                if part.card.kind == "relative":
                    found |= likeness(phi, x)
                numbers.setdefault(label, {})[when] = found
                rows.append([label, when, part.card.kind, *cells(found, list(names))])
                if some is part.params:
                    panels.append(panel(label, part, phi, x))
    if not panels:
        return None
    path = figures.matrix_grid(
        panels,
        settings.figure("figure2_vectors"),
        title="Dot products of position vectors, P·Pᵀ",
        label="dot product / mean self-product",
        limits=(-1.0, 1.0),
        vector=settings.config.vector,
    )
    lines = [
        "Violations by P·Pᵀ, from 0 (the property holds exactly) to 1: translation invariance, all",
        "positions and without the first; monotonicity within windows of offsets; symmetry, which",
        "every matrix of dot products has. Relative vectors are compared offset with offset.",
        "",
        *table(["position vectors", "when", "kind", *names.values()], rows),
    ]
    return Section("Position vectors", numbers, lines, [path])


def likeness(phi: np.ndarray, x: np.ndarray) -> Numbers:
    """How alike the vectors of near offsets are, at most 8, and those of far ones, beyond half of
    the farthest: the mean cosine of two different ones on the same side. Far offsets that merge
    come near 1; where an encoding has fewer than two of them, nothing is said.

    Args:
      phi: `[L, L]`, P·Pᵀ at the offsets `x` `[L]`.
    """
    size = np.sqrt(np.diagonal(phi))
    groups = {
        "likeness_near": (np.abs(x) <= _NEAR) & (x != 0),
        "likeness_far": 2 * np.abs(x) > np.abs(x).max(initial=0),
    }
    same_side = (np.sign(x)[:, None] == np.sign(x)) & ~np.eye(len(x), dtype=bool)
    found = {}
    for name, chosen in groups.items():
        pairs = same_side & chosen[:, None] & chosen
        if pairs.any() and size[chosen].all():
            found[name] = float((phi / np.outer(size, size))[pairs].mean())
    return found


def panel(title: str, part: Placed, phi: np.ndarray, x: np.ndarray) -> figures.Panel:
    """P·Pᵀ of a part at positions or offsets `x`, in units of its self-proximity."""
    return figures.Panel(title, to_unit(phi), int(x[0]), int(x[-1]), axis(part), axis(part))
