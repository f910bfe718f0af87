"""Parts on scores of runs: at the longest length, across the switch from short to long inputs
(paper, figure 1), and against violations of the properties (the article's heat map)."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pe_jax import properties
from pe_jax.common.files import Json, read_json, to_path, write_text
from pe_jax.common.schema import changed
from pe_jax.trainer import figures
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.reports.property_report import render
from pe_jax.trainer.reports.property_report.logits import attention_among_copies
from pe_jax.trainer.reports.property_report.matrices import headings, violations
from pe_jax.trainer.reports.property_report.render import Figure, Findings
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.tables import Row
from pe_jax.trainer.tasks.pretraining import build
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.tasks.text_training import TextRun
from pe_jax.trainer.training import workdir
from pe_jax.trainer.training.checkpointing import params_by_step, saved_steps
from pe_jax.trainer.training.metrics import read_evaluations
from pe_jax.trainer.training.workdir import ResolvedConfig, load_config

_SCORE = "masked_lm_accuracy"


@render.part(
    "Scores across the switch of lengths",
    "Held-out masked-LM accuracy at the last stage's length, of every checkpoint: before the "
    "switch the models have only seen shorter inputs. An epoch is a pass over the examples of its "
    "stage.",
    [
        "run",
        ("length", "d"),
        ("before the switch", ".1%"),
        ("at the end", ".1%"),
        ("masked-LM loss at the end, nats", ".3f"),
    ],
    needs="a run with checkpoints of two steps or more",
    is_joint=True,
)
def scores(
    subjects: Sequence[MeasuredModel], config: PropertiesConfig, out: Path
) -> Findings:
    """Score all checkpoints on held-out text of the last stage's length, with a cache."""
    findings = Findings()
    for run in subjects:
        if run.folder is None:
            continue
        if workdir.saved_values(run.folder).get("task") == "pretraining":
            cache = out / "scores_cache" / f"{run.name}.json"
            cached = _cached_scores(run.folder, cache, config.score_examples)
            findings.add(_measure_run(run.name, run.encoding.name, cached))
    if findings.numbers:
        findings.figures = [score_figure(findings.numbers)]
    return findings


def _measure_run(name: str, position: str, cached: Json) -> Findings:
    stages = cached["stages"]
    checkpoints: list[Json] = []
    for step in sorted(map(int, cached["checkpoints"])):
        stage = next(stage for stage in reversed(stages) if step > stage["step"])
        epoch = stage["epoch"] + (step - stage["step"]) * stage["epochs_a_step"]
        facts = {"step": step, "epoch": epoch, "stage_length": stage["length"]}
        checkpoints.append(facts | cached["checkpoints"][str(step)])
    if len(checkpoints) < 2:
        return Findings()
    length = stages[-1]["length"]
    before = [x[_SCORE] for x in checkpoints if x["stage_length"] != length]
    last = checkpoints[-1]
    numbers = {
        "position": position,
        "length": length,
        "stages": stages,
        "checkpoints": checkpoints,
    }
    row = [
        name,
        length,
        before[-1] if before else None,
        last[_SCORE],
        last["masked_lm_loss"],
    ]
    return Findings({name: numbers}, [row])


def score_figure(numbers: Mapping[str, Json]) -> Figure:
    """Return figure 1 of the paper from the part's numbers."""
    length = max(scored["length"] for scored in numbers.values())
    panel = f"masked-LM accuracy, held-out text of length {length}"
    curves = []
    for name, scored in numbers.items():
        epochs = np.array([x["epoch"] for x in scored["checkpoints"]])
        accuracies = np.array([x[_SCORE] for x in scored["checkpoints"]])
        encoding = scored.get("position", name)
        curves.append(figures.Curve(panel, "epoch", name, encoding, epochs, accuracies))
    stages = [stage for scored in numbers.values() for stage in scored["stages"][1:]]
    switches = {stage["epoch"]: f"length {stage['length']}" for stage in stages}
    title = "Scores at full length, before and after training at that length"
    options = {"switches": switches, "title": title, "percent": True}
    return Figure("figure1_scores", figures.model_curves, curves, **options)


def _cached_scores(folder: Path, cache: Path, examples: int) -> Json:
    """Return the cache of a run's scores, after scoring the checkpoints that it lacks."""
    config, model = load_config(folder, PretrainingConfig)
    resolved = ResolvedConfig(changed(config, {"eval_examples": examples}), model)
    key = json.loads(json.dumps(resolved.as_dict()))
    cached = read_json(cache, "Remove it to score again.") if cache.exists() else {}
    if cached.get("config") != key:
        cached = {"config": key, "checkpoints": {}}
    if {str(step) for step in saved_steps(folder)} - set(cached["checkpoints"]):
        log(f"Scoring the checkpoints of {folder}")
        run = build(resolved, saved_tokenizer(folder))
        cached["stages"] = _stages(run)
        scored = [int(step) for step in cached["checkpoints"]]
        for step, params in params_by_step(folder, skip=scored):
            cached["checkpoints"][str(step)] = run.stages[-1].evaluate(step, params)
            write_text(cache, json.dumps(cached) + "\n")
    return cached


