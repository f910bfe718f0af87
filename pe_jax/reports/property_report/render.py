"""Renderer of property reports: what the parts measure becomes Markdown, figures and JSON.

A part measures subjects and returns `Findings`: numbers, rows of its table and panels of figures.
It writes no file. `make_section` renders the findings of any part.
"""

from __future__ import annotations

import dataclasses
import functools
import textwrap
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from jax.typing import ArrayLike

from pe_jax.configs.properties import PropertiesConfig
from pe_jax.files import Json, file_name
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.violations import headings
from pe_jax.reports.tables import Column, Row, number_table

MODEL = "a run, an untrained encoding or an imported BERT"  # The subjects that have a model.
VIOLATIONS = "violations"  # Stands for the columns of `violations.headings`.
_WIDTH = 100  # Characters in a line of text.

P = ParamSpec("P")
Result = TypeVar("Result")


class Figure:
    """A figure to draw: `draw(panels, path, vector=..., **options)`, a function of
    `pe_jax.figures`. Figures with one name, of several subjects, become one with all panels."""

    def __init__(
        self, name: str, draw: Callable[..., Path], panels: Sequence[object], **options: object
    ):
        self.name, self.draw, self.panels, self.options = name, draw, list(panels), options

    def save(self, path: Path, vector: str = "") -> Path:
        """Draw the figure to `path`."""
        return self.draw(self.panels, path, vector=vector, **self.options)


@dataclasses.dataclass
class Findings:
    """Measurements of one part.

    Attributes:
      numbers: contents of the part's JSON file, by subject in most parts.
      rows: of the part's table.
      figures: to draw.
      notes: sentences below the text of the table: beginning -> what it lists.
      more_rows: of the part's second table.
    """

    numbers: Json = dataclasses.field(default_factory=dict)
    rows: list[Row] = dataclasses.field(default_factory=list)
    figures: list[Figure] = dataclasses.field(default_factory=list)
    notes: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    more_rows: list[Row] = dataclasses.field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Append the findings of another subject."""
        for name, value in other.numbers.items():
            known = self.numbers.get(name)
            self.numbers[name] = known | value if isinstance(known, dict) else value
        self.rows += other.rows
        self.figures += other.figures
        self.more_rows += other.more_rows
        for note, names in other.notes.items():
            self.notes.setdefault(note, []).extend(names)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Config and output folder of a report, with the quantities that several parts share.

    Attributes:
      config: of `configs/properties.py`.
      out: the folder for figures.
      shared: results of functions decorated with `once`, dropped with their subject.
    """

    config: PropertiesConfig
    out: Path
    shared: WeakKeyDictionary[Subject, dict[Hashable, Any]] = dataclasses.field(
        default_factory=WeakKeyDictionary
    )

    @property
    def windows(self) -> tuple[int, ...]:
        return self.config.windows

    def figure(self, name: str) -> Path:
        """Return the path of the figure of this name."""
        return self.out / f"{file_name(name.replace(': ', '_'))}.png"


def once(
    function: Callable[Concatenate[Subject, Settings, P], Result],
) -> Callable[Concatenate[Subject, Settings, P], Result]:
    """Decorate `function(subject, settings, *args)`: it is called once for each subject."""

    @functools.wraps(function)
    def shared(subject: Subject, settings: Settings, *args: P.args, **kwargs: P.kwargs) -> Result:
        results = settings.shared.setdefault(subject, {})
        key = (function.__name__, *args)
        if key not in results:
            results[key] = function(subject, settings, *args, **kwargs)
        return results[key]

    return shared


class Table(NamedTuple):
    """Text above a table, and its columns.

    Attributes:
      about: the text, or a function of the findings and the config that returns it. `{config.KEY}`
        is replaced in a text, and in headings.
      columns: headings of text, heading and format of numbers, or `VIOLATIONS`.
    """

    about: str | Callable[[Findings, PropertiesConfig], str]
    columns: Sequence[Column]


