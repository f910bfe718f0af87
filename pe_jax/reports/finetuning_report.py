"""The report of a fine-tuning run: `results.json`, which tables are made from, and a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pe_jax.files import Json
from pe_jax.reports.finetuning_results import SELECTED_STEP
from pe_jax.reports.pages import write_page
from pe_jax.reports.tables import Column, number_table, write_json
from pe_jax.tasks.finetuning import FinetuningRun
from pe_jax.training.metrics import read_evaluations


def report_finetuning(run: FinetuningRun, folder: Path) -> str:
    """Write `results.json`, `report.md` and `.html` of a finished run; return the page."""
    numbers = results(run, folder)
    write_json(folder / "results.json", numbers)
    return write_page(folder / "report.md", page(numbers, run.problem.notes))


def results(run: FinetuningRun, folder: Path) -> Json:
    """Return scores of each seed in points, at the step that `config.select` chooses."""
    config, problem = run.config, run.problem
    metric = problem.held_out_metric if config.select == "held_out" else problem.metric
    scored = read_evaluations(folder)
    last = max(scored)

    def chosen(seed: int) -> int:
        if config.select == "last":
            return last
        # The first of equally good evaluations.
        return max(scored, key=lambda step: scored[step][f"{metric}/seed_{seed}"])

    steps = {seed: chosen(seed) for seed in config.seeds}
    scores = {
        name: [scored[step][f"{name}/seed_{seed}"] for seed, step in steps.items()]
        for name in scored[last]
        if "/" not in name
    }
    return {
        "dataset": problem.dataset, "trained_on": problem.trained_on,
        "position": run.program.model.encoding().name, "init": config.init,
        "select": config.select, "metric": problem.metric, "seeds": list(steps),
        "steps": list(steps.values()), "scores": scores, "baseline": problem.baseline,
    }  # fmt: skip


def page(numbers: Json, notes: list[str]) -> str:
    """Return results as Markdown that also reads well on a terminal."""
    steps = sorted(set(numbers["steps"]))
    when = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
    seeds = [(f"seed {seed}", ".2f") for seed in numbers["seeds"]]
    columns: list[Column] = ["", ("mean", ".2f"), ("±", ".2f"), ("baseline", ".2f"), *seeds]
    rows = []
    for name, values in numbers["scores"].items():
        spread = np.std(values, ddof=1) if len(values) > 1 else None
        rows.append([name, np.mean(values), spread, numbers["baseline"].get(name), *values])
    if numbers["trained_on"] != numbers["dataset"]:
        notes = [
            *notes,
            f"trained on {numbers['trained_on']}: not comparable with published results of "
            f"{numbers['dataset']}",
        ]
    lines = [
        f"# {numbers['dataset']}: {numbers['position']}",
        "",
        f"Scores {SELECTED_STEP[numbers['select']]} ({when}), in points; ± is the sample",
        "standard deviation over seeds. The baseline is a trivial answer: the most frequent label,",
        "the mean value, the first sentence of the context, or (SQuAD v2.0) no answer.",
        "",
        *number_table(columns, rows),
        "",
        *_chance_lines(numbers),
        *(f"- {note}" for note in notes),
    ]
    return "\n".join(lines) + "\n"


def _chance_lines(numbers: Json) -> list[str]:
    """Return a line that names the scores that are not above the baseline, if there are any."""
    means = {name: np.mean(values) for name, values in numbers["scores"].items()}
    names = [n for n, baseline in numbers["baseline"].items() if means.get(n, np.inf) <= baseline]
    return [f"No better than the baseline: {', '.join(names)}.", ""] if names else []
