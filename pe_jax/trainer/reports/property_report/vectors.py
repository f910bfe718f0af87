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
    logit_panel,
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
from pe_jax.trainer.reports.tables import Row
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
    now = "published"
    if subject.step:
        now = "trained"
    elif subject.untrained:
        now = "untrained"
    versions = {now: subject.with_vectors()}
    if subject.start:
        versions["at the start"] = subject.with_vectors(subject.start)
    for components in zip(*versions.values()):
        label = components[0].label
        kind = components[0].metadata.kind
        x = components[0].positions(config.length)
        numbers = findings.numbers[label] = {}
        for time, component in zip(versions, components):
            phi = np.asarray(properties.proximity(component.vectors(x)))
            values = violations(phi, config.windows)
            findings.rows.append([label, time, kind, *cells(values, config.windows)])
            if kind == "relative":
                values |= likeness(phi, x)
            numbers[time] = values
            if time == now:
                panel = product_panel(label, phi, x, component.axis)
                title = "Dot products of position vectors, P·Pᵀ"
                findings.figures.append(
                    product_figure("figure2_vectors", [panel], title)
                )
    return findings


def likeness(phi: np.ndarray, x: np.ndarray) -> Numbers:
    """Return the mean cosine of two different vectors of near offsets, and of two of far ones.

    Near are offsets of at most 8, far those beyond half of the farthest; both are on the same side.
    Far offsets that merge come near 1. A number is missing with fewer than two such offsets.

    Args:
      phi: P·Pᵀ, `[L, L]`.
      x: the offsets, `[L]`.
    """
    size = np.sqrt(np.diagonal(phi))
    distance = np.abs(x)
    groups = {
        "likeness_near": (distance <= _NEAR) & (x != 0),
        "likeness_far": 2 * distance > distance.max(initial=0),
    }
    side = np.sign(x)
    same_side = side[:, None] == side
    np.fill_diagonal(same_side, False)  # A vector's cosine with itself is 1.
    means = {}
    for name, chosen in groups.items():
        pairs = same_side & chosen[:, None] & chosen
        if pairs.any() and size[chosen].all():
            cosines = phi / np.outer(size, size)
            means[name] = float(cosines[pairs].mean())
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
    by_step = {0: subject.start} if subject.start else {}
    for step, params in params_by_step(subject.folder):
        by_step[step] = params["bert"]["position"]
    if len(by_step) < 3:  # Start and end alone are in the part on position vectors.
        return Findings()
    findings = Findings()
    last_steps = _last_steps(subject.folder)
    switches = [i for i, step in enumerate(by_step) if step in last_steps]
    count = max(2, _PANELS - len(switches))
    even = np.linspace(0, len(by_step) - 1, count)
    shown = np.union1d(even.round().astype(int), switches).astype(int)
    versions = [subject.with_vectors(position) for position in by_step.values()]
    for components in zip(*versions):
        first = components[0]
        if not first.params:
            continue  # Nothing is learned.
        label = first.label
        x = first.positions(config.length)
        numbers = findings.numbers[label] = {}
        panels = []
        for step, component in zip(by_step, components):
            phi = np.asarray(properties.proximity(component.vectors(x)))
            values = numbers[step] = violations(phi, config.windows)
            findings.rows.append([label, f"{step:,}", *cells(values, config.windows)])
            title = f"step {step:,}"
            if step in last_steps:
                title += f"\nthe last of length {last_steps[step]}"
            panels.append(product_panel(title, phi, x, component.axis))
        figure = product_figure(
            f"figure5_evolution_{label}",
            [panels[i] for i in shown],
            f"P·Pᵀ while training: {label}",
        )
        findings.figures.append(figure)
    return findings


def _last_steps(folder: Path) -> dict[int, int]:
    """Return the last step of each stage that another follows, with its length in tokens."""
    lengths = []
    for line in read_metrics(folder):
        if "train/examples_per_second" in line:
            tokens = line["train/tokens_per_second"]
            length = round(tokens / line["train/examples_per_second"])
            lengths.append((line["step"], length))
    last_steps = {}
    for (step, length), (_, next_length) in pairwise(lengths):
        if next_length != length:
            last_steps[step] = length
    return last_steps


