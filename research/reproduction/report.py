"""Report of a study: its results file, figures, page and appendix, written to a folder."""

from __future__ import annotations

from pathlib import Path

from pe_jax.common.files import write_text
from pe_jax.common.schema import changed
from pe_jax.common.values import split_names
from pe_jax.trainer.reports.property_report.render import render
from pe_jax.trainer.reports.property_report.subjects import from_name
from pe_jax.trainer.reports.property_report.table1 import table1
from research.reproduction import drawing, state
from research.reproduction.appendix import appendix
from research.reproduction.config import ReproductionConfig
from research.reproduction.plan import TRAINED, plan
from research.reproduction.results import finished, values
from research.reproduction.results_file import FILE, read_results, saved_config
from research.reproduction.summary import PICTURE, summary


def report(folder: Path, out: Path) -> str:
    """Write results, figures, page and appendix of the study in `folder` to `out`; return the page.

    The figures of a model are drawn if its weights are there; those in `out` stay.

    Raises:
      ValueError: if there is no study in `folder`, or no run has finished.
    """
    results = read_results(folder)
    if not any(results["runs"].values()):
        raise ValueError(
            f"No run of the study in {folder} has finished yet: see {folder}/progress.md."
        )
    config = saved_config(results)
    positions = list(dict.fromkeys(
        entry["position"] for _, kind, _, entry in finished(results) if kind in TRAINED
    ))  # fmt: skip
    if not results["table_1"] or results["table_1"]["positions"] != positions:
        lines = _table_1(config, positions, out)
        results["table_1"] = {"positions": positions, "lines": lines}
    state.write(out / FILE, results)
    every = values(results)
    for arm in dict.fromkeys(name.partition("/")[0] for name in results["runs"]):
        drawing.draw_arm(arm, results, every, out / drawing.FOLDER / arm)
    shown = split_names(config.figures)
    for run in plan(config, folder):
        if run.kind in TRAINED and run.model in shown and state.has_weights(run.folder):
            path = drawing.model_folder(out, run.arm, run.model)
            drawing.draw_model(run, config.measures, path)
    drawing.draw_summary(every, out / PICTURE)
    write_text(out / "appendix.md", appendix(results, out))
    text = summary(results, out)
    write_text(out / "README.md", text)
    return text


def _table_1(config: ReproductionConfig, positions: list[str], out: Path) -> list[str]:
    """Return the lines of table 1 for these encodings as they are before training."""
    model = config.from_scratch.training.model
    measures = changed(config.measures, {"size": model.size or "base"})
    untrained = [from_name(position, measures, seed=0) for position in positions]
    section = render(table1, untrained, measures, out)
    return section[1] if section else []
