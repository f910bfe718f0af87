"""A run's metrics: added up over steps, and written to `metrics.jsonl` and for TensorBoard."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pe_jax.common.files import (
    Json,
    flush_to_disk,
    is_remote,
    parse_json,
    write_text,
    writing,
)
from pe_jax.trainer.training.pytrees import Batch, HostBatch, Metrics, Scalars

HELD_OUT = "held_out/"  # Begins the names of scores on held-out data in a run's log.

_SYNC_EVERY = 10.0  # Seconds, between writes of metrics to the disk or an object store.

# Peak rates of accelerators, for the model FLOPs utilization.
# Dense bfloat16 FLOP/s by JAX's `device_kind`: Google's Cloud TPU pages, NVIDIA's data sheets.
PEAKS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU7x": 2307e12 / 2,  # A chip is two devices.
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
}

# By the name of a metric, its sum and count over several steps: `[2]`, or `[2, S]` of S seeds.
Totals = dict[str, np.ndarray]


def add(totals: Totals, metrics: Metrics) -> list[str]:
    """Add sums and counts to `totals`; return descriptions of values that are not finite."""
    wrong = []
    for name, pair in jax.device_get(metrics).items():
        pair = np.asarray(pair, np.float64)
        totals[name] = totals.get(name, 0) + pair
        if not np.isfinite(pair).all():
            sums = pair[0]  # Of all seeds, if there are several.
            first = np.argmin(np.isfinite(sums))
            wrong.append(f"{name} {sums.flat[first]}")
    return wrong


def means(totals: Totals) -> Scalars:
    """Return sums divided by counts, once; means over seeds, if any."""
    return {
        name: float(np.mean(sums / np.maximum(counts, 1)))
        for name, (sums, counts) in totals.items()
    }


class Meter:
    """The steps since the last line of the log: their metrics, their size, and their time.

    Args:
      flops: see `Stage`.
      peak: FLOP/s of all devices, 0 where not known.
      totals: of the metrics of steps before, as JSON has them.
    """

    def __init__(self, flops: Callable[[int, int], float], peak: float, totals: Json):
        self.totals: Totals = {name: np.array(pair) for name, pair in totals.items()}
        self._flops_of_step, self._peak = flops, peak
        self._rows = self._tokens = 0
        self._flops = self._waited = 0.0
        self._start = time.perf_counter()

    def count(self, batch: Batch, waited: float) -> None:
        """Count a step on a global batch, tokens `[..., L]`, fetched in `waited` seconds."""
        tokens, length = batch["tokens"].size, batch["tokens"].shape[-1]
        rows = tokens // length
        self._rows += rows
        self._tokens += tokens
        if self._peak:
            self._flops += self._flops_of_step(rows, length)
        self._waited += waited

    def scalars(self, learning_rate: float) -> Scalars:
        """Return means of the metrics, of all seeds and `name/i` of each, and rates."""
        seconds = time.perf_counter() - self._start
        scalars = means(self.totals)
        for name, pair in self.totals.items():
            if pair.ndim < 2:
                continue
            for seed, (total, count) in enumerate(pair.T):
                scalars[f"{name}/{seed}"] = float(total / max(count, 1))
        scalars["learning_rate"] = learning_rate
        scalars["examples_per_second"] = self._rows / seconds
        scalars["tokens_per_second"] = self._tokens / seconds
        scalars["data_wait"] = self._waited / seconds
        if self._peak:
            scalars["mfu"] = self._flops / seconds / self._peak
        return scalars


def read_metrics(workdir: Path) -> list[Json]:
    """Read the lines of `metrics.jsonl`: step, and scalars by name.

    Raises:
      ValueError: for a damaged line.
    """
    path = workdir / "metrics.jsonl"
    # After the last line break there may be half a line.
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
    metrics = []
    for number, line in enumerate(lines, 1):
        try:
            metrics.append(parse_json(line))
            metrics[-1]["step"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Line {number} of {path} is damaged: {line[:40]!r}. Delete the line to go on "
                "without its numbers."
            ) from error
    return metrics


def read_evaluations(workdir: Path, step: int | None = None) -> dict[int, Scalars]:
    """Read the held-out scores in a run's log by step, up to `step` if given."""
    if not (workdir / "metrics.jsonl").exists():
        return {}
    evaluations = {}
    for line in read_metrics(workdir):
        if step is not None and line["step"] > step:
            continue
        scores = {
            name.removeprefix(HELD_OUT): value
            for name, value in line.items()
            if name.startswith(HELD_OUT)
        }
        if scores:
            evaluations[line["step"]] = scores
    return evaluations


