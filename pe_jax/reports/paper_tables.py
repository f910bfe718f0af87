"""The paper's tables 2 and 3, made from finished fine-tuning runs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pe_jax import encodings
from pe_jax.configs.tables import TablesConfig
from pe_jax.console import markdown
from pe_jax.errors import did_you_mean
from pe_jax.files import Json, write_text
from pe_jax.schema import flatten
from pe_jax.training import workdir

TITLES = {"glue": "GLUE (table 2)", "squad": "SQuAD (table 3)"}
DECIMALS = {"glue": 1, "squad": 2}  # As the paper prints them.

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

# The paper's mean excludes WNLI: its development set contradicts its training set.
IN_MEAN: tuple[str, ...] = tuple(name for name in GLUE if name != "glue/wnli")

# Table 3; other sets of questions and spans have the same two columns, under their own names.
SQUAD: dict[str, str] = {"squad/v1.1": "V1.1", "squad/v2.0": "V2.0"}
SPAN_METRICS: dict[str, str] = {"f1": "F1", "exact": "EM"}

_RESULT_KEYS = ("dataset", "trained_on", "position", "init", "select", "seeds", "scores")

# Last parts of config keys that no score depends on, or that tables read from the results.
_NOT_SETTINGS = {
    "cache_dir", "checkpoint_every", "data_dir", "init", "keep_checkpoints", "log_every",
    "position", "seed", "seeds", "workdir", "workers",
}  # fmt: skip

_SELECTED = {"last": " of the last step", "best": " of each seed's best step"}
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{sign: f"${sign}$" for sign in "<>|"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "†": r"$^\dagger$",
        "‡": r"$^\ddagger$",
        "–": "--",
    }
)


class Column(NamedTuple):
    """One metric of the runs trained on one set and scored on another, mostly the same."""

    dataset: str
    trained_on: str
    metric: str
    label: str

    @property
    def is_comparable(self) -> bool:
        """True if runs were trained on the set's training split, as in published results."""
        return self.trained_on == self.dataset

    @property
    def key(self) -> str:
        """Its unique name in files."""
        origin = "" if self.is_comparable else f"{self.trained_on} -> "
        return f"{origin}{self.dataset} {self.metric}"

    @property
    def table(self) -> str:
        return "glue" if self.dataset in GLUE else "squad"

    @property
    def place(self) -> tuple[bool, int, str, str, int]:
        """Sort key: the paper's columns first, in its order; then those trained on another set."""
        known = [*GLUE, *SQUAD]
        place = known.index(self.dataset) if self.dataset in known else len(known)
        within = list(SPAN_METRICS).index(self.metric) if self.table == "squad" else 0
        return (not self.is_comparable, place, self.dataset, self.trained_on, within)


class Comparison(NamedTuple):
    """Welch's two-sided t-test of scores against a baseline's.

    `interval`: 95 % confidence bounds of the difference. All but the difference are None if neither
    side varies over its seeds: the test measures a difference in units of that variation.
    """

    difference: float
    t: float | None
    df: float | None
    p: float | None
    interval: tuple[float, float] | None


