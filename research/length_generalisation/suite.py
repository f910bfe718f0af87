"""The length generalisation suite: cells trained and tested one by one, tables, curves."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import jax
import numpy as np

from pe_jax.common import markdown
from pe_jax.common.files import file_name, read_json, write_text
from pe_jax.common.schema import as_dict, changed
from pe_jax.common.values import shown, split_names
from pe_jax.encodings.encoding import check_layer
from pe_jax.models import BertConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.figures import save
from pe_jax.trainer.reports.pages import write_page
from pe_jax.trainer.reports.tables import mean_and_spread
from research.json_files import read_json_as
from research.length_generalisation import figures
from research.length_generalisation.cell import Cell, run
from research.length_generalisation.config import LengthGeneralisationConfig
from research.length_generalisation.rows import row_length, vocabulary_size
from research.length_generalisation.tasks import TASKS, AlgorithmicTask

_LEVELS = {
    "regular": "Regular tasks",
    "context-free": "Deterministic context-free tasks",
    "context-sensitive": "Context-sensitive tasks",
    "generation": "Answers written token by token",
}

# By encoding, then by task.
Cells = dict[str, dict[str, Cell]]


def run_suite(names: list[str], config: LengthGeneralisationConfig, out: Path) -> str:
    """Train and test the encodings on the tasks of `config`; return the report's text.

    Each cell, an encoding on a task, is written to `cells/` of `out` when it is done; a second call
    reads it there. Then come `report.md`, `scores.csv` and the figures of these encodings and
    tasks.

    Args:
      names: of encodings. A decoder's have `causal` joined to them where it is not there already.
      config: of `config.py` beside this file.

    Raises:
      ValueError: for an encoding that is not known or not for these tasks; if `out` has cells of
        other settings.
    """
    if not names:
        raise ValueError(
            "--encodings is required: a list such as none,rope,alibi, or 'all'."
        )
    chosen = tasks(config)
    models = {
        name: {task: _model(name, TASKS[task], config) for task in chosen}
        for name in names
    }
    _check_settings(config, out)
    paths = {
        (name, task): out / "cells" / task / f"{file_name(name)}.json"
        for name in names
        for task in chosen
    }
    missing = [cell for cell, path in paths.items() if not path.exists()]
    begin = time.monotonic()
    for done, (name, task) in enumerate(missing, 1):
        if done > 1 and name != missing[done - 2][0]:
            jax.clear_caches()  # No other encoding runs the last one's programs.
        cell = _train(models[name][task], task, config, paths[name, task])
        minutes = (time.monotonic() - begin) / done * (len(missing) - done) / 60
        beyond = np.mean(_split_scores(cell, TASKS[task], config.length)[1])
        log(
            f"{done} of {len(missing)}  {name} on {task}: {beyond:.0%} beyond length "
            f"{config.length}, {cell.seconds:.0f} s; about {minutes:.0f} min left"
        )
    cells = {
        name: {task: _read(paths[name, task], config) for task in chosen}
        for name in names
    }
    write_text(out / "scores.csv", _csv(cells, config.seeds))
    figure_lines = [
        f"{markdown.image(path.stem, path.name)}\n"
        for path in _draw(cells, config, out)
    ]
    return write_page(
        out / "report.md", "\n".join([*_page(cells, config), *figure_lines, ""])
    )


def _train(
    model: BertConfig, task: str, config: LengthGeneralisationConfig, path: Path
) -> Cell:
    """Train and test one cell and write it to `path`."""
    workdir = path.with_suffix("")
    cell = run(TASKS[task], model, changed(config, {"tasks": task}), workdir)
    write_text(path, json.dumps(dataclasses.asdict(cell), indent=2) + "\n")
    shutil.rmtree(workdir)
    return cell


def tasks(config: LengthGeneralisationConfig) -> list[str]:
    """Return the tasks that `config` chooses, in the order of the suite."""
    names = split_names(config.tasks)
    return [name for name in TASKS if not names or name in names]


def _model(
    name: str, task: AlgorithmicTask, config: LengthGeneralisationConfig
) -> BertConfig:
    """Return the model of a cell: the same for all tasks of a kind, so that they share programs.

    Raises:
      ValueError: for an encoding that is not known, or not for this kind of task.
    """
    model = BertConfig(
        vocab_size=vocabulary_size(TASKS),
        max_length=max(
            row_length(each, max(config.test_lengths)) for each in TASKS.values()
        ),
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        initializer_stddev=config.model.hidden_size**-0.5,
        **vars(config.model),
    )
    named = dataclasses.replace(model, position=name)
    layers = [named.encoding().layer(i) for i in range(model.num_layers)]
    if task.causal and not all(layer.is_causal for layer in layers):
        return dataclasses.replace(model, position=f"{name}+causal")
    for layer in layers:
        check_layer(layer)
    return named


def _check_settings(config: LengthGeneralisationConfig, out: Path) -> None:
    """Check that the cells of one folder have the same settings, except encodings and tasks."""
    settings = json.loads(json.dumps(as_dict(config)))
    del settings["tasks"], settings["vector"]
    path = out / "settings.json"
    if not path.exists():
        write_text(path, json.dumps(settings, indent=2) + "\n")
        return
    old = read_json(
        path, "The results next to it have unknown settings. Give another --out."
    )
    differences = [
        f"  {key}: {old.get(key)!r} there, {settings.get(key)!r} now"
        for key in sorted(old.keys() | settings.keys())
        if old.get(key) != settings.get(key)
    ]
    if differences:
        raise ValueError(
            f"{out} has results of other settings:\n" + "\n".join(differences) + "\n"
            "Give another --out, or the same settings to continue."
        )


class _SavedCell(TypedDict):
    losses: list[float]
    accuracy: dict[str, list[float]]
    exact: dict[str, list[float]]
    seconds: float


def _read(path: Path, config: LengthGeneralisationConfig) -> Cell:
    """Read a cell.

    Raises:
      ValueError: for a file that does not hold one of these lengths and seeds.
    """
    way_out = "Delete it, and the same command trains that model again."
    saved = read_json_as(_SavedCell, path, way_out)
    lengths, seeds = sorted(config.test_lengths), len(config.seeds)
    for name, by_length in (("accuracy", saved["accuracy"]), ("exact", saved["exact"])):
        if sorted(by_length) != sorted(map(str, lengths)):
            raise ValueError(
                f"{path} is damaged ({name!r} must have the lengths {lengths}, got "
                f"{shown(sorted(by_length))}). {way_out}"
            )
    for values in (
        saved["losses"],
        *saved["accuracy"].values(),
        *saved["exact"].values(),
    ):
        if len(values) != seeds:
            raise ValueError(
                f"{path} is damaged (there must be {seeds} values, one a seed, got "
                f"{shown(values)}). {way_out}"
            )
    accuracy, exact = (
        {length: by_length[str(length)] for length in lengths}
        for by_length in (saved["accuracy"], saved["exact"])
    )
    return Cell(saved["losses"], accuracy, exact, saved["seconds"])


def _scores(cell: Cell, task: AlgorithmicTask) -> dict[int, list[float]]:
    """Return the scores of each seed by length, as the papers report them: of symbols, or of whole
    answers where they are written token by token."""
    return cell.exact if task.causal else cell.accuracy


def _split_scores(
    cell: Cell, task: AlgorithmicTask, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each seed's mean score over the lengths trained on, and over longer ones."""
    scores = _scores(cell, task)
    within = [values for n, values in scores.items() if n <= length]
    beyond = [values for n, values in scores.items() if n > length]
    return np.mean(within, axis=0), np.mean(beyond, axis=0)


