"""Figures 1 to 7 of a study: each model's are drawn by itself, in a folder beside the page.

They need weights, which do not last as long as the study: the figures of a model stay as they are
once its weights are gone, and so do its numbers, from which figure 1 is drawn for all models.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from pe_jax.console.markdown import table
from pe_jax.console.terminal import say
from pe_jax.files import Json, file_name, read_json
from pe_jax.reports.property_report import from_run, measure_properties, scores
from pe_jax.study import heat_map
from pe_jax.study.evidence import Evidence
from pe_jax.study.plan import MEASURES, PRETRAINING, Cell, beside
from pe_jax.study.state import has_weights, is_done

_PARTS = "vectors,words,frequencies,evolution,scores,heads"
_REPORT = "report.md"


class _Figure(NamedTuple):
    """A figure: how its files begin, what it shows, and how many at most are side by side."""

    file: str
    title: str
    columns: int


_OF_THE_ARM = (
    _Figure(heat_map.FILE, "Heat map: violations against scores", 2),
    _Figure(scores.FIGURE, "Figure 1: scores at full length", 1),
)
_OF_A_MODEL = (
    _Figure("figure2_vectors", "Figure 2: dot products of position vectors, P·Pᵀ", 3),
    _Figure("figure3_words", "Figure 3: attention logits among identical words", 3),
    _Figure("figure4_waves", "Figure 4: cosines of frequencies, and their sum", 2),
    _Figure("figure5_evolution", "Figure 5: P·Pᵀ while training", 1),
    _Figure("figure6_psi", "Figure 6: ψ of the frequencies", 3),
    _Figure("figure7_heads", "Figure 7: positions through W_Q and W_K, by head", 1),
)


def draw(
    own: Sequence[Cell], evidence: Evidence, measures: ConfigDict, out: Path
) -> dict[str, Path]:
    """The heat map of an arm, the figures of the models whose weights are there, and figure 1 of
    all that were ever drawn.

    Args:
      own: the arm's cells; evidence: of them.
      measures: of `configs/properties.py`.

    Returns:
      the models that have figures, and the folder in `out` of each.
    """
    heat_map.draw(own[0].arm, evidence, out)
    models = [cell for cell in own if cell.kind == PRETRAINING and not cell.seed and is_done(cell)]
    measures = measures.copy_and_resolve_references()
    measures.parts = _PARTS
    for model in models:
        scored = beside(model, MEASURES) / scores.SCORED
        if has_weights(model.folder) and scored.is_dir():
            _draw(model, measures, scored, out / file_name(model.model))
    folders = {model.model: out / file_name(model.model) for model in models}
    drawn = {model: at for model, at in folders.items() if (at / _REPORT).is_file()}
    numbers: Json = {}
    for at in drawn.values():
        numbers |= read_json(at / "scores.json", f"Remove {at}, and write the page again.")
    if numbers:
        scores.draw(numbers, out / f"{scores.FIGURE}.png")
    return drawn


def _draw(model: Cell, measures: ConfigDict, scored: Path, at: Path) -> None:
    say(f"Drawing {model.name}")
    shutil.copytree(scored, at / scores.SCORED, dirs_exist_ok=True)  # It takes minutes to make.
    measure_properties([from_run(model.folder)], measures, at, where_possible=True)
    shutil.rmtree(at / scores.SCORED)


def gallery(out: Path, drawn: Mapping[str, Path]) -> Iterator[str]:
    """Lines for a page that is beside the arm's folder `out`: its figures, and those of each model,
    all models' together."""
    for figures, folders in ((_OF_THE_ARM, {out.name: out}), (_OF_A_MODEL, drawn)):
        for figure in figures:
            links = [
                f"![{figure.title}, {name}]({path.relative_to(out.parent)})"
                for name, at in folders.items()
                for path in sorted(at.glob(f"{figure.file}*.png"))
            ]
            if links:
                yield from [f"### {figure.title}", "", *_in_rows(links, figure.columns), ""]


def _in_rows(links: Sequence[str], most: int) -> list[str]:
    columns = min(most, len(links))
    padded = [*links, *[""] * (-len(links) % columns)]
    return table([""] * columns, [padded[n : n + columns] for n in range(0, len(padded), columns)])
