"""Kills a run at random moments until it is done, and compares it with one that nobody killed.

    python benchmarks/kills.py --kills=20 --out=kills.json

The run is that of the embedded text, short, on the CPU, and saves often: a kill finds it training,
evaluating or saving. Prints where each kill found it; writes JSON.
"""

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from absl import app, flags, logging

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from pe_jax.training.checkpointing import newest_params, saved_steps  # noqa: E402

_KILLS = flags.DEFINE_integer("kills", 20, "How often.")
_STEPS = flags.DEFINE_integer("steps", 400, "Of the run.")
_EVERY = flags.DEFINE_integer("checkpoint_every", 5, "Steps.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")
_OUT = flags.DEFINE_string("out", None, "A JSON file for the numbers.")


def start(folder: Path) -> subprocess.Popen:
    sizes = {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 128}
    changes = {"stage1.steps": _STEPS.value, "stage1.batch_size": 8, "stage1.length": 64}
    changes |= {f"model.{name}": size for name, size in sizes.items()}
    changes |= {"stage1.max_predictions": 10, "checkpoint_every": _EVERY.value, "log_every": 10}
    changes |= {"eval_every": 50, "eval_examples": 64, "data.vocab_size": 1_000}
    arguments = [f"--config.{name}={value}" for name, value in changes.items()]
    command = [sys.executable, "train.py", "--config=configs/quickstart.py", *arguments]
    return subprocess.Popen(
        [*command, f"--workdir={folder}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_after(run: subprocess.Popen, folder: Path, seconds: float) -> dict | None:
    """Kills the run so long after its first step; None if it was done before."""
    assert run.stderr is not None
    said = ""
    for line in run.stderr:
        said += line
        if line.startswith("step"):
            break
    time.sleep(seconds)
    run.kill()
    said += run.communicate()[1]
    if run.returncode == 0:
        return None
    if run.returncode > 0:
        raise RuntimeError(f"The run ended by itself:\n{said}")
    began = re.search(r"Resuming from step ([\d,]+)", said)
    half = [path.name for path in (folder / "checkpoints").glob("*tmp*")]
    return {
        "went_on_from": int(began[1].replace(",", "")) if began else 0,
        "newest_whole": max(saved_steps(folder), default=0),
        "saving": bool(half),
    }


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    rng = random.Random(_SEED.value)
    with tempfile.TemporaryDirectory() as temporary:
        straight, killed = Path(temporary) / "straight", Path(temporary) / "killed"
        began = time.perf_counter()
        output = start(straight).communicate()[1]
        seconds = time.perf_counter() - began
        kills: list[dict] = []
        while len(kills) < _KILLS.value:
            found = kill_after(start(killed), killed, rng.uniform(0, 2))
            if found is None:
                break
            kills.append(found)
            print(json.dumps(found), flush=True)
        end = start(killed)
        output += end.communicate()[1]
        if end.returncode:
            raise RuntimeError(output)
        (step, params), (other_step, others) = newest_params(straight), newest_params(killed)
        leaves = zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True)
        result = {
            "steps": [step, other_step],
            "kills": len(kills),
            "while_saving": sum(kill["saving"] for kill in kills),
            "identical": all(np.array_equal(a, b) for a, b in leaves),
            "straight_seconds": seconds,
            "each": kills,
        }
    print(
        f"{result['kills']} kills, {result['while_saving']} of them while saving; final parameters "
        f"after {other_step} steps {'identical' if result['identical'] else 'DIFFERENT'}"
    )
    if _OUT.value:
        Path(_OUT.value).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
