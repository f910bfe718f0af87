"""Renderer of property reports: writes the parts' measurements as Markdown, figures and JSON.

A part measures subjects and returns `Findings`; it draws nothing and knows no Markdown.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import matplotlib.figure

from pe_jax.common import markdown
from pe_jax.common.files import Json, file_name
from pe_jax.trainer import figures
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.console.terminal import Progress
from pe_jax.trainer.reports.property_report.matrices import headings
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.tables import Column, Row, for_json, number_table

MODEL = "a run, an untrained encoding or an imported BERT"  # The subjects that have a model.
VIOLATIONS = "violations"  # Stands for the columns of `matrices.headings`.
_WIDTH = 100  # Characters in a line of text.
_SECONDS_A_LINE = 10.0  # Between lines of progress, at least.

T = TypeVar("T")


def with_progress(items: Sequence[T], job: str, unit: str) -> Iterator[T]:
    """Yield the items; report progress when each is done, if there are several."""
    if len(items) < 2:
        yield from items
        return
    progress = Progress(len(items), unit=unit, job=job, lines=_SECONDS_A_LINE)
    try:
        for item in items:
            yield item
            progress.advance()
    finally:
        progress.close()


class Figure:
    """A figure to draw: `draw(panels, **options)`, a function of `pe_jax.trainer.figures`.

    Figures with one name, of several subjects, become one with all panels.
    """

    def __init__(
        self,
        name: str,
        draw: Callable[..., matplotlib.figure.Figure],
        panels: Sequence[object],
        **options: object,
    ):
        self.name = name
        self.draw = draw
        self.panels = list(panels)
        self.options = options

    def save(self, folder: Path, vector: str = "") -> Path:
        """Draw the figure to a file in `folder`."""
        drawn = self.draw(self.panels, **self.options)
        name = file_name(self.name.replace(": ", "_"))
        return figures.save(drawn, folder / f"{name}.png", vector)


@dataclasses.dataclass
class Findings:
    """Measurements of one part of the report.

    Attributes:
      numbers: contents of its JSON file, by subject in most parts.
      rows: of its table.
      figures: to draw below the table.
      notes: sentences below the text of the table: its beginning -> what it lists.
      more_rows: of a second table.
    """

    numbers: Json = dataclasses.field(default_factory=dict)
    rows: list[Row] = dataclasses.field(default_factory=list)
    figures: list[Figure] = dataclasses.field(default_factory=list)
    notes: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    more_rows: list[Row] = dataclasses.field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Append the findings on another subject."""
        self.numbers |= other.numbers
        self.rows += other.rows
        self.figures += other.figures
        self.more_rows += other.more_rows
        for note, names in other.notes.items():
            self.notes.setdefault(note, []).extend(names)


# Text above a table, or a function of the findings that returns it; then headings of text, heading
# and format of numbers, or `VIOLATIONS`. `{config.KEY}` is replaced in texts and headings.
About: TypeAlias = str | Callable[[Findings, PropertiesConfig], str]
Table: TypeAlias = tuple[About, Sequence[Column]]


class ReportSection(NamedTuple):
    """A part of the report."""

    title: str
    needs: str  # The subjects that it can measure, for an error message.
    tables: Sequence[Table]  # One or two.
    # `measure(subject, config)`, without numbers if the part cannot measure the subject; or of all
    # subjects, `measure(subjects, config, out)` with the folder of the report.
    measure: Callable[..., Findings]
    is_joint: bool = False


def part(
    title: str,
    about: About,
    columns: Sequence[Column],
    *more: Table,
    needs: str = MODEL,
    is_joint: bool = False,
) -> Callable[[Callable[..., Findings]], ReportSection]:
    """Decorate the `measure` of a part, see `ReportSection`."""
    tables = ((about, columns), *more)
    return lambda measure: ReportSection(title, needs, tables, measure, is_joint)


def render(
    part: ReportSection,
    subjects: Sequence[MeasuredModel],
    config: PropertiesConfig,
    out: Path,
) -> tuple[Json, list[str], list[Path]] | None:
    """Measure a part and draw its figures to `out`.

    Returns:
      Numbers for the JSON file, lines of Markdown, and the files of the figures; None if the part
      can measure none of the subjects.
    """
    if part.is_joint:
        findings = part.measure(subjects, config, out)
    else:
        findings = Findings()
        if part.needs == MODEL:
            subjects = [subject for subject in subjects if subject.model is not None]
        for subject in with_progress(subjects, part.title, "model"):
            findings.add(part.measure(subject, config))
    if not findings.numbers:
        return None
    lines: list[str] = []
    for (about, columns), rows in zip(part.tables, (findings.rows, findings.more_rows)):
        if not rows:
            continue
        if lines:
            lines.append("")
        text = (
            about(findings, config) if callable(about) else about.format(config=config)
        )
        lines += textwrap.wrap(text, _WIDTH, break_on_hyphens=False)
        if rows is findings.rows:
            for note, names in findings.notes.items():
                lines.append(markdown.text(f"{note}: {', '.join(names)}."))
        lines.append("")
        lines += number_table(_expanded(columns, config), rows)
    return for_json(findings.numbers), lines, _draw(findings.figures, config, out)


def _expanded(columns: Sequence[Column], config: PropertiesConfig) -> list[Column]:
    """Return the columns with `VIOLATIONS` expanded and keys of the config replaced."""
    expanded: list[Column] = []
    for column in columns:
        if column == VIOLATIONS:
            for heading in headings(config.windows).values():
                expanded.append((heading, ".3f"))
        elif isinstance(column, str):
            expanded.append(column.format(config=config))
        else:
            heading, form = column
            expanded.append((heading.format(config=config), form))
    return expanded


def _draw(
    drawings: Sequence[Figure], config: PropertiesConfig, out: Path
) -> list[Path]:
    """Draw each figure once: first those that several subjects share, then those of one."""
    by_name: dict[str, list[Figure]] = {}
    for figure in drawings:
        by_name.setdefault(figure.name, []).append(figure)
    paths = []
    for name, same in sorted(by_name.items(), key=lambda item: len(item[1]) == 1):
        panels = [panel for figure in same for panel in figure.panels]
        whole = Figure(name, same[0].draw, panels, **same[0].options)
        paths.append(whole.save(out, config.vector))
    return paths


def product_figure(name: str, panels: Sequence[figures.Panel], title: str) -> Figure:
    """Return a figure of `matrices.product_panel`s."""
    label = "dot product / mean self-product"
    return Figure(
        name, figures.matrix_grid, panels, title=title, label=label, limits=(-1.0, 1.0)
    )


def logit_figure(
    name: str, panels: Sequence[figures.Panel], title: str, quantity: str = "logit"
) -> Figure:
    """Return a figure of `matrices.logit_panel`s."""
    label = f"{quantity} − mean, in standard deviations σ"
    return Figure(
        name, figures.matrix_grid, panels, title=title, label=label, limits=(-3.0, 3.0)
    )
