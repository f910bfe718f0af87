"""Figures of a study, in a folder beside the page: of each arm, and of some of its models.

Those of a model need its weights, which are seldom kept as long as the study: once drawn they stay
as they are. The heat map and figure 1 are drawn from the results file, over all models of an arm.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe_jax import properties
from pe_jax.common.files import Json, file_name
from pe_jax.common.schema import changed
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.figures import save, style
from pe_jax.trainer.reports.property_report import scores
from pe_jax.trainer.reports.property_report.report import measure_properties
from pe_jax.trainer.reports.property_report.subjects import from_run
from research.reproduction.intervals import interval
from research.reproduction.plan import REPLACED, SCRATCH, UNTOUCHED, Run
from research.reproduction.results import (
    ACCURACY,
    CLASSIFICATION,
    LOSS,
    PROPERTIES,
    Values,
    finished,
    trivial_scores,
)
from research.reproduction.results_file import SQUAD_F1, Results

FOLDER = "figures"
_PARTS = "vectors,words,frequencies,evolution,heads"
SCORES = "scores"
# How the names of a figure's files begin: its title.
_TITLES = {
    "correlation": "Heat map: violations against scores",
    "figure1": "Figure 1: scores at full length",
    "figure2": "Figure 2: dot products of position vectors, P·Pᵀ",
    "figure3": "Figure 3: attention logits among identical words",
    "figure4": "Figure 4: cosines of frequencies, and their sum",
    "figure5": "Figure 5: P·Pᵀ while training",
    "figure6": "Figure 6: ψ of the frequencies",
    "figure7": "Figure 7: positions through W_Q and W_K, by head",
}


def model_folder(out: Path, arm: str, model: str) -> Path:
    """Return the folder of a model's figures, for a page in `out`."""
    return out / FOLDER / arm / file_name(model)


def draw_arm(arm: str, results: Results, every: Values, folder: Path) -> None:
    """Draw the scores of all models of an arm, their heat map and figure 1, in `folder`."""
    _draw_scores(arm, results, every, folder)
    draw_heat_map(arm, every, folder)
    curves = {
        model: cast(Json, entry["scores"])
        for other, _, model, entry in finished(results)
        if other == arm and "scores" in entry and not entry["seed"]
    }
    if curves:
        scores.score_figure(curves).save(folder)


def _shown(arm: str) -> str:
    return {"replaced": "positions replaced"}.get(arm, arm.replace("_", " "))


def _draw_scores(arm: str, results: Results, every: Values, folder: Path) -> None:
    trivial = trivial_scores(results, arm)
    for measure in (SQUAD_F1, CLASSIFICATION, LOSS):
        models = [
            name for name in every.models(arm) if every.by_seed(arm, name, measure)
        ]
        if not models:
            continue
        marks = {}
        if UNTOUCHED in models:
            models.remove(UNTOUCHED)
            untouched = every.by_seed(arm, UNTOUCHED, measure).values()
            marks["the untouched model"] = float(np.mean([*untouched]))
        if measure in trivial:
            marks["a trivial answer"] = trivial[measure]
        title = f"{measure}, {_shown(arm)}: seeds, mean and 95 % interval"
        figure = _score_intervals(every, arm, measure, models, marks, title)
        folder.mkdir(parents=True, exist_ok=True)
        save(figure, folder / f"{SCORES}_{file_name(measure)}.png")


@style.applied
def _score_intervals(
    every: Values,
    arm: str,
    measure: str,
    models: Sequence[str],
    marks: Mapping[str, float],
    title: str,
) -> Figure:
    """Draw a row for each model, from the lowest mean to the highest: its scores by seed, their
    mean and its 95 % interval.

    Args:
      marks: scores of reference, by name, as vertical lines.
    """
    figure = style.new(6.4, 1.2 + 0.24 * len(models), title)
    axes = figure.subplots()
    rows = sorted(models, key=lambda model: _mean(every, arm, model, measure))
    for y, (model, look) in enumerate(
        zip(rows, style.encoding_styles(rows), strict=True)
    ):
        _draw_row(axes, y, every, arm, model, measure, look["color"])
    for (name, value), look in zip(
        marks.items(), style.encoding_styles(["", "", ""])[1:]
    ):
        axes.axvline(value, label=name, lw=1, zorder=0, **look)
    axes.set(xlabel=measure, yticks=range(len(rows)), yticklabels=rows)
    axes.grid(alpha=0.3, axis="x")
    if marks:
        axes.legend(loc="best", fontsize=8)
    return figure


def _mean(every: Values, arm: str, model: str, measure: str) -> float:
    return float(np.mean([*every.by_seed(arm, model, measure).values()]))


