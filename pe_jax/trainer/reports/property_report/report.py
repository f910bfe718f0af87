"""The property report: the chosen parts, with their numbers, figures, and a page."""

from __future__ import annotations

import time
from pathlib import Path

from pe_jax.common import markdown
from pe_jax.common.values import split_names
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.reports.pages import page, write_page
from pe_jax.trainer.reports.property_report import (
    logits,
    massive_values,
    order,
    position_losses,
    rotary_frequencies,
    scores,
    states,
    vectors,
)
from pe_jax.trainer.reports.property_report.render import ReportSection, render
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.property_report.table1 import table1
from pe_jax.trainer.reports.tables import write_json

PARTS: dict[str, ReportSection] = {
    "table1": table1,
    "vectors": vectors.position_vectors,
    "words": logits.identical_words,
    "offset_kernel": logits.offset_kernel,
    "offset_share": logits.offset_share,
    "frequencies": vectors.frequencies,
    "evolution": vectors.evolution,
    "scores": scores.scores,
    "heads": vectors.positions_by_head,
    "positional_basis": states.positional_basis,
    "position_probe": states.position_probe,
    "regression": vectors.regression,
    "rotary_frequencies": rotary_frequencies.rotary_frequencies,
    "massive_values": massive_values.massive_values,
    "shift": position_losses.shift,
    "place": position_losses.place,
    "order_sensitivity": order.order_sensitivity,
    "attention_flow": states.attention_flow,
    "correlation": scores.correlation,
}


def measure_properties(
    subjects: list[MeasuredModel],
    config: PropertiesConfig,
    out: Path,
    *,
    where_possible: bool = False,
) -> str:
    """Write `PART.json`, figures, `report.md` and `.html` to `out`; return the page.

    Args:
      config: `config.parts` chooses parts, by default all that apply.
      where_possible: leave out chosen parts that do not apply to the subjects.

    Raises:
      ValueError: without subjects, or for a chosen part that does not apply to them.
    """
    if not subjects:
        raise ValueError(
            "Nothing to measure: give --workdir, --runs, --encodings or --checkpoints."
        )
    chosen = split_names(config.parts)
    names = ", ".join(
        f"{subject.name} (step {subject.step:,})" if subject.step else subject.name
        for subject in subjects
    )
    log(f"Measuring {names}")
    text = [
        page("Properties of position encodings", f"Measured: {markdown.text(names)}.")
    ]
    for name in chosen or PARTS:
        part = PARTS[name]
        start = time.perf_counter()
        section = render(part, subjects, config, out)
        if section is None:
            if chosen and not where_possible:
                raise ValueError(f"The part {name} needs {part.needs}; got {names}.")
            continue
        log(f"Measured {name} ({time.perf_counter() - start:.0f} s)")
        numbers, lines, pictures = section
        write_json(out / f"{name}.json", numbers)
        text.append("\n".join([f"## {part.title}", "", *lines, ""]))
        for path in pictures:
            text.append(f"{markdown.image(part.title, path.name)}\n")
    return write_page(out / "report.md", "\n".join(text))
