"""The results in the folders of fine-tuning runs: read, checked, and pooled over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from flax import traverse_util

from pe_jax.files import Json
from pe_jax.reports.paper_tables.columns import Column, columns
from pe_jax.training import workdir

_KEYS = ("dataset", "trained_on", "position", "init", "select", "seeds", "scores")

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
    """Scores of one encoding on one set, over the seeds of one run or of several pooled ones.

    `scores`: metric -> points for each of `seeds`, which ascend. `settings`: dotted config keys
    that scores depend on, except the encoding and the pretrained weights.
    """

    folder: Path
    dataset: str
    trained_on: str
    position: str
    init: str
    seeds: tuple[int, ...]
    scores: dict[str, tuple[float, ...]]
    settings: Json

    def columns(self) -> list[Column]:
        return columns(self.dataset, self.trained_on)


def read(folder: Path) -> Results | None:
    """The results of the run in `folder`, or None if it has not finished.

    Raises:
      ValueError: if `results.json` is not that of a finished run, or `config.json` is missing.
    """
    path = folder / "results.json"
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}. Run the fine-tuning again.") from None
    missing = [key for key in _KEYS if key not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; it has {', '.join(found) or 'none'}.")
    # For sets other than GLUE and SQuAD, `dataset` may name both: TRAINING SET -> EVALUATION SET.
    dataset = found["dataset"].rpartition(" -> ")[2]
    trained_on = found["trained_on"].partition(" -> ")[0]
    try:
        wanted = [column.metric for column in columns(dataset, trained_on)]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    seeds = _checked_seeds(path, found["seeds"])
    return Results(
        folder=folder,
        dataset=dataset,
        trained_on=trained_on,
        position=found["position"].replace(" ", ""),
        init=found["init"],
        seeds=tuple(sorted(seeds)),
        scores={name: _by_seed(path, seeds, found["scores"], name) for name in wanted},
        settings=_settings(folder, found["select"]),
    )


def pool(runs: Iterable[Results]) -> dict[tuple[str, str, str], Results]:
    """One `Results` for each (dataset, trained_on, position): runs of other seeds are pooled.

    Raises:
      ValueError: if two runs of one cell share a seed, or differ in more than their seeds.
    """
    cells: dict[tuple[str, str, str], Results] = {}
    for run in runs:
        key = (run.dataset, run.trained_on, run.position)
        cells[key] = _joined(cells[key], run) if key in cells else run
    return cells


def differences(runs: Iterable[Results]) -> dict[str, list[Any]]:
    """Settings in which runs differ: dotted key -> the value of each run, None where not set."""
    settings = [run.settings for run in runs]
    keys = sorted({key for one in settings for key in one})
    values = {key: [one.get(key) for one in settings] for key in keys}
    return {key: each for key, each in values.items() if any(v != each[0] for v in each)}


def _joined(one: Results, other: Results) -> Results:
    both = f"{one.folder} and {other.folder} are both {one.position} on {one.dataset}"
    way_out = "Leave one of them out of --runs."
    apart = differences([one, other])
    if one.init != other.init:
        apart["init"] = [one.init, other.init]
    if apart:
        lines = [f"  {key}: {there!r}, {here!r}" for key, (there, here) in apart.items()]
        raise ValueError("\n".join([f"{both}, with other settings:", *lines, way_out]))
    shared = sorted(set(one.seeds) & set(other.seeds))
    if shared:
        raise ValueError(f"{both}, and both have seeds {', '.join(map(str, shared))}. {way_out}")
    order = sorted(range(len(one.seeds + other.seeds)), key=(one.seeds + other.seeds).__getitem__)
    arranged = lambda a, b: tuple((a + b)[i] for i in order)
    return one._replace(
        seeds=arranged(one.seeds, other.seeds),
        scores={name: arranged(one.scores[name], other.scores[name]) for name in one.scores},
    )


def _checked_seeds(path: Path, seeds: object) -> list[int]:
    if not isinstance(seeds, list) or not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{path}: seeds must be a list of different numbers, got {seeds!r}.")
    return seeds


def _by_seed(path: Path, seeds: list[int], scores: Json, name: str) -> tuple[float, ...]:
    """The scores of a metric, ordered by seed."""
    if name not in scores:
        raise ValueError(f"{path} has no score {name!r}; it has {', '.join(scores) or 'none'}.")
    values = scores[name]
    if not isinstance(values, list) or len(values) != len(seeds):
        raise ValueError(f"{path}: {len(seeds)} seeds need as many scores {name!r}, got {values}.")
    if not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        raise ValueError(
            f"{path}: scores {name!r} must be finite numbers, got {values}. "
            "A run that diverged cannot enter a mean: leave it out, or run it again."
        )
    return tuple(float(value) for _, value in sorted(zip(seeds, values)))


def _settings(folder: Path, select: str) -> Json:
    # How often a run was scored decides which step was its best, but not which was the last.
    without = _NOT_SETTINGS | ({"eval_every"} if select == "last" else set())
    config = traverse_util.flatten_dict(workdir.load_config(folder).to_dict(), sep=".")
    kept = {key: value for key, value in config.items() if key.rpartition(".")[2] not in without}
    return {**kept, "select": select}