def _csv(cells: Cells, seeds: Sequence[int]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["encoding", "task", "length", "seed", "accuracy", "exact"])
    for name, by_task in cells.items():
        for task, cell in by_task.items():
            for length, accuracy in cell.accuracy.items():
                for seed, *pair in zip(
                    seeds, accuracy, cell.exact[length], strict=True
                ):
                    writer.writerow(
                        [name, task, length, seed, *(f"{x:.4f}" for x in pair)]
                    )
    return text.getvalue()


def _page(cells: Cells, config: LengthGeneralisationConfig) -> list[str]:
    lines = [
        "# Length generalisation",
        "",
        f"{len(config.seeds)} models for each encoding and task, of {config.model.num_layers} "
        f"layers of {config.model.hidden_size}, trained for",
        f"{config.steps:,} steps of {config.batch_size} inputs of 1 to {config.length} symbols. "
        "Scores in points: the mean over inputs of",
        f"up to {config.length} symbols → over longer ones, up to {max(config.test_lengths)}, "
        "± its standard deviation over the models.",
        "A score counts symbols that are right; whole answers, where they are written token by "
        "token.",
        "",
    ]
    for level, title in _LEVELS.items():
        level_tasks = [task for task in tasks(config) if TASKS[task].level == level]
        if not level_tasks:
            continue
        rows = [["encoding", *level_tasks]]
        for name, by_task in cells.items():
            both = [
                _split_scores(by_task[task], TASKS[task], config.length)
                for task in level_tasks
            ]
            texts = (
                f"{100 * within.mean():.0f} → {mean_and_spread(100 * beyond, digits=0)}"
                for within, beyond in both
            )
            rows.append([name, *texts])
        guesses = [f"{100 * (_chance(TASKS[task]) or 0):.0f}" for task in level_tasks]
        rows.append(["guessing", *guesses])
        lines += [f"## {title}", "", *markdown.table(rows[0], rows[1:]), ""]
    return lines


def _chance(task: AlgorithmicTask) -> float | None:
    """Return the score of a guess; None if it is 0."""
    return None if task.causal else 1 / task.answers


def _draw(cells: Cells, config: LengthGeneralisationConfig, out: Path) -> list[Path]:
    chosen = {name: TASKS[name] for name in tasks(config)}
    titles = [name.replace("_", " ") for name in chosen]
    panels = [
        (
            title,
            {encoding: _scores(cell[name], task) for encoding, cell in cells.items()},
            _chance(task),
        )
        for title, (name, task) in zip(titles, chosen.items())
    ]
    beyond = [
        [
            _split_scores(cell[name], task, config.length)[1].mean()
            for name, task in chosen.items()
        ]
        for cell in cells.values()
    ]
    title = "Scores by the length of inputs; shaded: lengths trained on"
    curves = figures.length_curves(panels, title=title, trained=config.length)
    title = f"Mean scores on inputs longer than trained on ({config.length} symbols)"
    score_map = figures.score_map(np.array(beyond), list(cells), titles, title=title)
    return [
        save(curves, out / "curves.png", config.vector),
        save(score_map, out / "beyond.png", config.vector),
    ]