MeasureOne: TypeAlias = Callable[[Subject, Settings], Findings | None]
MeasureAll: TypeAlias = Callable[[Sequence[Subject], Settings], Findings]


class Part(NamedTuple):
    """A part of the report.

    Attributes:
      title: of its section.
      needs: the subjects that it can measure, for an error message.
      tables: one or two.
      measure: returns its findings, without numbers if it can measure none of the subjects.
    """

    title: str
    needs: str
    tables: Sequence[Table]
    measure: MeasureAll


def part_of_each(title: str, needs: str, *tables: Table) -> Callable[[MeasureOne], Part]:
    """Decorate a function that measures one subject, or returns None for one that it cannot."""

    def decorate(measure: MeasureOne) -> Part:
        def measure_all(subjects: Sequence[Subject], settings: Settings) -> Findings:
            findings = Findings()
            for subject in subjects:
                if needs == MODEL and subject.model is None:
                    continue
                findings.add(measure(subject, settings) or Findings())
            return findings

        return Part(title, needs, tables, measure_all)

    return decorate


def part_of_all(title: str, needs: str, *tables: Table) -> Callable[[MeasureAll], Part]:
    """Decorate a function that measures all subjects together."""
    return lambda measure: Part(title, needs, tables, measure)


@dataclasses.dataclass(frozen=True)
class Section:
    """Numbers for the JSON file, lines of Markdown, and the files of the figures."""

    title: str
    numbers: Json
    lines: list[str]
    figures: list[Path]


def make_section(part: Part, subjects: Sequence[Subject], settings: Settings) -> Section | None:
    """Measure a part and draw its figures; None if it can measure none of the subjects."""
    findings = part.measure(subjects, settings)
    if not findings.numbers:
        return None
    lines: list[str] = []
    rows = (findings.rows, findings.more_rows)
    for table, table_rows in zip(part.tables, rows, strict=False):
        if not table_rows:
            continue
        about = table.about
        if isinstance(about, str):
            text = about.format(config=settings.config)
        else:
            text = about(findings, settings.config)
        lines += [""] * bool(lines) + textwrap.wrap(text, _WIDTH, break_on_hyphens=False)
        if table_rows is findings.rows:
            lines += [f"{note}: {', '.join(names)}." for note, names in findings.notes.items()]
        lines += ["", *number_table(_columns(table.columns, settings.config), table_rows)]
    return Section(part.title, findings.numbers, lines, _draw(findings.figures, settings))


def _columns(columns: Sequence[Column], config: PropertiesConfig) -> list[Column]:
    """Return the columns with `VIOLATIONS` expanded and keys of the config replaced."""
    expanded: list[Column] = []
    for column in columns:
        if column == VIOLATIONS:
            expanded += [(heading, ".3f") for heading in headings(config.windows).values()]
        elif isinstance(column, str):
            expanded.append(column.format(config=config))
        else:
            expanded.append((column[0].format(config=config), column[1]))
    return expanded


def _draw(figures: Sequence[Figure], settings: Settings) -> list[Path]:
    """Draw each figure once: first those that several subjects share, then those of one."""
    by_name: dict[str, list[Figure]] = {}
    for figure in figures:
        by_name.setdefault(figure.name, []).append(figure)
    paths = []
    for name, same in sorted(by_name.items(), key=lambda item: len(item[1]) == 1):
        panels = [panel for figure in same for panel in figure.panels]
        whole = Figure(name, same[0].draw, panels, **same[0].options)
        paths.append(whole.save(settings.figure(name), settings.config.vector))
    return paths


def for_json(values: ArrayLike) -> Any:
    """Return a number or nested lists of numbers; None for NaN and infinity, which JSON lacks."""
    values = np.asarray(values, np.float64)
    if values.ndim:
        return [for_json(value) for value in values]
    return float(values) if np.isfinite(values) else None
