"""The property report: the chosen parts, with their numbers, figures, and a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from pe_jax.console.terminal import say
from pe_jax.errors import did_you_mean
from pe_jax.files import write_text
from pe_jax.reports.property_report import (
    evolution,
    frequencies,
    identical_words,
    position_regression,
    positions_by_head,
    score_correlation,
    scores,
    table1,
    vectors,
)
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject


class Part(NamedTuple):
    """A measurement, and what subjects it needs."""

    make: Callable[[list[Subject], Settings], Section | None]
    needs: str


PARTS: dict[str, Part] = {
    "table1": Part(table1.table1, "untrained encodings (--encodings)"),
    "vectors": Part(vectors.vectors, "an encoding with position vectors"),
    "words": Part(identical_words.words, "a run, an untrained encoding or an imported BERT"),
    "frequencies": Part(frequencies.frequencies, "a sinusoidal encoding"),
    "evolution": Part(
        evolution.evolution, "a run of a learned encoding with checkpoints of two steps or more"
    ),
    "scores": Part(scores.scores, "a run with checkpoints of two steps or more"),
    "heads": Part(positions_by_head.heads, "a run, an untrained encoding or an imported BERT"),
    "regression": Part(position_regression.regression, "an encoding with position vectors"),
    "correlation": Part(score_correlation.correlation, "four runs or more that have scores"),
}


def measure_properties(subjects: list[Subject], config: ConfigDict, out: Path) -> str:
    """Writes `PART.json`, figures and `report.md` to `out`; returns the latter's text.

    Args:
      config: of `configs/properties.py`; `config.parts` chooses parts, by default all that apply.

    Raises:
      ValueError: for an unknown part, or a chosen one that does not apply to the subjects.
    """
    if not subjects:
        raise ValueError(
            "Nothing to measure: give --workdir, --runs, --encodings or --checkpoints."
        )
    chosen = [name.strip() for name in config.parts.split(",") if name.strip()]
    for name in chosen:
        if name not in PARTS:
            hint = did_you_mean(name, PARTS)
            raise ValueError(f"Unknown part {name!r}.{hint} Known: {', '.join(PARTS)}.")
    settings = Settings(config, out)
    names = ", ".join(s.name + (f" (step {s.step:,})" if s.step else "") for s in subjects)
    text = [f"# Properties of position encodings\n\nMeasured: {names}.\n"]
    for name in chosen or PARTS:
        say(f"Measuring {name}")
        section = PARTS[name].make(subjects, settings)
        if section is None:
            if chosen:
                raise ValueError(f"The part {name} needs {PARTS[name].needs}; got {names}.")
            continue
        write_text(out / f"{name}.json", json.dumps(section.numbers, indent=2) + "\n")
        text.append("\n".join([f"## {section.title}", "", *section.lines, ""]))
        text += [f"![{section.title}]({path.name})\n" for path in section.figures]
    page = "\n".join(text)
    write_text(out / "report.md", page)
    return page
