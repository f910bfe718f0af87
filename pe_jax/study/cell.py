"""One cell of a study, in a process of its own: python -m pe_jax.study.cell FOLDER

`FOLDER/cell.json` says what it is. Signals stop it as they stop `train.py`, and so does the end of
its standard input: the study holds that open, and is gone then, however it ended.
"""

from __future__ import annotations

from pe_jax.console import stopping

if __name__ == "__main__":
    stopping.catch()

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ml_collections import ConfigDict

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


def main(folder: Path) -> None:
    cell = read_json(folder / _CELL, "The study's command writes it again.")
    if cell["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cell["cores"])  # Before JAX counts them.

    from pe_jax.console.compile_cache import cache_compiled_programs

    cache_compiled_programs()
    make = _KINDS.get(cell["kind"], _finetune)
    make(ConfigDict(cell["config"]), folder, Path(cell["needs"]), cell["lengths"])

    import jax

    write_text(
        folder / DONE,
        json.dumps({
            "settings": cell["settings"],
            "code": code_digest(),
            "jax": jax.__version__,
            "device": _device(),
            "cores": len(cell["cores"]) or os.cpu_count(),
        }) + "\n",
    )  # fmt: skip
    if make is _finetune:  # Several gigabytes in all, and nothing else reads them.
        shutil.rmtree(folder / "checkpoints")
    stopping.done()


def _device() -> str:
    """The kind of accelerator; of a CPU, whose kind is no more than that, the model."""
    import jax

    info = Path("/proc/cpuinfo")
    if jax.default_backend() == "cpu" and info.is_file():
        lines = info.read_text(encoding="utf-8").splitlines()
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return str(jax.devices()[0].device_kind)


def _stop_with_the_study() -> None:
    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):  # Without Python's lock, which it needs at its end.
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    _stop_with_the_study()
    main(Path(sys.argv[1]))
