"""Where numbers go while a run lasts: JSON lines and TensorBoard events."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import tensorboardX


class MetricsWriter:
    """Writes scalars to `metrics.jsonl` (one object a line: step, scalars) and TensorBoard events.

    A run that resumes at `step` drops the lines of later steps: it will write them again.
    """

    def __init__(self, workdir: Path, step: int):
        self._path = workdir / "metrics.jsonl"
        kept = [line for line in _complete_lines(self._path) if json.loads(line)["step"] <= step]
        write_text(self._path, "".join(f"{line}\n" for line in kept))
        self._events = tensorboardX.SummaryWriter(
            str(workdir / "tensorboard"), purge_step=step + 1 if step else None
        )

    def write(self, step: int, scalars: dict[str, float]) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **scalars}) + "\n")
        for name, value in scalars.items():
            self._events.add_scalar(name, value, step)

    def close(self) -> None:
        self._events.close()


def write_text(path: Path, text: str) -> None:
    """Replaces a file in one go: a reader, or a run killed here, never leaves half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def _complete_lines(path: Path) -> list[str]:
    """Lines of a file that end in a line break; a killed run may have left half of one."""
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8").split("\n")[:-1]
