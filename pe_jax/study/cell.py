"""One cell of a study: what its process reads, makes and writes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ml_collections import ConfigDict

from pe_jax import cpu
from pe_jax.files import read_json, write_text
from pe_jax.study.code import code_digest
from pe_jax.study.plan import MEASURES, PRETRAINING, Cell

DONE = "done.json"
_CELL = "cell.json"


def describe(cell: Cell, cores: tuple[int, ...]) -> None:
    """Writes what the process reads."""
    described = {
        "kind": cell.kind,
        "config": json.loads(cell.config.to_json_best_effort()),
        "needs": str(cell.needs or ""),
        "lengths": cell.lengths,
        "settings": cell.settings,
        "cores": cores,
    }
    write_text(cell.folder / _CELL, json.dumps(described, indent=2) + "\n")


def _pretrain(config: ConfigDict, folder: Path, needs: Path, lengths: list[int]) -> None:
    from pe_jax.tasks import pretraining

    del needs, lengths
    pretraining.run(config, folder)


def _measure(config: ConfigDict, folder: Path, needs: Path, lengths: list[int]) -> None:
    from pe_jax.reports.property_report import from_run, measure_properties
    from pe_jax.study.evidence import MEASURED, measured

    del lengths
    measure_properties([from_run(needs)], config, folder, where_possible=True)
    write_text(folder / MEASURED, json.dumps(measured(folder, needs), indent=1) + "\n")


def _finetune(config: ConfigDict, folder: Path, needs: Path, lengths: list[int]) -> None:
    from pe_jax.reports.finetuning_report import report_finetuning
    from pe_jax.reports.rescoring import rescore
    from pe_jax.tasks import finetuning

    del needs
    report_finetuning(finetuning.run(config, folder), folder)
    if lengths:
        rescore(folder, folder / "lengths", tuple(lengths))


_KINDS: dict[str, Callable[[ConfigDict, Path, Path, list[int]], None]] = {
    PRETRAINING: _pretrain,
    MEASURES: _measure,
}


def make(folder: Path) -> None:
    """Makes the cell that is described in `folder`, or goes on with it; it is done then."""
    cell = read_json(folder / _CELL, "The study's command writes it again.")
    if cell["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cell["cores"])  # Before JAX counts them.

    from pe_jax.console.compile_cache import cache_compiled_programs

    cache_compiled_programs()
    kind = _KINDS.get(cell["kind"], _finetune)
    kind(ConfigDict(cell["config"]), folder, Path(cell["needs"]), cell["lengths"])

    import jax

    write_text(
        folder / DONE,
        json.dumps({
            "settings": cell["settings"],
            "code": code_digest(),
            "jax": jax.__version__,
            "device": _device(),
            "cores": cpu.cores(),
        }) + "\n",
    )  # fmt: skip
    if kind is _finetune:  # Several gigabytes in all, and nothing else reads them.
        shutil.rmtree(folder / "checkpoints")


def _device() -> str:
    """The kind of accelerator; of a CPU, whose kind is no more than that, the model."""
    import jax

    kind = str(jax.devices()[0].device_kind)
    return (cpu.model() or kind) if jax.default_backend() == "cpu" else kind
