"""Kills runs at random moments until they are done, and compares them with one that nobody killed.

    python benchmarks/kills.py --kills=100 --out=kills.jsonl

Six kinds of runs, short, on the CPU: pretraining under fsdp and pmap, fine-tuning, pretraining on
two hosts, one that mostly tokenizes its text, and length generalisation. A kill, `kill -9` or
SIGTERM, comes at any moment from the first import to the report, on two hosts to either. The same
command then goes on; once done, the state (weights, optimizer, generators, metrics), the tokenized
text or the scores have to be those of the unbroken run, bit for bit, and the next run begins. Every
kill is a line of --out, and a second start goes on from there. Prints a table.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags, logging

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

_KILLS = flags.DEFINE_integer("kills", 100, "How often, all kinds together.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")
_OUT = flags.DEFINE_string("out", None, "JSON lines, to go on from.", required=True)

_HANGS = 600  # Seconds, in which each of these runs ends.
_TRIES_AGAIN = 75
_OF_ONE_RUN = 7  # Kills; then it is left to end.
_HOW = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM}


class Kind(NamedTuple):
    """A kind of run.

    Attributes:
      settings: keys of the config, and their values, from a folder for what they need.
      config: its file.
      hosts, devices: processes, and devices of each.
      command: the script and its flag for the folder of results, then other flags.
      result: what of a run's folder, or of the folder of its cache, has to be the same.
    """

    settings: Callable[[Path], dict[str, object]]
    config: str = "configs/quickstart.py"
    hosts: int = 1
    devices: int = 2
    command: tuple[str, ...] = ("train.py", "--workdir")
    result: str = "run/checkpoints"


_SIZE = {
    "model.num_layers": 2, "model.hidden_size": 64, "model.num_heads": 2,
    "model.intermediate_size": 128, "model.dropout_rate": 0.1,
}  # fmt: skip
_PRETRAINING: dict[str, object] = {
    **_SIZE, "stage1.steps": 60, "stage1.batch_size": 8, "stage1.length": 64,
    "stage1.max_predictions": 10, "checkpoint_every": 5, "log_every": 10, "eval_every": 30,
    "eval_examples": 16, "data.vocab_size": 1_000,
}  # fmt: skip

_LENGTHS: dict[str, object] = {
    "tasks": "copy,even_pairs", "steps": 400, "length": 5, "test_lengths": "(5, 10)",
    "test_examples": 64, "test_batch_size": 32, "batch_size": 16, "seeds": "(0, 1)",
    "model.num_layers": 2, "model.hidden_size": 32, "model.num_heads": 2,
}  # fmt: skip


def _finetuning(folder: Path) -> dict[str, object]:
    """Questions on random words, and a run to start from."""
    words = "the a of and to in sea whale ship captain stood upon deck looked over water".split()
    for name, count in (("train", 200), ("dev", 40)):
        rng = random.Random(name)
        paragraphs = []
        for number in range(count):
            context, at = rng.sample(words, 12), rng.randrange(12)
            answer = {
                "text": context[at],
                "answer_start": len(" ".join([*context[:at], ""])),
            }
            one = {
                "id": f"{number}",
                "question": f"where {context[at]}",
                "answers": [answer],
            }
            paragraphs.append({"context": " ".join(context), "qas": [one]})
        data = {"data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"{name}.json").write_text(json.dumps(data))
    short = Kind(lambda _: {**_PRETRAINING, "stage1.steps": 4, "eval_every": 0})
    (start,) = started(short, folder, folder / "start")
    ended([start])
    return {
        "init": folder / "start" / "run", "seeds": "(0, 1)", "steps": 50, "eval_every": 25,
        "checkpoint_every": 5, "log_every": 10, "data.train": folder / "train.json",
        "data.validation": folder / "dev.json", "data.length": 32, "data.buckets": "(24,)",
        "data.stride": 8, "data.max_query": 8, "data.batch_size": 8, "data.eval_batch_size": 8,
    }  # fmt: skip


def _preparation(folder: Path) -> dict[str, object]:
    """Text that takes seconds to tokenize, and one step."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlu"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(20_000)]
    with open(folder / "text.txt", "w") as file:
        for _ in range(1_000):
            lines = (
                " ".join(rng.choice(words, 12)).capitalize() + "." for _ in range(20)
            )
            file.write("\n".join(lines) + "\n\n")
    return {**_PRETRAINING, "stage1.steps": 1, "data.source": folder / "text.txt"}


