"""The report of a fine-tuning run: `results.json`, which tables are made from, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pe_jax.common import markdown
from pe_jax.common.files import Json
from pe_jax.trainer.reports.finetuning_results import SELECTED_STEP
from pe_jax.trainer.reports.pages import page, write_page
from pe_jax.trainer.reports.tables import Column, number_table, write_json
from pe_jax.trainer.reports.tagging_report import tagging_details, tagging_sections
from pe_jax.trainer.tasks.finetuning import FinetuningRun
from pe_jax.trainer.training.metrics import read_evaluations
from pe_jax.trainer.training.pytrees import Scalars


def report_finetuning(run: FinetuningRun, folder: Path) -> str:
    """Write `results.json`, `report.md` and `.html` of a finished run; return the page."""
    numbers = results(run, folder)
    sections = []
    if run.task.scheme:
        numbers["details"] = tagging_details(
            run.task, folder, numbers["seeds"], numbers["steps"]
        )
        sections = tagging_sections(numbers["details"])
    write_json(folder / "results.json", numbers)
    text = _readable(numbers, run.task.notes, sections)
    return write_page(folder / "report.md", text)


def results(run: FinetuningRun, folder: Path) -> Json:
    """Return scores of each seed in points, at the step that `config.select` chooses."""
    config = run.config
    task = run.task
    metric = task.held_out_metric if config.select == "held_out" else task.metric
    scored = read_evaluations(folder)
    last = max(scored)
    steps = {}
    for seed in config.seeds:
        steps[seed] = last
        if config.select != "last":  # The first of equally good evaluations.
            of_seed = {step: x[f"{metric}/seed_{seed}"] for step, x in scored.items()}
            steps[seed] = max(of_seed, key=of_seed.__getitem__)
    scores = {}
    for name in scored[last]:
        if "/" not in name:
            scores[name] = [
                scored[step][f"{name}/seed_{seed}"] for seed, step in steps.items()
            ]
    return {
        "dataset": task.dataset,
        "trained_on": task.trained_on,
        "position": run.program.model.encoding().name,
        "init": config.init,
        "select": config.select,
        "metric": task.metric,
        "seeds": list(steps),
        "steps": list(steps.values()),
        "scores": scores,
        "baseline": task.baseline,
    }


def _trivial_answer(baseline: Scalars, *, is_tagging: bool) -> str:
    """Return what the baseline of a task answers."""
    if is_tagging:
        return "the most frequent label of each word in training"
    if "exact" in baseline:  # SQuAD's exact match.
        return "the first sentence of the context, or in SQuAD v2.0 no answer"
    if "pearson" in baseline:
        return "the mean value"
    return "the most frequent label"


def _readable(
    numbers: Json, notes: list[str], sections: Sequence[str | list[str]] = ()
) -> str:
    first = min(numbers["steps"])
    last = max(numbers["steps"])
    when = f"step {first:,}"
    if first != last:
        when = f"steps {first:,} to {last:,}"
    columns: list[Column] = [
        "",
        ("mean", ".2f"),
        ("±", ".2f"),
        ("baseline", ".2f"),
        *((f"seed {seed}", ".2f") for seed in numbers["seeds"]),
    ]
    baseline = numbers["baseline"]
    rows = []
    means = {}
    for name, values in numbers["scores"].items():
        means[name] = np.mean(values)
        spread = np.std(values, ddof=1) if len(values) > 1 else None
        rows.append([name, means[name], spread, baseline.get(name), *values])
    names = [name for name in baseline if means.get(name, np.inf) <= baseline[name]]
    not_learned = ""
    if names:
        not_learned = f"No better than the baseline: {markdown.text(', '.join(names))}."
    dataset = numbers["dataset"]
    trained_on = numbers["trained_on"]
    if trained_on != dataset and not sections:
        warning = f"trained on {trained_on}: not comparable with published results of {dataset}"
        notes = [*notes, warning]
    return page(
        f"{dataset}: {numbers['position']}",
        f"Scores {SELECTED_STEP[numbers['select']]} ({when}), in points; ± is the sample\n"
        "standard deviation over seeds. The baseline is a trivial answer:\n"
        f"{_trivial_answer(baseline, is_tagging=bool(sections))}.",
        number_table(columns, rows),
        not_learned,
        [f"- {markdown.text(note)}" for note in notes],
        *sections,
    )
