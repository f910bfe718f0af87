"""Parts on position vectors: P·Pᵀ (paper, 5.1, figure 2), also over training (A.4, figure 5); the
position predicted from its vector (the regression probe of the blog post); and sinusoids, with
their sum ψ and how far it decreases (figures 4 and 6); and positions through W_Q and W_K
(figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from pe_jax import properties
from pe_jax.models import projections, query_key_matrices
from pe_jax.trainer import figures
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report import matrices, render
from pe_jax.trainer.reports.property_report.matrices import (
    Numbers,
    cells,
    product_panel,
    violations,
)
from pe_jax.trainer.reports.property_report.render import (
    Figure,
    Findings,
    logit_figure,
    product_figure,
)
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.training.checkpointing import params_by_step
from pe_jax.trainer.training.metrics import read_metrics

_NEAR = 8  # Offsets, at most.
_PANELS = 8  # Of the figure over training.


@render.part(
    "Position vectors",
    "Violations by P·Pᵀ, from 0 (the property holds exactly) to 1: translation invariance, of all "
    "positions and without the first; monotonicity within windows of offsets; symmetry, which "
    "every matrix of dot products has. Relative vectors are compared offset with offset.",
    ["position vectors", "when", "kind", render.VIOLATIONS],
    needs="an encoding with position vectors",
)
def position_vectors(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure P·Pᵀ of every component that has vectors and, for runs, before training."""
    findings = Findings()
    now = (
        "trained" if subject.step else "untrained" if subject.untrained else "published"
    )
    versions = {now: subject.with_vectors()}
    if subject.start:
        versions["at the start"] = subject.with_vectors(subject.start)
    for components in zip(*versions.values()):
        label, kind = components[0].label, components[0].metadata.kind
        x = components[0].positions(config.length)
        numbers = findings.numbers[label] = {}
        for time, component in zip(versions, components):
            phi = np.asarray(properties.proximity(component.vectors(x)))
            numbers[time] = violations(phi, config.windows)
            if kind == "relative":
                numbers[time] |= likeness(phi, x)
            findings.rows.append(
                [label, time, kind, *cells(numbers[time], config.windows)]
            )
            if time == now:
                panel = product_panel(label, phi, x, component.axis)
                title = "Dot products of position vectors, P·Pᵀ"
                findings.figures.append(
                    product_figure("figure2_vectors", [panel], title)
                )
    return findings


def likeness(phi: np.ndarray, x: np.ndarray) -> Numbers:
    """Return the mean cosine of two different vectors of near offsets, at most 8, and of far ones,
    beyond half of the farthest, on the same side, from P·Pᵀ `[L, L]` at the offsets `x` `[L]`. Far
    offsets that merge come near 1. A number is missing with fewer than two such offsets."""
    size = np.sqrt(np.diagonal(phi))
    groups = {
        "likeness_near": (np.abs(x) <= _NEAR) & (x != 0),
        "likeness_far": 2 * np.abs(x) > np.abs(x).max(initial=0),
    }
    same_side = (np.sign(x)[:, None] == np.sign(x)) & ~np.eye(len(x), dtype=bool)
    means = {}
    for name, chosen in groups.items():
        pairs = same_side & chosen[:, None] & chosen
        if pairs.any() and size[chosen].all():
            means[name] = float((phi / np.outer(size, size))[pairs].mean())
    return means