KINDS = {
    "pretraining, fsdp": Kind(lambda _: {**_PRETRAINING, "parallel": "fsdp"}),
    "pretraining, pmap": Kind(lambda _: {**_PRETRAINING, "parallel": "pmap"}),
    "fine-tuning": Kind(_finetuning, config="configs/squad.py", devices=1),
    "two hosts": Kind(lambda _: _PRETRAINING, hosts=2, devices=1),
    "preparation": Kind(_preparation, devices=1, result="text"),
    "length generalisation": Kind(
        lambda _: _LENGTHS,
        config="research/length_generalisation/config.py",
        devices=1,
        command=(
            "research/length_generalisation/run.py",
            "--workdir",
            "--encodings=rope",
        ),
        result="run/cells",
    ),
}


_KINDS = flags.DEFINE_multi_enum(
    "kind", [*KINDS], [*KINDS], "One of them; may be repeated."
)


class Process(NamedTuple):
    """A process of a run, and the file that it prints to."""

    process: subprocess.Popen[bytes]
    printed: Path


def started(
    kind: Kind, data: Path, folder: Path, settings: object = None
) -> list[Process]:
    """The processes of a run in `folder/run`, started or resumed."""
    folder.mkdir(exist_ok=True)
    values = kind.settings(data) if settings is None else settings
    assert isinstance(values, dict)
    if kind.config == "configs/quickstart.py":
        values = values | {"data.cache_dir": folder / "text"}
    script, out, *others = kind.command
    command = [sys.executable, script, f"--config={kind.config}", *others]
    command += [f"--config.{key}={value}" for key, value in values.items()]
    command += [f"{out}={folder / 'run'}"]
    if kind.hosts > 1:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        command += [
            f"--coordinator={address}",
            f"--hosts={kind.hosts}",
            "--lost_after=10",
        ]
    env = {
        key: value
        for key, value in os.environ.items()
        if key != "JAX_COMPILATION_CACHE_DIR"
    }
    env |= {
        "JAX_PLATFORMS": "cpu",
        "PE_JAX_CACHE": str(data / "cache"),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={kind.devices}",
    }
    processes = []
    for host in range(kind.hosts):
        printed = folder / f"printed_{host}"
        own = [f"--host={host}"] if kind.hosts > 1 else []
        with open(printed, "wb") as file:
            run = subprocess.Popen(
                [*command, *own], cwd=ROOT, env=env, stdout=file, stderr=file
            )
        processes.append(Process(run, printed))
    return processes


def ended(processes: list[Process]) -> list[int]:
    """Exit statuses.

    Raises:
      RuntimeError: if one does not end.
    """
    try:
        return [one.process.wait(_HANGS) for one in processes]
    except subprocess.TimeoutExpired:
        for one in processes:
            one.process.kill()
        raise RuntimeError(f"Hangs:\n{printed(processes)}") from None


def printed(processes: list[Process]) -> str:
    return "\n".join(one.printed.read_text(errors="replace") for one in processes)


