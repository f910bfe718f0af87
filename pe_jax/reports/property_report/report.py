"""The property report: the chosen parts, with their numbers, figures, and a page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from pe_jax.console.terminal import say
from pe_jax.files import write_text
from pe_jax.reports.property_report import (
    attention_flow,
    evolution,
    frequencies,
    identical_words,
    massive_values,
    offset_kernels,
    place,
    position_probe,
    positional_basis,
    positions_by_head,
    regression_probe,
    rotary_frequencies,
    scores,
    scores_against_properties,
    shift,
    table1,
    vectors,
)
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject


class ReportPart(NamedTuple):
    """A measurement, and what subjects it needs."""

    make: Callable[[list[Subject], Settings], Section | None]
    needs: str


PARTS: dict[str, ReportPart] = {
    "table1": ReportPart(table1.table1, "untrained encodings (--encodings)"),
    "vectors": ReportPart(vectors.vectors, "an encoding with position vectors"),
    "words": ReportPart(identical_words.words, "a run, an untrained encoding or an imported BERT"),
    "offset_kernel": ReportPart(
        offset_kernels.kernels, "a run, an untrained encoding or an imported BERT"
    ),
    "frequencies": ReportPart(frequencies.frequencies, "a sinusoidal encoding"),
    "evolution": ReportPart(
        evolution.evolution, "a run of a learned encoding with checkpoints of two steps or more"
    ),
    "scores": ReportPart(scores.scores, "a run with checkpoints of two steps or more"),
    "heads": ReportPart(
        positions_by_head.heads, "a run, an untrained encoding or an imported BERT"
    ),
    "positional_basis": ReportPart(
        positional_basis.positional_basis, "a run, an untrained encoding or an imported BERT"
    ),
    "position_probe": ReportPart(
        position_probe.position_probe, "a run, an untrained encoding or an imported BERT"
    ),
    "regression": ReportPart(regression_probe.regression, "an encoding with position vectors"),
    "rotary_frequencies": ReportPart(
        rotary_frequencies.frequencies, "a run, an encoding or a BERT with a rotary encoding"
    ),
    "massive_values": ReportPart(
        massive_values.massive, "a run, an untrained encoding or an imported BERT"
    ),
    "shift": ReportPart(shift.shift, "a run, an untrained encoding or an imported BERT"),
    "place": ReportPart(place.place, "a model with a masked-LM head"),
    "attention_flow": ReportPart(
        attention_flow.flow, "a run, an untrained encoding or an imported BERT"
    ),
    "correlation": ReportPart(
        scores_against_properties.correlation, "four runs or more that have scores"
    ),
}


def measure_properties(
    subjects: list[Subject], config: ConfigDict, out: Path, *, where_possible: bool = False
) -> str:
    """Writes `PART.json`, figures and `report.md` to `out`; returns the latter's text.

    Args:
      config: of `configs/properties.py`, checked (`reports.report_schemas`); `config.parts` chooses
        parts, by default all that apply.
      where_possible: leave out chosen parts that do not apply.

    Raises:
      ValueError: for a chosen part that does not apply to the subjects.
    """
    if not subjects:
        raise ValueError(
            "Nothing to measure: give --workdir, --runs, --encodings or --checkpoints."
        )
    chosen = [name.strip() for name in config.parts.split(",") if name.strip()]
    settings = Settings(config, out)
    names = ", ".join(s.name + (f" (step {s.step:,})" if s.step else "") for s in subjects)
    say(f"Measuring {names}")
    text = [f"# Properties of position encodings\n\nMeasured: {names}.\n"]
    for name in chosen or PARTS:
        start = time.perf_counter()
        section = PARTS[name].make(subjects, settings)
        if section is None:
            if chosen and not where_possible:
                raise ValueError(f"The part {name} needs {PARTS[name].needs}; got {names}.")
            continue
        say(f"Measured {name} ({time.perf_counter() - start:.0f} s)")
        write_text(out / f"{name}.json", json.dumps(section.numbers, indent=2) + "\n")
        text.append("\n".join([f"## {section.title}", "", *section.lines, ""]))
        text += [f"![{section.title}]({path.name})\n" for path in section.figures]
    page = "\n".join(text)
    write_text(out / "report.md", page)
    return page
