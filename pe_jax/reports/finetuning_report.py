"""The report of a fine-tuning run: `results.json`, which tables are made from, and a page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pe_jax.console.markdown import table
from pe_jax.files import Json, write_text
from pe_jax.tasks.finetuning import FinetuningExperiment
from pe_jax.tasks.finetuning.selection import SELECT
from pe_jax.training.metrics_writer import read_metrics

_HELD_OUT = "held_out/"
_WHICH = {
    "last": "the last of each seed",
    "best": "the best of each seed",
    "held_out": "of each seed's best step on held-out training data",
}


def report_finetuning(experiment: FinetuningExperiment, folder: Path) -> str:
    """Writes `results.json` and `report.md` of a finished run; returns the latter's text."""
    found = results(experiment, folder)
    write_text(folder / "results.json", json.dumps(found, indent=2) + "\n")
    text = page(found, experiment.problem.notes)
    write_text(folder / "report.md", text)
    return text


def results(experiment: FinetuningExperiment, folder: Path) -> Json:
    """Scores of each seed in points, at the step that `config.select` chooses."""
    config, problem = experiment.config, experiment.problem
    selection = SELECT[config.select]
    metric = problem.held_out_metric if selection.on else problem.metric
    scored = [line for line in read_metrics(folder) if f"{_HELD_OUT}{problem.metric}" in line]
    names = [name for name in scored[-1] if name.startswith(_HELD_OUT) and name.count("/") == 1]
    score = lambda line, name, seed: line[f"{name}/seed_{seed}"]
    by = lambda seed: lambda line: score(line, f"{_HELD_OUT}{metric}", seed)
    chosen = {seed: selection.choose(scored, by(seed)) for seed in experiment.seeds}
    return {
        "dataset": problem.dataset,
        "trained_on": problem.trained_on,
        "position": experiment.program.model.encoding().name,
        "init": config.init,
        "select": config.select,
        "metric": problem.metric,
        "seeds": list(experiment.seeds),
        "steps": [chosen[seed]["step"] for seed in experiment.seeds],
        "scores": {
            name.removeprefix(_HELD_OUT): [
                score(chosen[seed], name, seed) for seed in experiment.seeds
            ]
            for name in names
        },
        "baseline": problem.baseline,
    }


def page(found: Json, notes: list[str]) -> str:
    """Results as Markdown that also reads well on a terminal."""
    seeds = found["seeds"]
    steps = sorted(set(found["steps"]))
    when = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
    rows = [
        [
            name,
            f"{np.mean(values):.2f}",
            f"{np.std(values, ddof=1):.2f}" if len(values) > 1 else "–",
            f"{found['baseline'][name]:.2f}" if name in found["baseline"] else "–",
            *(f"{value:.2f}" for value in values),
        ]
        for name, values in found["scores"].items()
    ]
    lines = [
        f"# {found['dataset']}: {found['position']}",
        "",
        f"Scores in points, {_WHICH[found['select']]} ({when}); ± is the sample standard",
        "deviation over seeds. The baseline is a trivial answer: the most frequent label, the mean",
        "value, the first sentence of the context, or (SQuAD v2.0) no answer.",
        "",
        *table(["", "mean", "±", "baseline", *(f"seed {seed}" for seed in seeds)], rows),
        "",
        *(f"- {note}" for note in notes),
    ]
    if found["trained_on"] != found["dataset"]:
        lines.append(
            f"- trained on {found['trained_on']}: not comparable with published results of "
            f"{found['dataset']}"
        )
    return "\n".join(lines) + "\n"