def kill(
    processes: list[Process], folder: Path, how: str, which: int, seconds: float
) -> dict:
    """Kills one of the processes after so many seconds; what it did, and how all have ended.

    Raises:
      RuntimeError: if they end in another way than documented.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until and processes[which].process.poll() is None:
        time.sleep(0.01)
    said = printed(processes)
    began = "compiled in" in said
    saving = any((folder / "run").rglob("checkpoints/*tmp*"))
    processes[which].process.send_signal(_HOW[how])
    statuses = ended(processes)
    # Before Python has begun, the signal has its usual effect.
    usual = (
        {-signal.SIGKILL}
        if how == "kill -9"
        else {_TRIES_AGAIN}
        if said
        else {-signal.SIGTERM}
    )
    # SIGTERM stops all hosts, once they are connected.
    together = how == "kill -9" or not began or len({*statuses}) == 1
    if statuses[which] not in {0, _TRIES_AGAIN, *usual} or not together:
        raise RuntimeError(
            f"{how} at {seconds:.2f} s gave {statuses}:\n{printed(processes)}"
        )
    return {
        "how": how,
        "seconds": round(seconds, 3),
        "statuses": statuses,
        "was": "saving" if saving else "training" if began else "starting",
    }


def leaves(folder: Path) -> dict[str, object]:
    """The content of the newest checkpoint, or of all files, by name."""
    if folder.name == "cells":
        cells = {
            str(path.relative_to(folder)): json.loads(path.read_text())
            for path in folder.rglob("*.json")
        }
        return {name: cell | {"seconds": 0} for name, cell in cells.items()}
    if folder.name != "checkpoints":
        files = (path for path in folder.rglob("*") if path.is_file())
        return {
            str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)
        }
    import jax
    from orbax.checkpoint import v1 as ocp

    newest = max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    path = folder / str(newest)
    like = ocp.checkpointables_metadata(path).metadata["state"]
    like = jax.tree.map(
        lambda x: np.empty(x.shape, x.dtype), like
    )  # Wherever its devices were.
    tree = ocp.load_checkpointables(path, {"state": like})["state"]
    found = {
        jax.tree_util.keystr(k): v for k, v in jax.tree_util.tree_leaves_with_path(tree)
    }
    facts = json.loads((path / "facts" / "data.json").read_text())
    return {"step": newest, "totals": facts["totals"], **found}


def identical(one: Path, other: Path) -> bool:
    left, right = leaves(one), leaves(other)
    return left.keys() == right.keys() and all(
        np.array_equal(np.asarray(left[name]), np.asarray(right[name])) for name in left
    )


def rounds(name: str, kills: int, rng: random.Random) -> Iterator[dict]:
    """A line for each of so many kills, and one for each run that was killed and is done."""
    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary)
        settings = kind.settings(data)
        for straight in (data / "first", data / "straight"):  # The first one compiles.
            begin = time.monotonic()
            processes = started(kind, data, straight, settings)
            if any(ended(processes)):
                raise RuntimeError(printed(processes))
            seconds = time.monotonic() - begin
        for number in itertools.count():
            killed, statuses = data / f"killed_{number}", [1]
            here = 0
            while any(statuses):
                processes = started(kind, data, killed, settings)
                if here == min(_OF_ONE_RUN, kills):
                    statuses = ended(processes)
                    if any(statuses):
                        raise RuntimeError(printed(processes))
                    break
                moment, which = rng.uniform(0, seconds), rng.randrange(kind.hosts)
                found = kill(processes, killed, rng.choice([*_HOW]), which, moment)
                statuses = found["statuses"]
                if any(statuses):
                    here += 1
                    yield {"kind": name, **found}
            kills -= here
            if here:
                same = identical(data / "straight" / kind.result, killed / kind.result)
                yield {"kind": name, "run_of_kills": here, "identical": same}
            if not kills:
                return


def table(lines: list[dict]) -> str:
    """A row for each kind."""
    rows = [
        "| kind of run | kills | `kill -9` | SIGTERM | starting | training | saving | runs | "
        "identical |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in [*KINDS, "all"]:
        own = [line for line in lines if name in (line["kind"], "all")]
        kills = [line for line in own if "how" in line]
        runs = [line["identical"] for line in own if "identical" in line]
        found = [*(line["how"] for line in kills), *(line["was"] for line in kills)]
        columns = (
            found.count(what) for what in (*_HOW, "starting", "training", "saving")
        )
        numbers = [len(kills), *columns, len(runs), sum(runs)]
        rows.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    return "\n".join(rows)


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    path = Path(_OUT.value)
    lines = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )
    names = _KINDS.value
    for name in names:
        before = sum(line["kind"] == name and "how" in line for line in lines)
        left = _KILLS.value // len(names) - before
        if left <= 0:
            continue
        for line in rounds(name, left, random.Random(f"{_SEED.value} {name} {before}")):
            lines.append(line)
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    print(table(lines))


if __name__ == "__main__":
    app.run(main)
