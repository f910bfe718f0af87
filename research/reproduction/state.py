"""State of a study: the runs that are done, from the results file and the folders of the runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pe_jax.common.files import parse_json, read_json, write_text
from pe_jax.common.markdown import raw_table
from pe_jax.common.schema import as_dict, from_values, values_of
from research.json_files import check as check_json
from research.reproduction import config as shipped
from research.reproduction.config import ReproductionConfig
from research.reproduction.plan import RESULT, Run, plan
from research.reproduction.results_file import (
    FILE,
    Entry,
    Results,
    check_values,
    read_results,
    saved_config,
)

_TIMES = "times.jsonl"
_FIX = "Remove it, and start the study again."


def save(
    config: ReproductionConfig,
    runs: Sequence[Run],
    done: Mapping[str, Entry],
    folder: Path,
) -> None:
    """Write the results file of the study in `folder`; `done` has the entries of finished runs."""
    path = folder / FILE
    values = as_dict(config)
    defaults = values_of(from_values(shipped.get_config(), ReproductionConfig))
    options = [
        f"--config.{key}={value}"
        for key, value in values_of(config).items()
        if value != defaults.get(key)
    ]
    table_1 = read_results(folder)["table_1"] if path.is_file() else None
    entries = {run.name: done.get(run.name) for run in runs}
    write(path, Results(config=values, options=options, table_1=table_1, runs=entries))


def write(path: Path, results: Results) -> None:
    write_text(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def finished_entries(runs: Sequence[Run], folder: Path) -> dict[str, Entry]:
    """Return the entries of the runs that are done, by name.

    A run is done if its folder says so, or the results file, which is enough to continue a study
    elsewhere. Runs in that file have the settings of its config, by the keys that there are today.
    """
    saved: dict[str, Entry] = {}
    if (folder / FILE).is_file():
        results = read_results(folder)
        for run in plan(saved_config(results), folder):
            if entry := results["runs"].get(run.name):
                saved[run.name] = {**entry, "settings": run.settings}
    entries = {run.name: saved.get(run.name) or finished_entry(run) for run in runs}
    return {name: entry for name, entry in entries.items() if entry}


def finished_entry(run: Run) -> Entry | None:
    """Return the results of the run's process, or None if the run is not complete."""
    path = run.folder / RESULT
    if not path.is_file():
        return None
    facts = {"position": run.position, "seed": run.seed, "seconds": seconds(run)}
    entry = check_json({**read_json(path, _FIX), **facts}, Entry, path, _FIX)
    check_values(entry, run.name, path, _FIX)
    return entry


def check(runs: Sequence[Run], done: Mapping[str, Entry]) -> None:
    """Check that finished runs have the settings that the plan has now.

    Raises:
      ValueError: naming the runs that have others.
    """
    other = [run.name for run in runs
             if run.name in done and done[run.name]["settings"] != run.settings]  # fmt: skip
    if other:
        more = f" and {len(other) - 3} more" if len(other) > 3 else ""
        raise ValueError(
            f"{', '.join(other[:3])}{more}: made with other settings. Use the settings that the "
            f"study was started with (listed in its {FILE}), or another --workdir. To repeat these "
            f"runs, delete their folders and their entries in {FILE}."
        )


def seconds(run: Run) -> float:
    """Return the seconds of the run's processes, all starts together."""
    path = run.folder / _TIMES
    if not path.is_file():
        return 0.0
    times = []
    # After the last line break there may be half a line.
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
    for number, line in enumerate(lines, 1):
        try:
            times.append(check_json(parse_json(line), float, path, _FIX))
        except ValueError:
            raise ValueError(
                f"Line {number} of {path} is damaged: {line[:40]!r}. Delete the line."
            ) from None
    return sum(times)


def add_seconds(run: Run, more: float) -> None:
    with (run.folder / _TIMES).open("a", encoding="utf-8") as file:
        file.write(f"{more:.1f}\n")


def to_execute(runs: Sequence[Run], done: Collection[str]) -> list[Run]:
    """Return the unfinished runs, and the models without weights that they start from."""
    needed = {run.needs for run in runs if run.name not in done}
    return [
        run
        for run in runs
        if run.name not in done
        or (run.folder in needed and not has_weights(run.folder))
    ]


def has_weights(folder: Path) -> bool:
    """Return whether there are weights of a model to start from."""
    return any((folder / "checkpoints").glob("*"))


def is_ready(run: Run) -> bool:
    """Return whether the model that the run needs is complete."""
    return run.needs is None or (
        (run.needs / RESULT).is_file() and has_weights(run.needs)
    )


def progress_table(
    runs: Sequence[Run],
    done: Collection[str],
    running: Collection[str] = (),
    failed: Collection[str] = (),
) -> str:
    """Return a table for each arm: a row for each model, a column for each kind of run.

    Args:
      done, running, failed: names of runs.
    """

    def mark(name: str) -> str:
        if name not in names:
            return ""
        words = {"now": running, "failed": failed, "done": done}
        return next((word for word, members in words.items() if name in members), "·")

    names = {run.name for run in runs}
    tables = []
    for arm in dict.fromkeys(run.arm for run in runs):
        models = dict.fromkeys(run.model for run in runs if run.arm == arm)
        kinds = list(dict.fromkeys(run.kind for run in runs if run.arm == arm))
        rows = [
            [model, *(mark(f"{arm}/{kind}/{model}") for kind in kinds)]
            for model in models
        ]
        tables.append("\n".join(raw_table([arm.replace("_", " "), *kinds], rows)))
    return "\n\n".join(tables)