def _draw_row(
    axes: Axes, y: int, every: Values, arm: str, model: str, measure: str, colour: str
) -> None:
    """Draw a model's scores by seed, their mean and its interval, with that of distillation."""
    row = interval(every, arm, {(model, measure): 1.0})
    if row is None:
        return
    by_seed = [*every.by_seed(arm, model, measure).values()]
    axes.plot(by_seed, [y] * len(by_seed), "|", color="0.6", ms=7)
    error = None if row.high is None else [row.high - row.mean]
    axes.errorbar(row.mean, y, xerr=error, fmt="o", ms=4, color=colour)


@style.applied
def draw_summary(every: Values, path: Path) -> None:
    """Draw the scores of the models that share no parts, one panel for each kind of score, with the
    same rows; nothing without scores."""
    panels = {
        "SQuAD F1, positions replaced": (REPLACED, SQUAD_F1),
        "CoLA, positions replaced": (REPLACED, CLASSIFICATION),
        "masked-LM loss in nats, from scratch": (SCRATCH, LOSS),
    }
    models = {
        label: [
            name
            for name in every.distinct_models(arm)
            if every.by_seed(arm, name, measure)
        ]
        for label, (arm, measure) in panels.items()
    }
    panels = {label: panel for label, panel in panels.items() if models[label]}
    if not panels:
        return
    first, (arm, measure) = next(iter(panels.items()))
    rows = sorted(models[first], key=lambda model: _mean(every, arm, model, measure))
    title = "Scores by seed, means and 95 % intervals; better is to the right"
    figure = style.new(2.2 + 2.6 * len(panels), 1.4 + 0.26 * len(rows), title)
    looks = style.encoding_styles(rows)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (label, (arm, measure)) in zip(grid, panels.items(), strict=True):
        for y, (model, look) in enumerate(zip(rows, looks, strict=True)):
            _draw_row(axes, y, every, arm, model, measure, look["color"])
        axes.set(xlabel=label, yticks=range(len(rows)), yticklabels=rows)
        axes.grid(alpha=0.3, axis="x")
        if measure == LOSS:
            axes.invert_xaxis()  # Better to the right, as in the others.
    save(figure, path)


def draw_heat_map(arm: str, every: Values, folder: Path) -> None:
    """Draw the rank correlations of violations with scores over the models of an arm, in `folder`.

    A model's values are means over its seeds. Combinations are left out, as they share parts, and
    so is the untouched model. Nothing is drawn
    while too few models have scores that differ.
    """
    models = every.distinct_models(arm)
    names = [f"{probe}, {name}" for probe in ("words", "kernel") for name in PROPERTIES]
    violations = {name: every.model_means(arm, models, name) for name in names}
    measured = np.isfinite([*violations.values()]).all(0)
    columns: dict[str, list[float]] = {}
    for name in (SQUAD_F1, *every.classification_measures(arm), ACCURACY):
        values = np.array(every.model_means(arm, models, name))
        finite_values = values[np.isfinite(values) & measured]
        if len(finite_values) >= properties.MINIMUM_RUNS and np.ptp(finite_values) > 0:
            columns[name] = values.tolist()
    if not columns:
        return
    folder.mkdir(parents=True, exist_ok=True)
    correlations = properties.correlate(violations, columns)
    title = f"Correlation of violations with scores, {_shown(arm)}"
    _, spearman = scores.heat_maps(correlations, title)  # As the claims are judged.
    spearman.save(folder)


def draw_model(model: Run, measures: PropertiesConfig, folder: Path) -> None:
    """Draw the figures of a pretrained model, whose weights must be there, in `folder`.

    Args:
      measures: the config of the property report.
    """
    log(f"Drawing {model.name}")
    measures = changed(measures, {"parts": _PARTS})
    with tempfile.TemporaryDirectory() as report:
        measure_properties(
            [from_run(model.folder)], measures, Path(report), where_possible=True
        )
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(report).glob("*.png")):
            shutil.copyfile(path, folder / path.name)


def gallery(out: Path, arm: str) -> Iterator[str]:
    """Yield the lines of a page in `out` that show figures of properties, of an arm and its models,
    by title."""
    for file, title in _TITLES.items():
        if links := [*linked(out, arm, file, title)]:
            yield from [f"### {title}", "", *links, ""]


def linked(out: Path, arm: str, file: str, title: str) -> Iterator[str]:
    """Yield the lines that show all figures of an arm whose file names begin alike."""
    folder = out / FOLDER / arm
    models = sorted(path for path in folder.glob("*") if path.is_dir())
    for model in (folder, *models):
        for path in sorted(model.glob(f"{file}_*.png")):
            yield f"![{title}, {model.name}]({path.relative_to(out)})"