class Cell(NamedTuple):
    """Scores in points, one for each seed; `test` is None if there is nothing to compare."""

    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    test: Comparison | None = None

    @property
    def n(self) -> int:
        return len(self.seeds)

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def std(self) -> float | None:
        """Over seeds, with n - 1 in the denominator; None for one seed."""
        return _variance(self.scores) ** 0.5 if self.n > 1 else None

    @property
    def p(self) -> float | None:
        return self.test.p if self.test else None

    def numbers(self) -> Json:
        """Return the cell as it is in `tables.json`."""
        return {
            "mean": self.mean,
            "std": self.std,
            "n": self.n,
            "seeds": list(self.seeds),
            "scores": list(self.scores),
            "test": self.test._asdict() if self.test else None,
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
        return columns_of(self.dataset, self.trained_on)


class Table(NamedTuple):
    """Columns, and encoding -> a cell for each of them, None where there is no score.

    `keys` name columns in files, `labels` in print; `usual` is the number of seeds that is not
    printed in the cells.
    """

    name: str
    keys: list[str]
    labels: list[str]
    rows: dict[str, list[Cell | None]]
    usual: int
    notes: list[str]


def write_tables(folders: list[Path], config: TablesConfig, out: Path) -> str:
    """Write both tables to `out`, as JSON, Markdown, CSV and LaTeX; return the Markdown.

    `tables.json` and `tables.md` hold both; `glue.*` and `squad.*` one each, if it has a run.

    Args:
      config: of `configs/tables.py`, checked (`reports.report_schemas`).

    Raises:
      ValueError: if no run has finished, results are damaged or cannot be pooled, or no run has the
        baseline.
    """
    by_folder = {folder: read(folder) for folder in folders}
    unfinished = [str(folder) for folder, run in by_folder.items() if run is None]
    runs = list(pool(run for run in by_folder.values() if run).values())
    if not runs:
        raise ValueError(
            f"None of {len(folders)} runs has finished: no results.json in "
            f"{', '.join(unfinished) or 'any folder'}. Give --runs='RUNS/*' of fine-tuning runs."
        )
    numbers: Json = {
        "baseline": config.baseline,
        "p_value": config.p_value,
        "unfinished": unfinished,
    }
    pages = []
    for table in build_all(runs, config):
        pages.append(_markdown(table, config.p_value))
        write_text(out / f"{table.name}.md", pages[-1])
        write_text(out / f"{table.name}.csv", _csv(table))
        write_text(out / f"{table.name}.tex", _latex_table(table, config.p_value))
        numbers[table.name] = {
            "columns": dict(zip(table.keys, table.labels)),
            "rows": {
                position: {key: cell and cell.numbers() for key, cell in zip(table.keys, cells)}
                for position, cells in table.rows.items()
            },
            "notes": table.notes,
        }
    write_text(out / "tables.json", json.dumps(numbers, indent=2, allow_nan=False) + "\n")
    if unfinished:
        pages.append(f"Not finished, left out (no results.json): {', '.join(unfinished)}\n")
    page = "\n".join(pages)
    write_text(out / "tables.md", page)
    return page


def tables_page(runs: Sequence[Results], config: TablesConfig) -> str:
    """Return both tables as Markdown, without writing files; raises as `build_all` does."""
    return "\n".join(_markdown(table, config.p_value) for table in build_all(runs, config))


def build_all(runs: Sequence[Results], config: TablesConfig) -> list[Table]:
    """Return the tables that have a run.

    Raises:
      ValueError: if no run has the baseline.
    """
    known = {run.position: None for run in runs} | dict.fromkeys(encodings.PAPER)
    if config.baseline not in known:
        raise ValueError(
            f"No run has config.baseline={config.baseline!r}.{did_you_mean(config.baseline, known)}"
        )
    by_table = {name: [run for run in runs if run.columns()[0].table == name] for name in TITLES}
    return [build(name, chosen, config) for name, chosen in by_table.items() if chosen]


def columns_of(dataset: str, trained_on: str) -> list[Column]:
    """Return the columns that the runs on a set fill.

    Raises:
      ValueError: for a task that is not one of GLUE's nine.
    """
    if dataset in GLUE:
        label, metric = GLUE[dataset]
        return [Column(dataset, trained_on, metric, label)]
    if dataset.startswith("glue/"):
        raise ValueError(f"Unknown GLUE task {dataset!r}; table 2 has {', '.join(GLUE)}.")
    name = SQUAD.get(dataset, dataset)
    return [
        Column(dataset, trained_on, metric, f"{name} {label}")
        for metric, label in SPAN_METRICS.items()
    ]


def read(folder: Path) -> Results | None:
    """Return the results of the run in `folder`, or None if it has not finished.

    Raises:
      ValueError: if `results.json` is not that of a finished run, or `config.json` is missing.
    """
    path = folder / "results.json"
    if not path.is_file():
        return None
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}. Run the fine-tuning again.") from None
    missing = [key for key in _RESULT_KEYS if key not in results]
    if missing:
        has = ", ".join(results) or "none"
        raise ValueError(f"{path} lacks {', '.join(missing)}; it has {has}.")
    # For sets other than GLUE and SQuAD, `dataset` may name both: TRAINING SET -> EVALUATION SET.
    dataset = results["dataset"].rpartition(" -> ")[2]
    trained_on = results["trained_on"].partition(" -> ")[0]
    try:
        metrics = [column.metric for column in columns_of(dataset, trained_on)]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    seeds = results["seeds"]
    if not isinstance(seeds, list) or not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"{path}: seeds must be a list of different numbers, got {seeds!r}.")
    return Results(
        folder=folder,
        dataset=dataset,
        trained_on=trained_on,
        position=results["position"].replace(" ", ""),
        init=results["init"],
        seeds=tuple(sorted(seeds)),
        scores={name: _by_seed(path, seeds, results["scores"], name) for name in metrics},
        settings=_settings(folder, results["select"]),
    )


