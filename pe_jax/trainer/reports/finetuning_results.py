"""Results of finished fine-tuning runs, as the paper's tables take them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pe_jax.common.files import Json, read_json
from pe_jax.common.schema import flatten
from pe_jax.trainer.training import workdir

# Table 2: set -> (task and metric as printed, metric in the results).
GLUE: dict[str, tuple[str, str]] = {
    "glue/cola": ("CoLA mcc", "matthews"),
    "glue/sst2": ("SST-2 acc", "accuracy"),
    "glue/mnli": ("MNLI-mm acc", "accuracy_mismatched"),
    "glue/mrpc": ("MRPC F1", "f1"),
    "glue/qnli": ("QNLI acc", "accuracy"),
    "glue/qqp": ("QQP F1", "f1"),
    "glue/rte": ("RTE acc", "accuracy"),
    "glue/stsb": ("STS-B spear.", "spearman"),
    "glue/wnli": ("WNLI acc", "accuracy"),
}

# Table 3; other sets of questions and spans have the same two columns, under their own names.
SQUAD: dict[str, str] = {"squad/v1.1": "V1.1", "squad/v2.0": "V2.0"}
SPAN_METRICS: dict[str, str] = {"f1": "F1", "exact": "EM"}

# By `config.select`.
SELECTED_STEP: dict[str, str] = {
    "last": "of the last step",
    "best": "of each seed's best step",
    "held_out": "of each seed's best step on held-out training data",
}

# Of `results.json`, as `read` needs them.
_RESULT_KEYS = (
    "dataset",
    "trained_on",
    "position",
    "init",
    "select",
    "seeds",
    "scores",
)

# Last parts of config keys that no score depends on, or that tables read from the results.
_NOT_SETTINGS = {
    "cache_dir",
    "checkpoint_every",
    "data_dir",
    "init",
    "keep_checkpoints",
    "log_every",
    "position",
    "seed",
    "seeds",
    "workdir",
    "workers",
}


class Results(NamedTuple):
    """Scores of one encoding on one set, over the seeds of one run or of several pooled ones."""

    folder: Path
    dataset: str
    trained_on: str  # Mostly the same.
    position: str
    init: str
    scores: dict[str, dict[int, float]]  # Metric -> seed -> points.
    # Dotted config keys that scores depend on, but for `position` and `init`.
    settings: Json

    @property
    def seeds(self) -> set[int]:
        return {seed for by_seed in self.scores.values() for seed in by_seed}

    @property
    def sets(self) -> tuple[str, str]:
        return self.dataset, self.trained_on

    @property
    def table(self) -> str:
        return "glue" if self.dataset in GLUE else "squad"


def read(folder: Path) -> Results | None:
    """Return the results of the run in `folder`, or None if it has not finished.

    Raises:
      ValueError: if `results.json` is not that of a finished run, or `config.json` is missing.
    """
    path = folder / "results.json"
    if not path.is_file():
        return None
    results = read_json(path, "Run the fine-tuning again.")
    missing = [key for key in _RESULT_KEYS if key not in results]
    if missing:
        has = ", ".join(results) or "none"
        raise ValueError(f"{path} lacks {', '.join(missing)}; it has {has}.")
    values = workdir.saved_values(folder)
    if values["task"] == "tagging":
        raise ValueError(
            f"{folder} is a run of tagging, and the tables have GLUE and SQuAD alone. Leave it out "
            f"of --runs: its scores are in {folder / 'report.md'}."
        )
    # For sets other than GLUE and SQuAD, `dataset` may name both: TRAINING SET -> EVALUATION SET.
    dataset = results["dataset"].rpartition(" -> ")[2]
    if dataset.startswith("glue/") and dataset not in GLUE:
        tasks = ", ".join(GLUE)
        raise ValueError(f"{path}: Unknown GLUE task {dataset!r}; table 2 has {tasks}.")
    seeds = results["seeds"]
    if not isinstance(seeds, list) or not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(
            f"{path}: seeds must be a list of distinct integers, got {seeds!r}."
        )
    ignored = _NOT_SETTINGS
    if results["select"] == "last":
        # How often a run was scored decides which step was its best, but not which was the last.
        ignored = ignored | {"eval_every"}
    settings = {}
    for key, value in flatten(values).items():
        if key.rpartition(".")[2] not in ignored:
            settings[key] = value
    settings["select"] = results["select"]
    scores = {}
    for name, _ in metrics(dataset):
        scores[name] = _by_seed(path, seeds, results["scores"], name)
    return Results(
        folder=folder,
        dataset=dataset,
        trained_on=results["trained_on"].partition(" -> ")[0],
        position=results["position"].replace(" ", ""),
        init=results["init"],
        scores=scores,
        settings=settings,
    )


def metrics(dataset: str) -> list[tuple[str, str]]:
    """Return the metrics that runs on a set have, with the headings of their columns."""
    if dataset in GLUE:
        label, metric = GLUE[dataset]
        return [(metric, label)]
    name = SQUAD.get(dataset, dataset)
    return [(metric, f"{name} {label}") for metric, label in SPAN_METRICS.items()]


def _by_seed(path: Path, seeds: list[int], scores: Json, name: str) -> dict[int, float]:
    if name not in scores:
        raise ValueError(
            f"{path} has no score {name!r}; it has {', '.join(scores) or 'none'}."
        )
    values = scores[name]
    if not isinstance(values, list) or len(values) != len(seeds):
        raise ValueError(
            f"{path}: {name!r} needs one score for each of {len(seeds)} seeds, got {values}."
        )
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        raise ValueError(
            f"{path}: scores {name!r} must be finite, got {values}. Leave out the run that "
            "diverged, or run it again."
        )
    return dict(zip(seeds, map(float, values)))


def pool(runs: Iterable[Results]) -> list[Results]:
    """Return one `Results` for each encoding and sets, over all seeds.

    Raises:
      ValueError: if two runs of one cell share a seed, or differ in more than their seeds.
    """
    pooled: dict[tuple[str, ...], Results] = {}
    for run in runs:
        key = (*run.sets, run.position)
        pooled[key] = _joined(pooled[key], run) if key in pooled else run
    return list(pooled.values())


def _joined(first: Results, second: Results) -> Results:
    both = f"{first.folder} and {second.folder} are both {first.position} on {first.dataset}"
    way_out = "Leave one of them out of --runs."
    different = different_settings([first, second])
    if first.init != second.init:
        different["init"] = [first.init, second.init]
    if different:
        lines = [f"  {key}: {old!r}, {new!r}" for key, (old, new) in different.items()]
        raise ValueError("\n".join([f"{both}, with other settings:", *lines, way_out]))
    shared = sorted(first.seeds & second.seeds)
    if shared:
        raise ValueError(
            f"{both}, and both have seeds {', '.join(map(str, shared))}. {way_out}"
        )
    scores = dict(first.scores)
    for name, by_seed in second.scores.items():
        scores[name] = scores[name] | by_seed
    return first._replace(scores=scores)


def different_settings(runs: Sequence[Results]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ, by dotted key: the value of each run, or None."""
    keys = sorted({key for run in runs for key in run.settings})
    different = {}
    for key in keys:
        values = [run.settings.get(key) for run in runs]
        if any(value != values[0] for value in values):
            different[key] = values
    return different
