"""The results file of a study: every value by run, measure and seed, and where each run was made.

A seed is that of pretraining or distillation, or in fine-tuning that of the head, dropout and data
order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NotRequired, TypedDict

from pe_jax.common.schema import from_values
from pe_jax.common.values import shown
from research.json_files import read_json_as
from research.reproduction.config import ReproductionConfig
from research.reproduction.plan import TASKS, plan

FILE = "results.json"
_FINETUNING = ("dataset", "trained_on", "select", "metric", "steps", "baseline")
SQUAD_F1, SQUAD_EXACT = "squad f1", "squad exact"


class Stage(TypedDict):
    """A stage of pretraining: where it begins, and its length."""

    epoch: float
    step: int
    length: int


class Checkpoint(TypedDict):
    """Scores of a checkpoint at full length."""

    step: int
    epoch: float
    stage_length: int
    masked_lm_accuracy: float
    masked_lm_loss: float


class Scores(TypedDict):
    """Scores of the checkpoints of a pretraining run at one length."""

    length: int
    stages: list[Stage]
    checkpoints: list[Checkpoint]


class Entry(TypedDict):
    """A run that is done.

    Attributes:
      seed: of pretraining or distillation.
      settings, code: digests.
      seconds: of all its processes.
      values: measure -> seed -> value.
      scores: of the measures of a model from scratch.
      dataset, trained_on, select, metric, steps, baseline: of a fine-tuning run; `steps` by seed,
        `baseline` the scores of a trivial answer.
    """

    position: str
    seed: int
    settings: str
    code: str
    jax: str
    device: str
    cores: int
    seconds: float
    values: dict[str, dict[str, float]]
    scores: NotRequired[Scores]
    dataset: NotRequired[str]
    trained_on: NotRequired[str]
    select: NotRequired[str]
    metric: NotRequired[str]
    steps: NotRequired[list[int]]
    baseline: NotRequired[dict[str, float]]


class Table1(TypedDict):
    """The paper's table 1 for encodings untrained, as lines of Markdown."""

    positions: list[str]
    lines: list[str]


class Results(TypedDict):
    """The content of the file.

    Attributes:
      config: of the study.
      options: of run.py that differ from the shipped config.
      table_1: None until the report of the study measures it.
      runs: by name, "arm/kind/model", in the order of the plan; None for a run that is not done.
    """

    config: dict[str, Any]
    options: list[str]
    table_1: Table1 | None
    runs: dict[str, Entry | None]


def read_results(folder: Path) -> Results:
    """Return the results of the study in `folder`.

    Raises:
      ValueError: if there is no study, or its results file is damaged.
    """
    path, way_out = (
        folder / FILE,
        "Remove it: the study's command writes it again from its runs.",
    )
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no study: {path} is missing. Give the --workdir of a study that was "
            "started."
        )
    results = read_json_as(Results, path, way_out)
    try:
        planned = {run.name for run in plan(saved_config(results), folder)}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for name, entry in results["runs"].items():
        if name not in planned:
            raise ValueError(
                f"{path} is damaged (its config has no run {shown(name)}). {way_out}"
            )
        if entry is not None:
            check_values(entry, name, path, way_out)
    return results


def saved_config(results: Results) -> ReproductionConfig:
    """Return the config of a study. Keys newer than the study have their defaults."""
    return from_values(results["config"], ReproductionConfig, complete=True)


def check_values(entry: Entry, name: str, path: Path, way_out: str) -> None:
    """Check that an entry has the values of its kind of run, by seed.

    Raises:
      ValueError: if it has not; the message names the file, the run and the value.
    """

    def fault() -> str:
        kind = name.split("/")[1]
        for measure, by_seed in entry["values"].items():
            for seed in by_seed:
                if not seed.isdecimal():
                    return f"values[{measure!r}] must be by seed, got {shown(seed)}"
        if kind not in TASKS:
            return ""
        if missing := [key for key in _FINETUNING if key not in entry]:
            return f"{missing[0]!r} is missing"
        squad = kind == "squad"
        for measure in (SQUAD_F1, SQUAD_EXACT) if squad else (kind,):
            if measure not in entry["values"]:
                return f"values[{measure!r}] is missing"
        for metric in ("f1", "exact") if squad else (entry["metric"],):
            if metric not in entry["baseline"]:
                return f"baseline[{metric!r}] is missing"
        return ""

    if text := fault():
        raise ValueError(f"{path} is damaged (of {name}, {text}). {way_out}")
