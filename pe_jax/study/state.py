"""Which cells of a study are done, by what is in their folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pe_jax.files import read_json
from pe_jax.study.cell import DONE
from pe_jax.study.plan import PRETRAINING, Cell

_TIMES = "times.jsonl"


def is_done(cell: Cell) -> bool:
    return (cell.folder / DONE).is_file()


def check(plan: Sequence[Cell]) -> None:
    """Makes sure that what is done was made with the settings that the plan has now.

    Raises:
      ValueError: naming the cells that were not.
    """
    way_out = "Remove its folder, and start the study again."
    other = [
        cell
        for cell in plan
        if is_done(cell) and read_json(cell.folder / DONE, way_out).get("settings") != cell.settings
    ]
    if other:
        names = ", ".join(cell.name for cell in other[:3])
        more = f" and {len(other) - 3} more" if len(other) > 3 else ""
        raise ValueError(
            f"{names}{more}: made with other settings than these. Give those that the study was "
            "begun with (its config.json has them), or remove the folders of these cells to make "
            "them again, or take another --workdir."
        )


def seconds(cell: Cell) -> float:
    """What a cell's processes took, all starts together; 0 before the first has ended."""
    path = cell.folder / _TIMES
    return sum(map(json.loads, path.read_text().splitlines())) if path.is_file() else 0.0


def add_seconds(cell: Cell, more: float) -> None:
    with (cell.folder / _TIMES).open("a", encoding="utf-8") as file:
        file.write(f"{more:.1f}\n")


def to_make(plan: Sequence[Cell]) -> list[Cell]:
    """What is not done; and models whose weights are gone, where others that start from them are
    not done: so the small files of a study are enough to go on with it elsewhere."""
    missing = [cell for cell in plan if not is_done(cell)]
    needed = {cell.needs for cell in missing}
    return [
        cell
        for cell in plan
        if not is_done(cell) or (cell.folder in needed and not has_weights(cell.folder))
    ]


def has_weights(folder: Path) -> bool:
    """Whether a model is there to start from."""
    return any((folder / "checkpoints").glob("*"))


def is_ready(cell: Cell) -> bool:
    """Whether what it needs is there."""
    return cell.needs is None or ((cell.needs / DONE).is_file() and has_weights(cell.needs))


def restarted(cell: Cell) -> None:
    """A model that is made again is not done until then."""
    if cell.kind == PRETRAINING:
        (cell.folder / DONE).unlink(missing_ok=True)