def _by_seed(path: Path, seeds: list[int], scores: Json, name: str) -> tuple[float, ...]:
    """Return the scores of a metric, ordered by seed."""
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
    config = flatten(workdir.saved_values(folder))
    kept = {key: value for key, value in config.items() if key.rpartition(".")[2] not in without}
    return {**kept, "select": select}


def pool(runs: Iterable[Results]) -> dict[tuple[str, str, str], Results]:
    """Return one `Results` for each (dataset, trained_on, position), over all seeds.

    Raises:
      ValueError: if two runs of one cell share a seed, or differ in more than their seeds.
    """
    pooled: dict[tuple[str, str, str], Results] = {}
    for run in runs:
        key = (run.dataset, run.trained_on, run.position)
        pooled[key] = _joined(pooled[key], run) if key in pooled else run
    return pooled


def _joined(first: Results, second: Results) -> Results:
    both = f"{first.folder} and {second.folder} are both {first.position} on {first.dataset}"
    way_out = "Leave one of them out of --runs."
    different = _different_settings([first, second])
    if first.init != second.init:
        different["init"] = [first.init, second.init]
    if different:
        lines = [f"  {key}: {old!r}, {new!r}" for key, (old, new) in different.items()]
        raise ValueError("\n".join([f"{both}, with other settings:", *lines, way_out]))
    shared = sorted(set(first.seeds) & set(second.seeds))
    if shared:
        raise ValueError(f"{both}, and both have seeds {', '.join(map(str, shared))}. {way_out}")
    seeds = first.seeds + second.seeds
    order = np.argsort(seeds)
    scores = {name: values + second.scores[name] for name, values in first.scores.items()}
    return first._replace(
        seeds=tuple(seeds[i] for i in order),
        scores={name: tuple(values[i] for i in order) for name, values in scores.items()},
    )


