"""How fast is the training step? BERT pretraining against PyTorch's on a CPU, in one run.

    python benchmarks/pytorch_step.py [--torch_python=PATH] [--sizes=mini,small]
        [--shapes=16x128,4x512] [--sides=ours,hf,...] [--huge_pages] [--out=FILE.json]

The whole step on every side: forward and backward of both pretraining heads, dropout 0.1 of hidden
states and attention weights, AdamW; the same batch, the same number of threads. Gradients are not
clipped (ours takes their norm all the same, for its metrics). The sides:

- ours, ours_relative: the step that train.py runs, in huge pages as there, with learned_absolute
  and learned_relative (a term for keys and one for values); ..._bfloat16 computes in bfloat16;
- hf: Hugging Face's BertForPreTraining as shipped, which asks for scaled_dot_product_attention and
  computes the masked-LM loss over all positions; hf_relative_key: the same with its relative
  positions, a term for keys only;
- tuned: PyTorch by hand, the masked-LM head at the masked positions only, one matmul for query, key
  and value, 8 random bits for an entry of dropout; ..._bfloat16 under autocast; ..._compiled by
  torch.compile too, which needs a C++ compiler.

Every side lives in a process of its own and works only while it is its turn: a step that is not
timed, then --steps timed ones, then the next side; --rounds times. Prints medians, and the time of
every side over that of each of ours in the same round: median, least and greatest of the rounds.

PyTorch may live in another Python than this project: --torch_python names it. Run it on an idle
machine: beside other work the rounds differ wildly, and threads that wait for each other at every
operation, as PyTorch's do, lose most.
"""

import contextlib
import dataclasses
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np
from _step import make_batch
from absl import app, flags

from pe_jax.common import cpu
from pe_jax.common.markdown import raw_table
from pe_jax.models import BertConfig, preset
from pe_jax.trainer.console.huge_pages import tunables
from pe_jax.trainer.console.terminal import log

OURS, TORCH = "_jax_worker.py", "_torch_worker.py"


@dataclasses.dataclass(frozen=True)
class Side:
    """One way to take the step: the script of its worker, and what that script is told."""

    worker: str
    options: dict[str, Any]


def _ours(position: str, dtype: str) -> Side:
    return Side(OURS, {"position": position, "dtype": dtype})


def _shipped(position: str) -> Side:
    return Side(TORCH, {"model": "shipped", "position": position, "dtype": "float32"})


def _tuned(dtype: str, compiled: bool = False) -> Side:
    return Side(TORCH, {"model": "tuned", "dtype": dtype, "compile": compiled})


