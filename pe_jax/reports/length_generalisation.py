"""The length generalisation suite: cells trained and tested one by one, tables, curves."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
import statistics
import time
from pathlib import Path

import jax
import numpy as np

from pe_jax import figures
from pe_jax.configs.reports import LengthGeneralisationConfig
from pe_jax.console.markdown import table
from pe_jax.console.terminal import say
from pe_jax.files import file_name, read_json, write_text
from pe_jax.length_generalisation import (
    TASKS,
    AlgorithmicTask,
    Cell,
    Score,
    row_length,
    run,
    vocabulary_size,
)
from pe_jax.models import BertConfig, with_position
from pe_jax.schema import as_dict, changed

_LEVELS = {
    "regular": "Regular tasks",
    "context-free": "Deterministic context-free tasks",
    "context-sensitive": "Context-sensitive tasks",
    "generation": "Answers written token by token",
}

# By encoding, then by task.
Cells = dict[str, dict[str, Cell]]


def length_generalisation(names: list[str], config: LengthGeneralisationConfig, out: Path) -> str:
    """Trains and tests the encodings on the tasks of `config`; returns the report's text.

    Each cell, an encoding on a task, is written to `cells/` of `out` when it is done, and found
    there by a second call. Then come `report.md`, `scores.csv` and the figures, of the encodings
    and tasks asked for.

    Args:
      names: of encodings. A decoder's have `causal` joined to them where it is not there already.
      config: of `configs/length_generalisation.py`, checked (`reports.report_schemas`).

    Raises:
      ValueError: for an encoding that is not known or not for these tasks; if `out` has cells of
        other settings.
    """
    if not names:
        raise ValueError("Which encodings are compared? Give --encodings=none,rope,alibi or 'all'.")
    chosen = tasks(config)
    models = {name: {task: _model(name, TASKS[task], config) for task in chosen} for name in names}
    _check_settings(config, out)
    cells: Cells = {name: {} for name in names}
    begin, left = (
        time.monotonic(),
        sum(not _path(out, name, task).exists() for name in names for task in chosen),
    )
    done = 0
    for name in names:
        for task in chosen:
            path = _path(out, name, task)
            if not path.exists():
                own = changed(config, {"tasks": task})
                cell = run(TASKS[task], models[name][task], own, path.with_suffix(""))
                write_text(path, json.dumps(dataclasses.asdict(cell), indent=2) + "\n")
                shutil.rmtree(path.with_suffix(""))
                done += 1
                minutes = (time.monotonic() - begin) / done * (left - done) / 60
                beyond = statistics.fmean(_beyond(cell, TASKS[task], config.length))
                say(
                    f"{done} of {left}  {name} on {task}: {beyond:.0%} beyond length "
                    f"{config.length}, {cell.seconds:.0f} s; about {minutes:.0f} min left"
                )
            cells[name][task] = _read(path)
        jax.clear_caches()  # No other encoding runs this one's programs.
    write_text(out / "scores.csv", _csv(cells, config.seeds))
    page = "\n".join([*_page(cells, config), *_figures(cells, config, out), ""])
    write_text(out / "report.md", page)
    return page


def tasks(config: LengthGeneralisationConfig) -> list[str]:
    """The tasks that `config` chooses, in the order of the suite."""
    wanted = [name.strip() for name in config.tasks.split(",") if name.strip()]
    return [name for name in TASKS if not wanted or name in wanted]


def _model(name: str, task: AlgorithmicTask, config: LengthGeneralisationConfig) -> BertConfig:
    """The model of a cell: the same for all tasks of a kind, so that they share programs.

    Raises:
      ValueError: for an encoding that is not known, or not for this kind of task.
    """
    model = BertConfig(
        vocab_size=vocabulary_size(TASKS),
        max_length=max(row_length(one, max(config.test_lengths)) for one in TASKS.values()),
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        initializer_stddev=config.model.hidden_size**-0.5,
        **vars(config.model),
    )
    named = with_position(model, name)
    layers = [named.encoding().layer(i) for i in range(model.num_layers)]
    if task.causal and not all(layer.is_causal for layer in layers):
        return with_position(model, f"{name}+causal")
    for layer in layers:
        layer.check_layer()
    return named


def _check_settings(config: LengthGeneralisationConfig, out: Path) -> None:
    """Cells of one folder have the same settings; which encodings and tasks they are may grow."""
    settings = {
        key: value
        for key, value in json.loads(json.dumps(as_dict(config))).items()
        if key not in ("tasks", "vector")
    }
    path = out / "settings.json"
    if not path.exists():
        write_text(path, json.dumps(settings, indent=2) + "\n")
        return
    old = read_json(path, "The cells next to it are of unknown settings: give another --out.")
    changed = [
        f"  {key}: {old.get(key)!r} there, {settings.get(key)!r} now"
        for key in sorted(old.keys() | settings.keys())
        if old.get(key) != settings.get(key)
    ]
    if changed:
        raise ValueError(
            f"{out} has cells of other settings:\n" + "\n".join(changed) + "\n"
            "Give another --out, or the same settings to continue."
        )


def _path(out: Path, name: str, task: str) -> Path:
    """The file of a cell."""
    return out / "cells" / task / f"{file_name(name)}.json"


def _read(path: Path) -> Cell:
    """A cell that was written.

    Raises:
      ValueError: for a file that does not hold one.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        scores = {int(length): Score(**one) for length, one in found.pop("scores").items()}
        return Cell(scores=scores, **found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): delete it, and it is trained once more."
        ) from error


