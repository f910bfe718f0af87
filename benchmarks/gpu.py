"""Measure on one GPU what this project has only estimated for it.

Command:  python benchmarks/gpu.py --out=gpu.json
Hardware: one GPU of 40 GB or more. With --size=tiny --lengths=64 any device, to try the script.
Time:     meant for ten minutes on an H100; not measured, no GPU was available.

1. attention: forward and backward of one layer of BERT-base, every form that the encoding has, by
   length. The fastest one should be what `auto` takes (`pe_jax.attention.forms`).
2. step: pretraining of BERT-base at length 512 in bfloat16: tokens a second, MFU, and the time
   against the learned absolute table's.
3. seeds: five seeds of classification in one program, against five times one seed.

Each part prints a table and adds it to --out as it ends. All ratios are of medians in one process.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np
from _layer import gradients_of_layer
from _step import make_batch, make_step
from absl import app, flags
from jax.stages import Wrapped

from pe_jax.attention.forms import FORMS
from pe_jax.configs.finetuning import FinetuningConfig
from pe_jax.console.markdown import table
from pe_jax.models import preset, train_flops
from pe_jax.models.flops import PEAKS
from pe_jax.tasks.finetuning.classification import classification_task
from pe_jax.tasks.seeds import SeedsProgram, seed_mesh
from pe_jax.training.optimizer import make_optimizer
from pe_jax.training.pytrees import Batch
from pe_jax.training.step import TrainState

_SIZE = flags.DEFINE_string("size", "base", "Size of BERT.")
_LENGTHS = flags.DEFINE_list("lengths", ["128", "512", "1024", "2048"], "Of attention's inputs.")
_ENCODINGS = flags.DEFINE_list(
    "encodings",
    [
        "learned_absolute",
        "learned_relative",
        "learnable_sinusoidal_relative",
        "t5",
        "alibi",
        "rope",
    ],
    "The first is what the others' times are compared with.",
)
_TOKENS = flags.DEFINE_integer("tokens", 32_768, "Of a batch.")
_PARTS = flags.DEFINE_list("parts", ["attention", "step", "seeds"], "What to measure.")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Of each.")
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")
_VOCABULARY = 30_522
_SEEDS = 5


def median_ms(call: Callable[[], object]) -> float:
    """Return the milliseconds of a call that compiles at its first."""
    jax.block_until_ready(call())
    times = []
    for _ in range(_ROUNDS.value):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def step_ms(step: Wrapped, state: TrainState, batch: Batch) -> float:
    """Return the milliseconds of a training step, which donates its state."""

    def advance() -> object:
        nonlocal state
        state, metrics = step(state, batch)
        return metrics

    return median_ms(advance)


def attention_times() -> list[dict]:
    """Time every form of attention that a GPU has, by encoding and length, in milliseconds."""
    bert = preset(_SIZE.value, vocab_size=_VOCABULARY)
    rows = []
    for length in map(int, _LENGTHS.value):
        shape = max(1, _TOKENS.value // length), length, bert.num_heads, bert.head_size
        for name in _ENCODINGS.value:
            times = {}
            for form in ("auto", *gpu_forms()):
                try:
                    times[form] = median_ms(gradients_of_layer(name, form, shape, "bfloat16"))
                except ValueError:  # The encoding has no such form.
                    times[form] = None
            timed = {form: time for form, time in times.items() if time and form != "auto"}
            fastest = min(timed, key=timed.__getitem__)
            rows.append({"length": length, "encoding": name, **times, "fastest": fastest})
    return rows


def gpu_forms() -> list[str]:
    return [name for name, form in FORMS.items() if not form.kernel]


def step_times() -> list[dict]:
    """Time the pretraining step at the longest length of BERT."""
    length = min(512, max(map(int, _LENGTHS.value)))
    rows = max(1, _TOKENS.value // length)
    batch = make_batch(rows, length, _VOCABULARY)
    peak = PEAKS.get(jax.devices()[0].device_kind)
    records: list[dict] = []
    for name in _ENCODINGS.value:
        model = {"size": _SIZE.value, "max_length": 512, "position": name, "dtype": "bfloat16"}
        program, step, state, arrays = make_step(batch, model | {"vocab_size": _VOCABULARY})
        milliseconds = step_ms(step, state, arrays)
        flops = train_flops(program.model, rows, length, arrays["masked_tokens"].shape[1])
        record = {"encoding": name, "ms": milliseconds, "tokens/s": 1e3 * rows * length}
        record["tokens/s"] /= milliseconds
        record["MFU"] = flops / (milliseconds / 1e3) / peak if peak else None
        records.append(record)
        record["to the first"] = milliseconds / records[0]["ms"]
    return records


def seed_times() -> list[dict]:
    """Time a fine-tuning step of five seeds in one program, and of one seed."""
    length, rows = min(128, max(map(int, _LENGTHS.value))), 32
    rng = np.random.default_rng(0)
    batch = {
        "tokens": rng.integers(1000, _VOCABULARY, (rows, length)).astype(np.int32),
        "segments": np.zeros((rows, length), np.int32),
        "valid": np.ones((rows, length), bool),
        "label": rng.integers(0, 2, rows).astype(np.int32),
    }
    records = []
    for seeds in (1, _SEEDS):
        bert = preset(_SIZE.value, vocab_size=_VOCABULARY, dtype="bfloat16")
        config = FinetuningConfig()
        schedule, optimizer = make_optimizer(config.optimizer, 10**6, bert)
        mesh = seed_mesh(seeds, jax.devices()[:1])
        program = SeedsProgram(
            config,
            bert,
            classification_task(bert, 2),
            optimizer,
            schedule,
            mesh,
            tuple(range(seeds)),
        )
        of_seeds = {name: np.stack([x] * seeds) for name, x in batch.items()}
        arrays = jax.device_put(of_seeds, program.batch_sharding)
        milliseconds = step_ms(program.train_step(), program.init(), arrays)
        records.append({"seeds": seeds, "ms": milliseconds})
        records[-1]["to as many runs"] = records[-1]["ms"] / (seeds * records[0]["ms"])
    return records


PARTS = {"attention": attention_times, "step": step_times, "seeds": seed_times}


def text(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main(_: list[str]) -> None:
    device = jax.devices()[0]
    results: dict[str, object] = {"device": device.device_kind, "jax": jax.__version__}
    print(f"{device.device_kind}, jax {jax.__version__}")
    for name in _PARTS.value:
        begin = time.monotonic()
        rows = PARTS[name]()
        results[name] = rows
        print(f"\n{name}, {time.monotonic() - begin:.0f} s\n")
        print("\n".join(table([*rows[0]], [[text(x) for x in row.values()] for row in rows])))
        if _OUT.value:
            Path(_OUT.value).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
