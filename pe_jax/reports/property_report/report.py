"""The property report: the chosen parts, with their numbers, figures, and a page."""

from __future__ import annotations

import json
import time
from pathlib import Path

from pe_jax.configs.properties import PropertiesConfig
from pe_jax.console.terminal import say
from pe_jax.files import write_text
from pe_jax.reports.property_report import position_losses, scores, states, vectors, words
from pe_jax.reports.property_report.attention_flow import attention_flow
from pe_jax.reports.property_report.massive_values import massive_values
from pe_jax.reports.property_report.offset_kernels import offset_kernel
from pe_jax.reports.property_report.render import Part, Settings, make_section
from pe_jax.reports.property_report.rotary_frequencies import rotary_frequencies
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.table1 import table1

PARTS: dict[str, Part] = {
    "table1": table1,
    "vectors": vectors.position_vectors,
    "words": words.identical_words,
    "offset_kernel": offset_kernel,
    "frequencies": vectors.frequencies,
    "evolution": vectors.evolution,
    "scores": scores.scores,
    "heads": words.positions_by_head,
    "positional_basis": states.positional_basis,
    "position_probe": states.position_probe,
    "regression": vectors.regression,
    "rotary_frequencies": rotary_frequencies,
    "massive_values": massive_values,
    "shift": position_losses.shift,
    "place": position_losses.place,
    "attention_flow": attention_flow,
    "correlation": scores.correlation,
}


def measure_properties(
    subjects: list[Subject], config: PropertiesConfig, out: Path, *, where_possible: bool = False
) -> str:
    """Write `PART.json`, figures and `report.md` to `out`; return the latter's text.

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
        section = make_section(PARTS[name], subjects, settings)
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