SIDES = {
    "ours": _ours("learned_absolute", "float32"),
    "ours_bfloat16": _ours("learned_absolute", "bfloat16"),
    "ours_relative": _ours("learned_relative", "float32"),
    "ours_relative_bfloat16": _ours("learned_relative", "bfloat16"),
    "hf": _shipped("absolute"),
    "hf_relative_key": _shipped("relative_key"),
    "tuned": _tuned("float32"),
    "tuned_bfloat16": _tuned("bfloat16"),
    "tuned_bfloat16_compiled": _tuned("bfloat16", compiled=True),
}
_SIZES = flags.DEFINE_list(
    "sizes", ["mini", "small"], "Model sizes, see pe_jax.models.preset."
)
_SHAPES = flags.DEFINE_list("shapes", ["16x128", "4x512"], "Rows x length of a batch.")
_SIDES = flags.DEFINE_list("sides", list(SIDES), "Which sides take part.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Turns of each side.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 5, "Timed steps of a turn.", lower_bound=1)
_THREADS = flags.DEFINE_integer(
    "threads", 2, "Cores that every side has.", lower_bound=1
)
_TORCH_PYTHON = flags.DEFINE_string(
    "torch_python", sys.executable, "With torch, transformers."
)
_HUGE_PAGES = flags.DEFINE_bool("huge_pages", False, "For PyTorch too; ours has them.")
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")


class Worker:
    """A side in a process of its own; idle but for the time of a call."""

    def __init__(self, name: str, job: dict[str, Any]):
        side = SIDES[name]
        self.name = name
        python = {OURS: sys.executable, TORCH: _TORCH_PYTHON.value}[side.worker]
        script = Path(__file__).with_name(side.worker)
        self._process = subprocess.Popen(
            [python, str(script), json.dumps(job | side.options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(huge_pages=side.worker == OURS or _HUGE_PAGES.value),
        )
        self.about = self._answer()

    def turn(self, steps: int) -> dict[str, float]:
        """Takes that many steps; seconds a step, and the loss of the last."""
        assert self._process.stdin
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"The worker of {self.name} ended with {self._process.wait()}; what it said is "
                "above. --sides can leave it out."
            )
        return json.loads(line)

    def close(self) -> None:
        """Lets the process end, and waits for it."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def environment(huge_pages: bool) -> dict[str, str]:
    """Of a worker; `huge_pages` as train.py asks for them."""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "TRANSFORMERS_VERBOSITY": "error"}
    env.pop("XLA_FLAGS", None)  # One device.
    if huge_pages:
        env["GLIBC_TUNABLES"] = tunables(env.get("GLIBC_TUNABLES", ""))
    return env


def make_job(size: str, config: BertConfig, batch: Path) -> dict[str, Any]:
    """What all sides are told, in our terms and in those of Hugging Face."""
    return {
        "batch": str(batch),
        "threads": _THREADS.value,
        "learning_rate": 1e-4,
        "weight_decay": 0.01,
        "size": size,
        "max_length": config.max_length,
        "sizes": {
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "intermediate_size": config.intermediate_size,
            "max_position_embeddings": config.max_length,
            "type_vocab_size": config.num_token_types,
        },
        "dropout": {
            "hidden_dropout_prob": config.dropout_rate,
            "attention_probs_dropout_prob": config.attention_dropout_rate,
        },
    }


def measure(size: str, rows: int, length: int, names: list[str]) -> dict[str, Any]:
    """All sides on one batch of one model: what they say of themselves, seconds, ratios."""
    what, config = f"{size}, {rows}x{length}", preset(size, max_length=length)
    chance = math.log(config.vocab_size) + math.log(2)
    log(f"{what}: at the start all losses should be near ln V + ln 2 = {chance:.3f}")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "batch.npz"
        arrays: dict[str, Any] = make_batch(rows, length, config.vocab_size)
        np.savez(path, **arrays)
        workers = []
        for name in names:
            workers.append(Worker(name, make_job(size, config, path)))
            stack.callback(workers[-1].close)
            about = workers[-1].about
            log(
                f"{what}, {name}: {about['parameters']:,} parameters, loss of the first step "
                f"{about['first_loss']:.3f}, {about['seconds_to_first_step']:.0f} s to get there"
            )
        check_parameters(
            {worker.name: worker.about["parameters"] for worker in workers}
        )
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(_ROUNDS.value):
            for worker in workers:
                turns[worker.name].append(worker.turn(_STEPS.value))
            log(f"{what}: round {number + 1} of {_ROUNDS.value}")
    seconds = {name: [turn["seconds"] for turn in turns[name]] for name in names}
    sides = {
        worker.name: worker.about
        | {
            "last_loss": turns[worker.name][-1]["last_loss"],
            "seconds": seconds[worker.name],
            "median_seconds": statistics.median(seconds[worker.name]),
        }
        for worker in workers
    }
    bases = [name for name in names if SIDES[name].worker == OURS] or names[:1]
    return {
        "size": size,
        "rows": rows,
        "length": length,
        "sides": sides,
        "time_over": {
            base: {name: over(seconds[name], seconds[base]) for name in names}
            for base in bases
        },
    }


def over(times: list[float], base: list[float]) -> dict[str, float]:
    """The ratio of each round: median, least, greatest."""
    ratios = [t / b for t, b in zip(times, base, strict=True)]
    return {
        "median": statistics.median(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
    }


def check_parameters(counts: dict[str, int]) -> None:
    """Raises RuntimeError if sides with absolute positions differ in their number of parameters.

    Those with relative positions do: ours has one table of [2·64 + 1, d] instead of the [L, D] of
    absolute positions, while hf_relative_key has one of [2·L - 1, d] in each layer and keeps
    [L, D], though nothing reads it.
    """
    absolute = {name: count for name, count in counts.items() if "relative" not in name}
    if len(set(absolute.values())) > 1:
        raise RuntimeError(
            f"Not one model: these should have as many parameters: {absolute}."
        )


def show(result: dict[str, Any]) -> None:
    """The table of one model and batch."""
    tokens = result["rows"] * result["length"]
    print(
        f"\n{result['size']}, batches of {result['rows']} rows of {result['length']}:\n"
    )
    rows = []
    for name, side in result["sides"].items():
        ratios = [base[name] for base in result["time_over"].values()]
        rows.append(
            [
                name,
                f"{1e3 * side['median_seconds']:,.1f}",
                f"{tokens / side['median_seconds']:,.0f}",
                f"{side['first_loss']:.2f}",
                f"{side['last_loss']:.2f}",
                *(
                    f"{r['median']:.2f} ({r['least']:.2f}-{r['greatest']:.2f})"
                    for r in ratios
                ),
            ]
        )
    bases = [f"time / {base}" for base in result["time_over"]]
    header = ["side", "ms/step", "tokens/s", "first loss", "last loss", *bases]
    print("\n".join(raw_table(header, rows)), flush=True)


def machine() -> dict[str, Any]:
    """The CPU, those of its instructions that matter here, and what it is used for."""
    wanted, known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16"), cpu.instructions()
    return {
        "cpu": cpu.model() or platform.machine(),
        "instructions": [flag for flag in wanted if flag in known],
        "cores": len(os.sched_getaffinity(0)),
        "threads": _THREADS.value,
        "huge_pages": _HUGE_PAGES.value,
        "load_before": os.getloadavg()[0],
    }


def check_torch() -> None:
    """Raises ValueError if the Python of PyTorch cannot be run, or lacks a package."""
    python = _TORCH_PYTHON.value
    others = "name another Python with --torch_python, or choose --sides without hf and tuned."
    try:
        found = subprocess.run(
            [python, "-P", "-c", "import torch, transformers"], capture_output=True
        )
    except OSError as error:
        raise ValueError(
            f"--torch_python={python} does not run ({error}): {others}"
        ) from error
    if found.returncode:
        reason = found.stderr.decode().strip().splitlines()[-1]
        raise ValueError(
            f"PyTorch's sides need the packages torch and transformers, and {python} says "
            f"{reason!r}: {python} -m pip install torch 'transformers<5', {others}"
        )


def parse_shape(shape: str) -> tuple[int, int]:
    """Rows and length."""
    try:
        rows, length = (int(n) for n in shape.split("x"))
    except ValueError:
        raise ValueError(
            f"--shapes are ROWSxLENGTH such as 16x128, got {shape!r}."
        ) from None
    return rows, length


def main(_) -> None:
    names = _SIDES.value
    unknown = [name for name in names if name not in SIDES]
    if unknown or not names:
        raise ValueError(
            f"--sides are some of {', '.join(SIDES)}; got {', '.join(unknown)!r}."
        )
    shapes = [parse_shape(shape) for shape in _SHAPES.value]
    jax.config.update("jax_platforms", "cpu")  # This process computes nothing.
    for size in _SIZES.value:
        preset(size)  # Names are checked before anything is timed.
    if any(SIDES[name].worker == TORCH for name in names):
        check_torch()
    about_machine = machine()
    if about_machine["cores"] < _THREADS.value:
        raise ValueError(
            f"--threads={_THREADS.value}, but only {about_machine['cores']} cores."
        )
    if about_machine["load_before"] > 0.5:
        log(
            f"The machine is not idle (load {about_machine['load_before']:.1f}): times will vary."
        )
    # Workers inherit it. XLA has as many threads as it has cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: _THREADS.value])
    results = []
    for size in _SIZES.value:
        for rows, length in shapes:
            results.append(measure(size, rows, length, names))
            show(results[-1])
            if _OUT.value:
                document = {
                    "machine": about_machine,
                    "steps": _STEPS.value,
                    "results": results,
                }
                Path(_OUT.value).write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