def _different_settings(runs: Sequence[Results]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ, by dotted key: the value of each run, or None."""
    keys = sorted({key for run in runs for key in run.settings})
    values = {key: [run.settings.get(key) for run in runs] for key in keys}
    return {key: each for key, each in values.items() if any(v != each[0] for v in each)}


def welch(scores: Sequence[float], baseline: Sequence[float]) -> Comparison | None:
    """Compare scores with a baseline of possibly different variance; None below two seeds."""
    from scipy import stats  # As long to import as all of JAX, and only needed here.

    if min(len(scores), len(baseline)) < 2:
        return None
    difference = float(np.mean(scores) - np.mean(baseline))
    v, w = (_variance(values) / len(values) for values in (scores, baseline))
    if v + w == 0:
        return Comparison(difference, None, None, None, None)
    error = np.sqrt(v + w)
    t = difference / error
    df = (v + w) ** 2 / (v**2 / (len(scores) - 1) + w**2 / (len(baseline) - 1))
    p = 2 * stats.t.sf(abs(t), df)
    half = stats.t.ppf(0.975, df) * error
    interval = (float(difference - half), float(difference + half))
    return Comparison(difference, float(t), float(df), float(p), interval)


def _variance(values: Sequence[float]) -> float:
    """Return the variance with n - 1 in the denominator."""
    # Equal values would get some 1e-29 from the rounding of the mean.
    return float(np.var(values, ddof=1)) if np.ptp(values) else 0.0


def mean_over_tasks(cells: Sequence[Cell | None]) -> Cell | None:
    """Return each seed's mean over tasks; None if a task is missing or has other seeds.

    The spread of a row's mean is thus over seeds, as in the paper, not over tasks.
    """
    present = [cell for cell in cells if cell]
    if not present or len(present) < len(cells) or len({cell.seeds for cell in present}) > 1:
        return None
    means = np.mean([cell.scores for cell in present], axis=0)
    return Cell(present[0].seeds, tuple(means.tolist()))


def build(name: str, runs: Sequence[Results], config: TablesConfig) -> Table:
    """Return the table `name`, `"glue"` or `"squad"`, of runs that are pooled over seeds."""
    columns = sorted({column for run in runs for column in run.columns()}, key=lambda c: c.place)
    positions = _in_order({run.position for run in runs}, config.all_rows)
    by_column: dict[Column, dict[str, Cell]] = {column: {} for column in columns}
    for run in runs:
        for column in run.columns():
            by_column[column][run.position] = Cell(run.seeds, run.scores[column.metric])
    foreign = dict.fromkeys(column.trained_on for column in columns if not column.is_comparable)
    marks = {origin: f" [{chr(ord('a') + i)}]" for i, origin in enumerate(foreign)}
    keys = [column.key for column in columns]
    labels = [f"{column.label}{marks.get(column.trained_on, '')}" for column in columns]
    grid = [[cells.get(position) for position in positions] for cells in by_column.values()]
    if name == "glue":
        by_task = {c.dataset: cells for c, cells in by_column.items() if c.is_comparable}
        for label, tasks in _means(by_task, {run.position for run in runs}).items():
            keys, labels = [*keys, label], [*labels, label]
            grid.append(
                [mean_over_tasks([by_task.get(t, {}).get(p) for t in tasks]) for p in positions]
            )
    for cells in grid if config.baseline in positions else []:
        base = cells[positions.index(config.baseline)]
        for i, cell in enumerate(cells):
            if cell and base and cell is not base:
                cells[i] = cell._replace(test=welch(cell.scores, base.scores))
    rows = dict(zip(positions, map(list, zip(*grid))))
    # The number of seeds that most cells have; of equally frequent ones the larger.
    counts = Counter(cell.n for cells in rows.values() for cell in cells if cell)
    usual = max(counts, key=lambda n: (counts[n], n))
    table = Table(name, keys, labels, rows, usual, [])
    origins = [
        f"{mark.strip()} Trained on {origin}: not comparable with published results."
        for origin, mark in marks.items()
    ]
    notes = [*_notes(table, runs, config), *origins, *_warnings(runs, columns)]
    return table._replace(notes=notes)


def _in_order(positions: set[str], all_rows: bool) -> list[str]:
    """Return the paper's order, whatever the options, then the alphabet's; with `all_rows` also the
    paper's encodings that have no run."""
    names = {position: encodings.without_options(position) for position in positions}
    if all_rows:
        names |= {name: name for name in encodings.PAPER if name not in names.values()}
    places = {name: place for place, name in enumerate(encodings.PAPER)}
    return sorted(names, key=lambda name: (places.get(names[name], len(places)), name))


def _means(by_task: dict[str, dict[str, Cell]], positions: set[str]) -> dict[str, tuple[str, ...]]:
    """Return columns of means and the sets they average: all eight, where a row has them, and those
    that every row has."""
    is_whole = any(all(name in by_task.get(task, {}) for task in IN_MEAN) for name in positions)
    means = {f"mean of {len(IN_MEAN)}": IN_MEAN} if is_whole else {}
    common = tuple(task for task in IN_MEAN if positions <= by_task.get(task, {}).keys())
    if 1 < len(common) < len(IN_MEAN):
        names = ", ".join(task.removeprefix("glue/") for task in common)
        means[f"mean of {len(common)} ({names})"] = common
    return means


def _notes(table: Table, runs: Sequence[Results], config: TablesConfig) -> list[str]:
    """Return sentences on the numbers, on the tasks, and on the tests of a table."""
    selected = {run.settings["select"] for run in runs}
    which = _SELECTED.get(selected.pop(), "") if len(selected) == 1 else ""
    cells = [cell for row in table.rows.values() for cell in row if cell]
    varies = any(cell.n != table.usual for cell in cells)
    count = f"{table.usual} seed{'s' if table.usual > 1 else ''}{' where no n is given' * varies}"
    shown = f"mean ± sample standard deviation over {count}"
    if all(cell.n == 1 for cell in cells):
        shown = "one seed each"
    notes = [f"Scores{which} in points: {shown}. Bold: the best mean of a column. –: no score."]
    if table.name == "glue":
        notes.append(
            "mcc is Matthews' correlation and spear. Spearman's, times 100; MNLI-mm is the "
            "mismatched set. Means over tasks exclude WNLI; their ± is over seeds, of each "
            "seed's mean, and they are missing where a task is, or has other seeds."
        )
    tested = sum(cell.p is not None for cell in cells)
    if not any(table.rows.get(config.baseline, [])):
        test = f"Nothing is tested: there is no run of {config.baseline} to compare with."
    elif not tested:
        test = "Nothing is tested: a test needs two seeds or more on both sides, and a spread."
    else:
        test = (
            f"† significantly better than {config.baseline}, ‡ significantly worse: Welch's "
            f"two-sided t-test, p < {config.p_value:g}, where both have two seeds or more; not "
            f"corrected for the number of comparisons ({tested})."
        )
    return [*notes, test]


def _warnings(runs: Sequence[Results], columns: Sequence[Column]) -> list[str]:
    """Return settings in which the rows of a column differ, columns with the same differences
    together, and encodings whose runs start from different weights: their rows mix models."""
    labels: dict[str, list[str]] = defaultdict(list)
    for column in columns:
        in_column = [run for run in runs if column in run.columns()]
        for key, values in _different_settings(in_column).items():
            positions: dict[str, list[str]] = defaultdict(list)
            for run, value in zip(in_column, values):
                positions[json.dumps(value)].append(run.position)
            each = "; ".join(f"{value} ({', '.join(names)})" for value, names in positions.items())
            labels[f"{key} is {each}"].append(column.label)
    inits: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        inits[run.position].add(run.init)
    return [
        *(
            f"Warning: rows of {', '.join(names)} differ in settings: {difference}."
            for difference, names in labels.items()
        ),
        *(
            f"Warning: runs of {position} start from different weights: {', '.join(sorted(names))}."
            for position, names in inits.items()
            if len(names) > 1
        ),
    ]


def _printed(
    table: Table, p_value: float, bold: str, escape: Callable[[str], str] = str
) -> list[list[str]]:
    """Return the rows as text; the best mean of a column, as printed, is bold.

    Args:
      bold: the format of a bold mean.
    """
    decimals = DECIMALS[table.name]

    def mean(cell: Cell) -> str:
        return f"{cell.mean:z.{decimals}f}"

    best = [
        max((float(mean(cell)) for cell in column if cell), default=None)
        for column in zip(*table.rows.values())
    ]

    def text(cell: Cell | None, top: float | None) -> str:
        if cell is None:
            return escape("–")
        mark = ""
        if cell.test is not None and cell.test.p is not None and cell.test.p < p_value:
            mark = "†" if cell.test.difference > 0 else "‡"
        spread = "" if cell.std is None else f" ± {cell.std:.{decimals}f}"
        seeds = "" if cell.n == table.usual else f" (n={cell.n})"
        start = bold.format(mean(cell)) if float(mean(cell)) == top else escape(mean(cell))
        return start + escape(f"{mark}{spread}{seeds}")

    return [[escape(position), *map(text, cells, best)] for position, cells in table.rows.items()]


def _markdown(table: Table, p_value: float) -> str:
    """Return a heading, the table with its columns lined up, and its notes."""
    rows = _printed(table, p_value, "**{}**")
    lines = markdown.table(["position encoding", *table.labels], rows)
    notes = [line for note in table.notes for line in ("", note)]
    return "\n".join([f"# {TITLES[table.name]}", "", *lines, *notes, ""])


def _latex_table(table: Table, p_value: float) -> str:
    """Return a `table` environment; the document needs the package booktabs."""

    def escape(text: str) -> str:
        return text.translate(_LATEX)

    header = ["position encoding", *map(escape, table.labels)]
    caption = escape(" ".join([f"{TITLES[table.name]}.", *table.notes]))
    rows = [header, *_printed(table, p_value, r"\textbf{{{}}}", escape)]
    first, *body = [" & ".join(cells) + r" \\" for cells in rows]
    start = rf"""% Needs \usepackage{{booktabs}}.
\begin{{table}}
\centering
\caption{{{caption}}}
\label{{tab:{table.name}}}
\begin{{tabular}}{{l{"c" * len(table.labels)}}}"""
    end = [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([start, r"\toprule", first, r"\midrule", *body, *end])


def _csv(table: Table) -> str:
    """Return a row for each encoding: mean, std, n and p of each column, empty if missing."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    numbers = ("mean", "std", "n", "p")
    writer.writerow(["position", *(f"{key} {number}" for key in table.keys for number in numbers)])
    for position, cells in table.rows.items():
        row = [getattr(cell, number, None) for cell in cells for number in numbers]
        writer.writerow([position, *row])
    return file.getvalue()
