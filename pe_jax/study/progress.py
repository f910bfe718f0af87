"""How far a study is: a table of its models and what is done with each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from pe_jax.console.markdown import table
from pe_jax.console.terminal import counted
from pe_jax.study.plan import Cell
from pe_jax.study.state import is_done

DONE, RUNNING, FAILED, OPEN = "done", "now", "failed", "·"


def progress_table(
    plan: Sequence[Cell],
    running: Collection[Path] = (),
    failed: Collection[Path] = (),
) -> str:
    """A table for each arm: a row for each model, a column for each kind of cell."""

    def mark(cell: Cell | None) -> str:
        if cell is None:
            return ""
        if cell.folder in running:
            return RUNNING
        if cell.folder in failed:
            return FAILED
        return DONE if is_done(cell) else OPEN

    tables = []
    for arm in dict.fromkeys(cell.arm for cell in plan):
        own = {(cell.model, cell.kind): cell for cell in plan if cell.arm == arm}
        kinds = list(dict.fromkeys(kind for _, kind in own))
        rows = [
            [model, *(mark(own.get((model, kind))) for kind in kinds)]
            for model in dict.fromkeys(model for model, _ in own)
        ]
        tables.append("\n".join(table([arm.replace("_", " "), *kinds], rows)))
    return "\n\n".join(tables)


def open_cells(plan: Sequence[Cell]) -> str:
    """What is not done, in words: the kinds of each arm, and of how many models."""
    models = Counter((cell.arm, cell.kind) for cell in plan if not is_done(cell))
    arms: dict[str, list[str]] = {}
    for (arm, kind), count in models.items():
        arms.setdefault(arm.replace("_", " "), []).append(f"{kind} of {counted(count, 'model')}")
    return "; ".join(f"{arm}, {', '.join(kinds)}" for arm, kinds in arms.items())