def _metric(task: AlgorithmicTask) -> str:
    """What the papers report: symbols that are right, or whole answers where these are written."""
    return "exact" if task.causal else "accuracy"


def _beyond(cell: Cell, task: AlgorithmicTask, length: int) -> list[float]:
    """Each seed's mean score over the tested lengths beyond those that it was trained on."""
    return _means(cell, task, [n for n in cell.scores if n > length])


def _within(cell: Cell, task: AlgorithmicTask, length: int) -> list[float]:
    """The same, of the lengths trained on."""
    return _means(cell, task, [n for n in cell.scores if n <= length])


def _means(cell: Cell, task: AlgorithmicTask, lengths: list[int]) -> list[float]:
    each = [getattr(cell.scores[length], _metric(task)) for length in lengths]
    return np.mean(each, axis=0).tolist()


def _csv(cells: Cells, seeds: tuple[int, ...]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["encoding", "task", "length", "seed", "accuracy", "exact"])
    for name, by_task in cells.items():
        for task, cell in by_task.items():
            for length, score in cell.scores.items():
                for seed, *pair in zip(seeds, score.accuracy, score.exact, strict=True):
                    writer.writerow([name, task, length, seed, *(f"{x:.4f}" for x in pair)])
    return text.getvalue()


def _page(cells: Cells, config: LengthGeneralisationConfig) -> list[str]:
    chosen = tasks(config)
    last = max(config.test_lengths)
    lines = [
        "# Length generalisation",
        "",
        f"{len(config.seeds)} models for each encoding and task, of {config.model.num_layers} "
        f"layers of {config.model.hidden_size}, trained for",
        f"{config.steps:,} steps of {config.batch_size} inputs of 1 to {config.length} symbols. "
        "Scores in points: the mean over inputs of",
        f"up to {config.length} symbols → over longer ones, up to {last}, ± its standard deviation "
        "over the models.",
        "A score counts symbols that are right; whole answers, where they are written token by "
        "token.",
        "",
    ]
    for level, title in _LEVELS.items():
        of_level = [task for task in chosen if TASKS[task].level == level]
        if not of_level:
            continue
        rows = [
            [name, *(_cell(by_task[task], TASKS[task], config.length) for task in of_level)]
            for name, by_task in cells.items()
        ]
        chance = ["*guessing*", *(_chance(TASKS[task]) for task in of_level)]
        lines += [f"## {title}", "", *table(["encoding", *of_level], [*rows, chance]), ""]
    return lines


def _cell(cell: Cell, task: AlgorithmicTask, length: int) -> str:
    within, beyond = _within(cell, task, length), _beyond(cell, task, length)
    spread = f" ± {100 * statistics.stdev(beyond):.0f}" if len(beyond) > 1 else ""
    return f"{100 * statistics.fmean(within):.0f} → {100 * statistics.fmean(beyond):.0f}{spread}"


def _chance(task: AlgorithmicTask) -> str:
    return "0" if task.causal else f"{100 / task.answers:.0f}"


def _figures(cells: Cells, config: LengthGeneralisationConfig, out: Path) -> list[str]:
    chosen = tasks(config)
    panels = []
    for name in chosen:
        task = TASKS[name]
        curves = {
            encoding: {
                length: getattr(score, _metric(task))
                for length, score in by_task[name].scores.items()
            }
            for encoding, by_task in cells.items()
        }
        chance = None if task.causal else 1 / task.answers
        panels.append(figures.LengthPanel(name.replace("_", " "), curves, chance))
    paths = [
        figures.length_curves(
            panels,
            out / "curves.png",
            title="Scores by the length of inputs; shaded: lengths trained on",
            trained=config.length,
            vector=config.vector,
        ),
        figures.score_map(
            np.array(
                [
                    [np.mean(_beyond(by_task[t], TASKS[t], config.length)) for t in chosen]
                    for by_task in cells.values()
                ]
            ),
            list(cells),
            [name.replace("_", " ") for name in chosen],
            out / "beyond.png",
            title=f"Mean scores on inputs longer than trained on ({config.length} symbols)",
            vector=config.vector,
        ),
    ]
    return [f"![{path.stem}]({path.name})\n" for path in paths]
