"""Scores at the longest length, across the switch from short to long inputs (paper, figure 1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pe_jax import figures
from pe_jax.console.markdown import table
from pe_jax.console.terminal import say
from pe_jax.files import Json, write_text
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.tasks.pretraining import PretrainingExperiment, build
from pe_jax.tasks.run import saved_tokenizer
from pe_jax.training import workdir
from pe_jax.training.checkpointing import params_by_step, saved_steps

SCORED = "scores_cache"
FIGURE = "figure1_scores"
_SCORE = "masked_lm_accuracy"


def scores(subjects: list[Subject], settings: Settings) -> Section | None:
    """Every checkpoint of each run, scored on held-out text of the last stage's length.

    Scores are cached in `scores_cache/` of the output: a second call scores new checkpoints only.
    """
    runs = [subject for subject in subjects if subject.folder]
    if not runs:
        return None
    numbers: Json = {}
    rows = []
    for run in runs:
        scored = _score(run, settings)
        if len(scored["checkpoints"]) < 2:
            continue
        numbers[run.name] = scored
        before = [c for c in scored["checkpoints"] if c["stage_length"] != scored["length"]]
        last = scored["checkpoints"][-1]
        rows.append(
            [run.name, str(scored["length"]), _percent(before[-1] if before else None),
             _percent(last), f"{last['masked_lm_loss']:.3f}"]
        )  # fmt: skip
    if not numbers:
        return None
    path = draw(numbers, settings.figure(FIGURE), settings.config.vector)
    lines = [
        "Held-out masked-LM accuracy at the last stage's length, of every checkpoint: before the",
        "switch the models have only seen shorter inputs. An epoch is a pass over the examples of",
        "its stage.",
        "",
        *table(
            ["run", "length", "before the switch", "at the end", "masked-LM loss at the end, nats"],
            rows,
        ),
    ]
    return Section("Scores across the switch of lengths", numbers, lines, [path])


def draw(numbers: Mapping[str, Json], path: Path, vector: str = "") -> Path:
    """Figure 1, from what the section has of one run or more, by name."""
    curves = {}
    switches: dict[float, str] = {}
    for name, scored in numbers.items():
        checkpoints = scored["checkpoints"]
        epochs, values = ([one[key] for one in checkpoints] for key in ("epoch", _SCORE))
        curves[name] = (np.array(epochs), np.array(values))
        switches |= {s["epoch"]: f"length {s['length']}" for s in scored["stages"][1:]}
    length = max(scored["length"] for scored in numbers.values())
    return figures.score_curves(
        curves,
        path,
        score=f"masked-LM accuracy, held-out text of length {length}",
        title="Scores at full length, before and after training at that length",
        switches=switches,
        vector=vector,
    )


def _percent(checkpoint: Json | None) -> str:
    return "–" if checkpoint is None else f"{checkpoint[_SCORE]:.1%}"


def _score(run: Subject, settings: Settings) -> Json:
    """Epoch and scores of every checkpoint, from the cache where they are in it."""
    known = _scored(run, settings)
    stages = known["stages"]
    found = []
    for step in sorted(map(int, known["checkpoints"])):
        stage = next(s for s in reversed(stages) if step > s["step"])
        epoch = stage["epoch"] + (step - stage["step"]) * stage["epochs_a_step"]
        found.append(
            {"step": step, "epoch": epoch, "stage_length": stage["length"],
             **known["checkpoints"][str(step)]}
        )  # fmt: skip
    return {"length": stages[-1]["length"], "stages": stages, "checkpoints": found}


def _scored(run: Subject, settings: Settings) -> Json:
    """The cache of a run's scores, after scoring the checkpoints that it lacks."""
    assert run.folder is not None
    cache = settings.out / SCORED / f"{run.name}.json"
    config = workdir.load_config(run.folder)
    config.eval_examples = settings.config.score_examples
    key = json.loads(config.to_json_best_effort())
    known = json.loads(cache.read_text(encoding="utf-8")) if cache.exists() else {}
    if known.get("config") != key:
        known = {"config": key, "checkpoints": {}}
    if {str(step) for step in saved_steps(run.folder)} - set(known["checkpoints"]):
        say(f"Scoring the checkpoints of {run.folder}")
        experiment = build(config, saved_tokenizer(run.folder))
        known["stages"] = _stages(experiment)
        scored = [int(step) for step in known["checkpoints"]]
        for step, params in params_by_step(run.folder, skip=scored):
            known["checkpoints"][str(step)] = experiment.stages[-1].evaluate(step, params)
            write_text(cache, json.dumps(known) + "\n")
    return known


def _stages(experiment: PretrainingExperiment) -> list[Json]:
    """Where each stage begins, in epochs and steps, and its length."""
    stages, begin, epoch = [], 0, 0.0
    for stage in experiment.stages:
        stages.append(
            {"epoch": epoch, "step": begin, "length": stage.length,
             "epochs_a_step": stage.rows / stage.examples}
        )  # fmt: skip
        begin, epoch = begin + stage.steps, epoch + stage.steps * stage.rows / stage.examples
    return stages
