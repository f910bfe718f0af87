"""How position vectors evolve: P·Pᵀ at the checkpoints of a run (paper, A.4, figure 5)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.reports.property_report.measures import cells, columns, measure
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject, position_vectors
from pe_jax.reports.property_report.vectors import panel
from pe_jax.training.checkpointing import params_by_step
from pe_jax.training.metrics_writer import read_metrics

_PANELS = 8


def evolution(subjects: list[Subject], settings: Settings) -> Section | None:
    """P·Pᵀ and its properties at the start and at every checkpoint of each run that learns them."""
    names = columns(settings.windows)
    numbers: Json = {}
    rows, paths = [], []
    for subject in subjects:
        if subject.folder is None or not subject.position:
            continue
        moments = [(0, subject.start)] if subject.start else []
        moments += [
            (step, params["bert"]["position"]) for step, params in params_by_step(subject.folder)
        ]
        if len(moments) < 3:  # Start and end alone are in the section on position vectors.
            continue
        for part in subject.parts():
            if not part.params:
                continue
            label = subject.label(part)
            x = subject.span(part, settings.config.length)
            found = numbers[label] = {}
            panels, last_of = [], _last_steps(subject.folder)
            for step, position in moments:
                params = subject.params_of(part, position)
                phi = np.asarray(properties.proximity(position_vectors(part, params, x)))
                found[step] = measure(phi, settings.windows)
                rows.append([label, f"{step:,}", *cells(found[step], list(names))])
                ends = f"\nthe last of length {last_of[step]}" if step in last_of else ""
                panels.append(panel(f"step {step:,}{ends}", part, phi, x))
            switches = [i for i, (step, _) in enumerate(moments) if step in last_of]
            even = np.linspace(0, len(panels) - 1, max(2, _PANELS - len(switches)))
            shown = np.union1d(even.round().astype(int), switches).astype(int)
            paths.append(
                figures.matrix_grid(
                    [panels[i] for i in shown],
                    settings.figure(f"figure5_evolution_{label}"),
                    title=f"P·Pᵀ while training: {label}",
                    label="dot product / mean self-product",
                    limits=(-1.0, 1.0),
                    vector=settings.config.vector,
                )
            )
    if not paths:
        return None
    lines = [
        "Violations by P·Pᵀ at the checkpoints; step 0 is before training.",
        "",
        *table(["position vectors", "step", *names.values()], rows),
    ]
    return Section("Position vectors while training", numbers, lines, paths)


def _last_steps(folder: Path) -> dict[int, int]:
    """The last step of each stage that another follows, with its length in tokens. The log has a
    line at each stage's end; tokens over examples are the length."""
    rates = ("train/tokens_per_second", "train/examples_per_second")
    lines = [line for line in read_metrics(folder) if rates[1] in line]
    lengths = [(line["step"], round(line[rates[0]] / line[rates[1]])) for line in lines]
    return {step: length for (step, length), (_, then) in pairwise(lengths) if then != length}
