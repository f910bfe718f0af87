"""The scalars of a run as JSON lines and TensorBoard events. The first host writes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorboardX

from pe_jax.files import Json, write_text
from pe_jax.training.pytrees import HostBatch, Scalars
from pe_jax.training.sharding import host


def read_metrics(workdir: Path) -> list[Json]:
    """The lines of a run's `metrics.jsonl`: the step, and scalars by name.

    Raises:
      ValueError: for a line that is damaged; the message names it.
    """
    path = workdir / "metrics.jsonl"
    # After the last line break there may be half a line.
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
            found[-1]["step"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Line {number} of {path} is damaged: {line[:40]!r}. Remove it to do without its "
                "numbers."
            ) from error
    return found


class MetricsWriter:
    """Writes scalars to `metrics.jsonl` (one object a line: step, scalars) and TensorBoard events.

    Every line replaces the whole file, which object stores support too: a reader never sees half a
    line. A run that resumes at `step` drops the lines of later steps: it will write them again.
    """

    def __init__(self, workdir: Path, step: int):
        self._path = workdir / "metrics.jsonl"
        old = read_metrics(workdir) if self._path.exists() else []
        self._lines = [json.dumps(line) for line in old if line["step"] <= step]
        write_text(self._path, self._text())
        self._events = None
        if host()[0] == 0:
            folder = str(workdir / "tensorboard")
            purge = step + 1 if step else None
            self._events = tensorboardX.SummaryWriter(folder, purge_step=purge)

    def write(self, step: int, scalars: Scalars) -> None:
        self._lines.append(json.dumps({"step": step, **scalars}))
        write_text(self._path, self._text())
        if self._events is not None:
            for name, value in scalars.items():
                self._events.add_scalar(name, value, step)

    def keep_batch(self, step: int, batch: HostBatch) -> Path:
        """Writes this host's rows of a step's batch; returns the path."""
        path = self._path.with_name("failed") / f"step_{step}_host_{host()[0]}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.savez(file, **batch)  # type: ignore[arg-type]
        return path

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def _text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines)