class MetricsWriter:
    """Writes scalars to `metrics.jsonl` (one object a line: step, scalars) and TensorBoard events,
    and to Weights & Biases if the environment names a project for it (`WANDB_PROJECT`).

    A line is appended in the same time whatever the file's size, and outlives the process. Only
    `sync` waits for the disk, before each checkpoint and at most every ten seconds. Object stores
    cannot append: there `sync` replaces the whole file. A run that resumes at `step` drops the
    lines of later steps: it will write them again.

    No thread writes, whose errors nobody would see: each method raises an OSError that names the
    file, such as that of a full disk.
    """

    def __init__(self, workdir: Path, step: int):
        self._path = workdir / "metrics.jsonl"
        old = read_metrics(workdir) if self._path.exists() else []
        kept_lines = [line for line in old if 0 < step >= line["step"]]
        self._lines = [f"{json.dumps(line)}\n" for line in kept_lines]
        write_text(self._path, "".join(self._lines))
        self._synced = time.monotonic()
        self._events = None
        self._wandb = None
        if jax.process_index() == 0:
            self._events = _Events(workdir / "tensorboard", step)
            if os.environ.get("WANDB_PROJECT"):
                self._wandb = _wandb_run(workdir)

    def write(self, step: int, scalars: Scalars, prefix: str = "") -> None:
        """Write scalars of a step, under names that begin with `prefix`."""
        scalars = {f"{prefix}{name}": value for name, value in scalars.items()}
        line = json.dumps({"step": step, **scalars}) + "\n"
        if is_remote(self._path):
            self._lines.append(line)
        elif jax.process_index() == 0:
            with writing(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        if self._events:
            self._events.write(step, scalars)
        if self._wandb:
            self._wandb.log(scalars, step=step)
        if time.monotonic() - self._synced > _SYNC_EVERY:
            self.sync()

    def sync(self) -> None:
        """Wait until all lines are stored for good, so that a power cut does not lose them."""
        self._synced = time.monotonic()
        if is_remote(self._path):
            write_text(self._path, "".join(self._lines))
        elif jax.process_index() == 0:
            # Removed: then there is nothing to store.
            with contextlib.suppress(FileNotFoundError):
                flush_to_disk(self._path)
        if self._events:
            self._events.flush()

    def keep_batch(self, step: int, batch: HostBatch) -> Path:
        """Write this host's rows of a step's batch; return the path."""
        name = f"step_{step}_host_{jax.process_index()}.npz"
        path = self._path.with_name("failed") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path), path.open("wb") as file:
            np.savez(file, **batch)  # type: ignore[arg-type]
        return path

    def close(self) -> None:
        try:
            self.sync()
        finally:
            if self._events:
                self._events.close()
            if self._wandb:
                self._wandb.finish()


def _wandb_run(workdir: Path) -> Any:
    """Start or go on with the run of this folder at Weights & Biases."""
    try:
        import wandb
    except ImportError as error:
        raise ValueError(
            "WANDB_PROJECT is set, but wandb is not installed. Install it with pip install wandb, "
            "or unset WANDB_PROJECT."
        ) from error
    identity = hashlib.sha256(str(workdir.absolute()).encode()).hexdigest()[:16]
    config = parse_json((workdir / "config.json").read_text(encoding="utf-8"))
    return wandb.init(id=identity, name=workdir.name, resume="allow", config=config)


class _Events:
    """Scalars as events in a file of their own, in the folder of those of all starts of a run.
    TensorBoard hides what earlier starts have of steps after `step`, from which the run resumes."""

    def __init__(self, folder: Path, step: int):
        import tensorboardX  # Only here, so that what reads runs starts at once.
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._event = Event
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        with writing(self._path):
            if not is_remote(folder):
                folder.mkdir(parents=True, exist_ok=True)
            self._file = tensorboardX.RecordWriter(str(self._path))
        self._add(file_version="brain.Event:2")
        if step:
            self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, step: int, scalars: Scalars) -> None:
        values = [
            {"tag": name, "simple_value": value} for name, value in scalars.items()
        ]
        self._add(step=step, summary={"value": values})

    def _add(self, **fields: Any) -> None:
        event = self._event(wall_time=time.time(), **fields)
        with writing(self._path):
            self._file.write(event.SerializeToString())

    def flush(self) -> None:
        with writing(self._path):
            self._file.flush()

    def close(self) -> None:
        # What could not be written was raised before.
        with contextlib.suppress(OSError):
            self._file.close()