@render.part(
    "Regression probe",
    "A linear map from position vector to position, trained on the even positions. R² and the mean "
    "absolute error (in positions) on all positions, and on the odd ones, never seen: by least "
    "squares, and with the ridge penalty (a multiple of the largest squared singular value) that "
    "is best on the odd ones. All penalties: regression.json.",
    [
        "position vectors",
        ("N", "d"),
        "fit",
        ("R², all", ".3f"),
        ("R², odd", ".3f"),
        ("error, all", ".2f"),
        ("error, odd", ".2f"),
    ],
    needs="an encoding with position vectors",
)
def regression(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Fit linear maps on even positions and test them on all that the vectors have."""
    findings = Findings()
    for component in subject.with_vectors():
        label = component.label
        x = component.positions(subject.length)
        vectors = np.asarray(component.vectors(x))
        fits = properties.regress(vectors, x, ridge=config.ridge)
        findings.numbers[label] = []
        for fit in fits:
            numbers = {
                "ridge": fit.ridge,
                "r2": fit.r2,
                "mean_absolute_error": fit.mean_absolute_error,
            }
            findings.numbers[label].append(numbers)
        best = max(fits, key=lambda fit: fit.r2["test"])
        shown = {"least squares": fits[0]}
        panels = [("least squares", fits[0].predicted)]
        if best is not fits[0]:  # A penalty helped.
            name = f"ridge {best.ridge:g}"
            shown[name] = best
            panels.append((f"{name}, best on odd ones", best.predicted))
        for name, fit in shown.items():
            row: Row = [
                label,
                len(x),
                name,
                fit.r2["all"],
                fit.r2["test"],
                fit.mean_absolute_error["all"],
                fit.mean_absolute_error["test"],
            ]
            findings.rows.append(row)
        figure = Figure(
            f"regression_{label}",
            figures.prediction_plot,
            panels,
            positions=x,
            train=x % 2 == 0,
            title=f"The {component.axis} read off its vector by a linear map: {label}",
            quantity=component.axis,
        )
        findings.figures.append(figure)
    return findings


@render.part(
    "Frequencies",
    "Frequencies in radians per position. Cosines below π/{config.length} decrease over all "
    "{config.length} positions, those above π alternate from one position to the next. ψ(m) = Σ "
    "cos(ω_i m) decreases up to the turning point.",
    [
        "sinusoids",
        ("F", "d"),
        ("least", ".2g"),
        ("median", ".2g"),
        ("greatest", ".3g"),
        ("below π/{config.length}", ".0%"),
        ("above π", ".0%"),
        ("turn", "d"),
    ],
    needs="a sinusoidal encoding",
)
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
        row = [
            label,
            len(w),
            w.min(),
            np.median(w),
            w.max(),
            (w < np.pi / length).mean(),
            (w > np.pi).mean(),
            turn,
        ]
        findings.rows.append(row)
        # Five frequencies from the slowest to the fastest.
        count = min(5, len(w))
        places = np.linspace(0, len(w) - 1, count).astype(int)
        chosen = np.sort(w)[np.unique(places)]
        axis = "offset m, positions"
        waves = []
        cosines = np.asarray(properties.cosines(chosen, offsets))
        for x, values in zip(chosen, cosines, strict=True):
            waves.append(
                figures.Curve("cos(ω m)", axis, f"ω = {x:.2g}", "", offsets, values)
            )
        total = figures.Curve(
            "ψ(m) / ψ(0)",
            axis,
            f"{label} (decreases up to {turn})",
            component.name,
            offsets,
            psi,
            mark=turn,
        )
        findings.figures += [
            Figure(
                f"figure4_waves_{label}",
                figures.model_curves,
                [*waves, total],
                title=f"Cosines and their mean, ψ: {label}",
            ),
            Figure(
                "figure6_psi",
                figures.model_curves,
                [total],
                title="ψ(m): dot product of two sinusoids m positions apart",
            ),
        ]
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
            shown = {"mean": matrices.average(heads)}
            if len(models) == 1:
                shown = {str(h): numbers for h, numbers in enumerate(heads)}
            for h, numbers in shown.items():
                findings.rows.append([label, h, *cells(numbers, config.windows)])
        weights = query_key_matrices(subject.params, subject.bert.num_layers)
        symmetry = np.asarray(properties.saponati_symmetry(weights))
        directionality = np.asarray(properties.saponati_directionality(weights))
        layers = findings.numbers["layers"][subject.name] = []
        for i, values in enumerate(zip(symmetry, directionality)):
            layers.append(dict(zip(("symmetry", "directionality"), values)))
            findings.more_rows.append([subject.name, str(i), *values])
    return findings


def _products(
    subject: MeasuredModel, config: PropertiesConfig, drawings: list[Figure]
) -> dict[str, list[Numbers]]:
    """Return the violations of every head by component; append a figure of each to `drawings`."""
    by_label = {}
    for component in subject.with_vectors():
        if component.metadata.kind != "absolute":
            continue  # Relative vectors are added to the keys after the projection.
        label = component.label
        vectors = component.vectors(component.positions(config.length))
        kernels = projections(subject.params, config.layer)
        products = np.asarray(properties.position_products(vectors, *kernels))
        by_label[label] = [violations(phi, config.windows) for phi in products]
        figure = logit_figure(
            f"figure7_heads_{label}",
            [logit_panel(f"head {h}", phi) for h, phi in enumerate(products)],
            f"P·W_Q·W_Kᵀ·Pᵀ by head, layer {config.layer}: {label}",
            "product",
        )
        drawings.append(figure)
    return by_label