@render.part(
    "Position vectors while training",
    "Violations by P·Pᵀ at the checkpoints; step 0 is before training.",
    ["position vectors", "step", render.VIOLATIONS],
    needs="a run of a learned encoding with checkpoints of two steps or more",
)
def evolution(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure P·Pᵀ at the start and at every checkpoint of a run that learns its vectors."""
    if subject.folder is None or not subject.position:
        return Findings()
    moments = [(0, subject.start)] if subject.start else []
    moments += [
        (step, params["bert"]["position"])
        for step, params in params_by_step(subject.folder)
    ]
    if len(moments) < 3:  # Start and end alone are in the part on position vectors.
        return Findings()
    findings, last_steps = Findings(), _last_steps(subject.folder)
    switches = [i for i, (step, _) in enumerate(moments) if step in last_steps]
    even = np.linspace(0, len(moments) - 1, max(2, _PANELS - len(switches)))
    shown = np.union1d(even.round().astype(int), switches).astype(int)
    versions = [subject.with_vectors(position) for _, position in moments]
    for components in zip(*versions):
        label, x = components[0].label, components[0].positions(config.length)
        if not components[0].params:
            continue  # Nothing is learned.
        numbers = findings.numbers[label] = {}
        panels = []
        for (step, _), component in zip(moments, components):
            phi = np.asarray(properties.proximity(component.vectors(x)))
            numbers[step] = violations(phi, config.windows)
            findings.rows.append(
                [label, f"{step:,}", *cells(numbers[step], config.windows)]
            )
            end = (
                f"\nthe last of length {last_steps[step]}" if step in last_steps else ""
            )
            panels.append(product_panel(f"step {step:,}{end}", phi, x, component.axis))
        name, title = f"figure5_evolution_{label}", f"P·Pᵀ while training: {label}"
        findings.figures.append(product_figure(name, [panels[i] for i in shown], title))
    return findings


def _last_steps(folder: Path) -> dict[int, int]:
    """Return the last step of each stage that another follows, with its length in tokens."""
    rates = ("train/tokens_per_second", "train/examples_per_second")
    lines = [line for line in read_metrics(folder) if rates[1] in line]
    lengths = [(line["step"], round(line[rates[0]] / line[rates[1]])) for line in lines]
    return {
        step: length
        for (step, length), (_, after) in pairwise(lengths)
        if after != length
    }


@render.part(
    "Regression probe",
    "A linear map from position vector to position, trained on the even positions. R² and the mean "
    "absolute error (in positions) on all positions, and on the odd ones, never seen: by least "
    "squares, and with the ridge penalty (a multiple of the largest squared singular value) that "
    "is best on the odd ones. All penalties: regression.json.",
    ["position vectors", ("N", "d"), "fit", ("R², all", ".3f"), ("R², odd", ".3f"),
     ("error, all", ".2f"), ("error, odd", ".2f")],
    needs="an encoding with position vectors",
)  # fmt: skip
def regression(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Fit linear maps on even positions and test them on all that the vectors have."""
    findings = Findings()
    for component in subject.with_vectors():
        label, axis = component.label, component.axis
        x = component.positions(subject.length)
        vectors = np.asarray(component.vectors(x))
        fits = properties.regress(vectors, x, ridge=config.ridge)
        findings.numbers[label] = [
            {
                "ridge": fit.ridge,
                "r2": fit.r2,
                "mean_absolute_error": fit.mean_absolute_error,
            }
            for fit in fits
        ]
        best = max(fits, key=lambda fit: fit.r2["test"])
        shown = [("least squares", "", fits[0])]
        if best is not fits[0]:  # A penalty helped.
            shown.append((f"ridge {best.ridge:g}", ", best on odd ones", best))
        for name, _, fit in shown:
            scores = [
                x[key]
                for x in (fit.r2, fit.mean_absolute_error)
                for key in ("all", "test")
            ]
            findings.rows.append([label, len(x), name, *scores])
        panels = [(name + why, fit.predicted) for name, why, fit in shown]
        title = f"The {axis} read off its vector by a linear map: {label}"
        options = {
            "positions": x,
            "train": x % 2 == 0,
            "title": title,
            "quantity": axis,
        }
        figure = Figure(
            f"regression_{label}", figures.prediction_plot, panels, **options
        )
        findings.figures.append(figure)
    return findings


@render.part(
    "Frequencies",
    "Frequencies in radians per position. Cosines below π/{config.length} decrease over all "
    "{config.length} positions, those above π alternate from one position to the next. ψ(m) = Σ "
    "cos(ω_i m) decreases up to the turning point.",
    ["sinusoids", ("F", "d"), ("least", ".2g"), ("median", ".2g"), ("greatest", ".3g"),
     ("below π/{config.length}", ".0%"), ("above π", ".0%"), ("turn", "d")],
    needs="a sinusoidal encoding",
)  # fmt: skip
def frequencies(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure ψ(m), its turning point, and the range of frequencies of sinusoidal components."""
    length = config.length
    offsets = np.arange(length)
    findings = Findings()
    for component in subject.components():
        if component.frequencies is None:
            continue
        label = component.label
        w = np.abs(np.asarray(component.frequencies))  # cos is even.
        psi = np.asarray(properties.psi(w, offsets)) / len(w)
        turn = int(properties.turning_point(psi))
        findings.numbers[label] = {"frequencies": w, "turning_point": turn, "psi": psi}
        slow, fast = (w < np.pi / length).mean(), (w > np.pi).mean()
        findings.rows.append(
            [label, len(w), w.min(), np.median(w), w.max(), slow, fast, turn]
        )
        # Five frequencies from the slowest to the fastest.
        chosen = np.sort(w)[
            np.unique(np.linspace(0, len(w) - 1, min(5, len(w))).astype(int))
        ]
        axis, cosines = (
            "offset m, positions",
            np.asarray(properties.cosines(chosen, offsets)),
        )
        waves = [
            figures.Curve("cos(ω m)", axis, f"ω = {x:.2g}", "", offsets, values)
            for x, values in zip(chosen, cosines, strict=True)
        ]
        name = f"{label} (decreases up to {turn})"
        total = figures.Curve(
            "ψ(m) / ψ(0)", axis, name, component.name, offsets, psi, mark=turn
        )
        for file, curves, title in (
            (
                f"figure4_waves_{label}",
                [*waves, total],
                f"Cosines and their mean, ψ: {label}",
            ),
            (
                "figure6_psi",
                [total],
                "ψ(m): dot product of two sinusoids m positions apart",
            ),
        ):
            findings.figures.append(
                Figure(file, figures.model_curves, curves, title=title)
            )
    return findings


@render.part(
    "Positions by head",
    "P·W_Q·W_Kᵀ·Pᵀ of layer {config.layer}: the term that absolute positions add to the logits, "
    "without words. Violations; of several subjects the means over their heads (each head is in "
    "heads.json).",
    ["position vectors", "head", render.VIOLATIONS],
    (
        "W_Q·W_Kᵀ of each layer (Saponati et al. 2025): symmetry from -1 (antisymmetric) over "
        "0 (random) to 1; directionality from -1 (rows stand out) to 1 (columns do).",
        ["model", "layer", ("symmetry", ".3f"), ("directionality", "+.3f")],
    ),
    is_joint=True,
)
def positions_by_head(
    subjects: Sequence[MeasuredModel], config: PropertiesConfig, out: Path
) -> Findings:
    """Measure P·W_Q·W_Kᵀ·Pᵀ of absolute components by head, and each layer's W_Q·W_Kᵀ."""
    findings = Findings({"position_products": {}, "layers": {}})
    models = [subject for subject in subjects if subject.model is not None]
    for subject in models:
        products = _products(subject, config, findings.figures)
        findings.numbers["position_products"] |= products
        for label, heads in products.items():
            by_head = {str(h): numbers for h, numbers in enumerate(heads)}
            shown = by_head if len(models) == 1 else {"mean": matrices.average(heads)}
            findings.rows += [
                [label, h, *cells(x, config.windows)] for h, x in shown.items()
            ]
        weights = query_key_matrices(subject.params, subject.bert.num_layers)
        measures = properties.saponati_symmetry, properties.saponati_directionality
        layers = [*zip(*(np.asarray(measure(weights)) for measure in measures))]
        names = ("symmetry", "directionality")
        findings.numbers["layers"][subject.name] = [
            dict(zip(names, layer)) for layer in layers
        ]
        findings.more_rows += [
            [subject.name, str(i), *layer] for i, layer in enumerate(layers)
        ]
    return findings


def _products(
    subject: MeasuredModel, config: PropertiesConfig, drawings: list[Figure]
) -> dict[str, list[Numbers]]:
    """Return the violations of every head by component; append a figure of each to `drawings`."""
    layer, by_label = config.layer, {}
    for component in subject.with_vectors():
        if component.metadata.kind != "absolute":
            continue  # Relative vectors are added to the keys after the projection.
        label, x = component.label, component.positions(config.length)
        kernels = projections(subject.params, layer)
        products = np.asarray(
            properties.position_products(component.vectors(x), *kernels)
        )
        by_label[label] = [violations(phi, config.windows) for phi in products]
        panels = [
            matrices.logit_panel(f"head {h}", phi) for h, phi in enumerate(products)
        ]
        title = f"P·W_Q·W_Kᵀ·Pᵀ by head, layer {layer}: {label}"
        drawings.append(
            logit_figure(f"figure7_heads_{label}", panels, title, "product")
        )
    return by_label
