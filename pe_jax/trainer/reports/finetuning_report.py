"""The report of a fine-tuning run: `results.json`, which tables are made from, and a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pe_jax.common import markdown
from pe_jax.common.files import Json
from pe_jax.trainer.reports.finetuning_results import SELECTED_STEP
from pe_jax.trainer.reports.pages import page, write_page
from pe_jax.trainer.reports.tables import Column, number_table, write_json
from pe_jax.trainer.tasks.finetuning import FinetuningRun
from pe_jax.trainer.training.metrics import read_evaluations


def report_finetuning(run: FinetuningRun, folder: Path) -> str:
    """Write `results.json`, `report.md` and `.html` of a finished run; return the page."""
    numbers = results(run, folder)
    write_json(folder / "results.json", numbers)
    return write_page(folder / "report.md", _readable(numbers, run.task.notes))


def results(run: FinetuningRun, folder: Path) -> Json:
    """Return scores of each seed in points, at the step that `config.select` chooses."""
    config, task = run.config, run.task
    metric = task.held_out_metric if config.select == "held_out" else task.metric
    scored = read_evaluations(folder)
    last = max(scored)
    steps = dict.fromkeys(config.seeds, last)
    if config.select != "last":
        for seed in steps:  # The first of equally good evaluations.
            steps[seed] = max(
                scored, key=lambda step: scored[step][f"{metric}/seed_{seed}"]
            )
    scores = {
        name: [scored[step][f"{name}/seed_{seed}"] for seed, step in steps.items()]
        for name in scored[last]
        if "/" not in name
    }
    return {
        "dataset": task.dataset, "trained_on": task.trained_on,
        "position": run.program.model.encoding().name, "init": config.init,
        "select": config.select, "metric": task.metric, "seeds": list(steps),
        "steps": list(steps.values()), "scores": scores, "baseline": task.baseline,
    }  # fmt: skip


def _readable(numbers: Json, notes: list[str]) -> str:
    steps = sorted(set(numbers["steps"]))
    when = (
        f"step {steps[0]:,}"
        if len(steps) == 1
        else f"steps {steps[0]:,} to {steps[-1]:,}"
    )
    seeds = [(f"seed {seed}", ".2f") for seed in numbers["seeds"]]
    columns: list[Column] = [
        "",
        ("mean", ".2f"),
        ("±", ".2f"),
        ("baseline", ".2f"),
        *seeds,
    ]
    scores, baseline, rows = numbers["scores"], numbers["baseline"], []
    for name, values in scores.items():
        spread = np.std(values, ddof=1) if len(values) > 1 else None
        rows.append([name, np.mean(values), spread, baseline.get(name), *values])
    chance = [
        name
        for name, least in baseline.items()
        if np.mean(scores.get(name, np.inf)) <= least
    ]
    if numbers["trained_on"] != numbers["dataset"]:
        notes = [
            *notes,
            f"trained on {numbers['trained_on']}: not comparable with published results of "
            f"{numbers['dataset']}",
        ]
    return page(
        f"{numbers['dataset']}: {numbers['position']}",
        f"Scores {SELECTED_STEP[numbers['select']]} ({when}), in points; ± is the sample\n"
        "standard deviation over seeds. The baseline is a trivial answer: the most frequent label,"
        "\nthe mean value, the first sentence of the context, or (SQuAD v2.0) no answer.",
        number_table(columns, rows),
        f"No better than the baseline: {markdown.text(', '.join(chance))}."
        if chance
        else "",
        [f"- {markdown.text(note)}" for note in notes],
    )