def _stages(run: TextRun[PretrainingConfig]) -> list[Json]:
    """Return the beginning of each stage, in epochs and steps, and its length."""
    stages = []
    begin = 0
    epoch = 0.0
    keys = run.config.stages.values()
    for stage, key, epochs in zip(run.stages, keys, run.data.epochs, strict=True):
        facts = {
            "epoch": epoch,
            "step": begin,
            "length": key.length,
            "epochs_a_step": epochs / stage.steps,
        }
        stages.append(facts)
        begin += stage.steps
        epoch += epochs
    return stages


@render.part(
    "Properties against scores",
    lambda findings, config: (
        "Over the runs, violations by the logits of identical words against scores. More is "
        "better: below 0, more violation goes with worse scores. p-values are two-sided, not "
        f"corrected for the {len(findings.rows)} pairs. A dash: one of the two is constant."
    ),
    [
        "violation",
        "score",
        ("n", "d"),
        ("Pearson", "+.2f"),
        ("p", ".3f"),
        ("Spearman", "+.2f"),
        ("p", ".3f"),
    ],
    needs="four runs or more that have scores",
    is_joint=True,
)
def correlation(
    subjects: Sequence[MeasuredModel], config: PropertiesConfig, out: Path
) -> Findings:
    """Correlate the violations of Ā with the runs' scores, by Pearson and by Spearman.

    The scores are the last held-out ones of each run, or those of the CSV file `config.scores`: a
    header, then a row for each run that begins with its name; more is better.

    Raises:
      ValueError: for a CSV file that lacks runs, or has a cell that is not a number.
    """
    runs = [subject for subject in subjects if subject.folder]
    if len(runs) < properties.MINIMUM_RUNS:
        return Findings()
    names = [run.name for run in runs]
    if config.scores:
        by_score = _from_csv(to_path(config.scores), names)
    else:
        by_score = _from_metrics([run.folder for run in runs if run.folder])
    measured = []
    for run in runs:
        mean = attention_among_copies(run, config, "logits").mean(0)
        measured.append(violations(mean, config.windows))
    by_heading = {}
    for name, heading in headings(config.windows).items():
        if all(name in numbers for numbers in measured):
            by_heading[heading] = [numbers[name] for numbers in measured]
    correlations = properties.correlate(by_heading, by_score)
    rows = [vars(correlation) for correlation in correlations]
    numbers = {
        "runs": names,
        "violations": by_heading,
        "scores": by_score,
        "correlations": rows,
    }
    title = f"Correlation of violations with scores over {len(runs)} runs"
    cells: list[Row] = [list(row.values()) for row in rows]
    return Findings(numbers, cells, heat_maps(correlations, title))


def heat_maps(
    correlations: Sequence[properties.Correlation], title: str
) -> list[Figure]:
    """Return maps of Pearson's and of Spearman's correlations, every violation by every score."""
    maps = []
    for name in ("pearson", "spearman"):
        cells = []
        for pair in correlations:
            value = getattr(pair, name)
            p = getattr(pair, f"{name}_p")
            cells.append((pair.violation, pair.score, value, p))
        figure = Figure(
            f"correlation_{name}",
            figures.correlation_map,
            cells,
            title=f"{title} ({name.capitalize()})",
        )
        maps.append(figure)
    return maps


def _from_metrics(folders: list[Path]) -> dict[str, list[float]]:
    """Return the last held-out scores of each run; of a loss the negative: more is better."""
    last = []
    for folder in folders:
        evaluations = read_evaluations(folder)
        last.append(evaluations[max(evaluations)] if evaluations else {})

    def values(name: str) -> list[float]:
        return [scores.get(name, np.nan) for scores in last]

    columns = {
        "masked-LM log-likelihood": [-loss for loss in values("masked_lm_loss")],
        "masked-LM accuracy": values("masked_lm_accuracy"),
    }
    # Packed runs have none.
    if any("next_sentence_accuracy" in scores for scores in last):
        columns["next-sentence accuracy"] = values("next_sentence_accuracy")
    return columns


def _from_csv(path: Path, runs: list[str]) -> dict[str, list[float]]:
    """Return the columns of a table of scores, in the order of `runs`."""
    if not path.is_file():
        raise ValueError(f"No table of scores at {path} (config.scores).")
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    by_run = {row[0]: row[1:] for row in rows if row}
    missing = [run for run in runs if run not in by_run]
    if missing:
        raise ValueError(
            f"{path} has no scores of {', '.join(missing)}; its rows are {', '.join(by_run)}."
        )
    by_score: dict[str, list[float]] = {}
    try:
        for i, name in enumerate(header[1:]):
            cells = [by_run[run][i] for run in runs]
            by_score[name] = [float(cell) if cell else np.nan for cell in cells]
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} has a cell that is not a number: {error}.") from None
    return by_score
