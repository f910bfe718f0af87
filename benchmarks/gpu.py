"""Measure implementations of attention, the pretraining step, seeds and accuracy on one GPU.

Command:  python benchmarks/gpu.py --out=gpu.json
Hardware: one GPU of 80 GB and 16 CPU cores. With --size=tiny --lengths=64 --tokens=256 any device,
          to try the script.
Time:     two minutes on an H200 with XLA_FLAGS=--xla_gpu_enable_triton_gemm=false. Without the
          flag, steps were not compiled within 100 seconds.

1. attention: forward and backward of one layer of BERT-base in bfloat16, every implementation
   that the encoding has, by length. The last columns name the fastest one and what `auto` takes.
2. step: pretraining of BERT-base at length 512 in bfloat16: tokens a second, MFU, and the time
   against the first row's. `cudnn` has no dropout of the attention weights.
3. seeds: five seeds of classification in one program, against five times one seed.
4. numerics: outputs and gradients of what `auto` takes, in float32, and of `cudnn` in bfloat16,
   against `naive` in float32 on the CPU: the largest relative error of an array.

All programs are compiled in threads first, for --compile_seconds at most. Then each is timed.
Compilations that take longer go on, and can distort the times. A program that fails is listed with
its error. Each part prints a table and adds it to --out as it ends. All ratios are of medians in
one process.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
from _layer import layer_gradients
from _step import make_batch, make_step
from absl import app, flags
from jax.typing import ArrayLike

from pe_jax import encodings
from pe_jax.attention import attention, implementations
from pe_jax.common.markdown import raw_table
from pe_jax.models import preset
from pe_jax.models.flops import train_flops
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.tasks.glue import classification_task
from pe_jax.trainer.tasks.seeds import SeedsProgram, seed_mesh
from pe_jax.trainer.training.metrics import PEAKS
from pe_jax.trainer.training.optimizer import make_optimizer
from pe_jax.trainer.training.pytrees import Batch
from pe_jax.trainer.training.step import TrainState

_SIZE = flags.DEFINE_string("size", "base", "Size of BERT.")
_LENGTHS = flags.DEFINE_list(
    "lengths", ["128", "512", "2048"], "Of attention's inputs."
)
_ENCODINGS = flags.DEFINE_list(
    "encodings",
    [
        "learned_absolute",
        "learned_relative",
        "learnable_sinusoidal_relative",
        "t5",
        "rope",
    ],
    "Of the part attention.",
)
_TOKENS = flags.DEFINE_integer("tokens", 32_768, "Of a batch.")
_PARTS = flags.DEFINE_list(
    "parts",
    ["attention", "step", "seeds", "numerics"],
    "What to measure, in this order.",
)
_ROUNDS = flags.DEFINE_integer("rounds", 10, "Of each.")
_SCAN_LAYERS = flags.DEFINE_bool(
    "scan_layers", True, "One program for all layers of a step: compiles faster."
)
_COMPILE_SECONDS = flags.DEFINE_float(
    "compile_seconds", 100, "What takes longer is left out."
)
_THREADS = flags.DEFINE_integer("threads", 16, "That compile.")
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")
_VOCABULARY = 30_522
_SEEDS = 5
_LONGEST_NAIVE = 512

# Encoding, implementation of attention and dropout of the attention weights of a pretraining step.
_STEPS = (
    ("learned_absolute", "auto", 0.1),
    ("learned_relative", "auto", 0.1),
    ("rope", "auto", 0.1),
    ("t5", "auto", 0.1),
    ("learned_absolute", "auto", 0.0),
    ("learned_absolute", "cudnn", 0.0),
    ("rope", "cudnn", 0.0),
    ("t5", "cudnn", 0.0),
)
_NUMERICS = (
    "none",
    "learned_relative",
    "learnable_sinusoidal_relative",
    "t5",
    "alibi",
    "rope",
    "fire",
    "deberta",
    "tupe",
    "cope+causal",
    "fox",
    "rope+causal",
)
_NUMERICS_SHAPE = 2, 256, 4, 64

Call = Callable[[], Any]  # A compiled program with its arguments.
# The result of `measure(program)`; None if the program was not compiled or failed.
Run = Callable[[Hashable, Callable[[Any], Any]], Any]


class Part(NamedTuple):
    """A part of the benchmark.

    Attributes:
      programs: functions by key that compile a program and return it with its arguments.
      rows: `run -> rows` of the table.
    """

    programs: dict[Hashable, Callable[[], Any]]
    rows: Callable[[Run], list[dict]]


def median_ms(call: Call) -> float:
    """Return the milliseconds of a call."""
    jax.block_until_ready(call())
    times = []
    for _ in range(_ROUNDS.value):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def compiled_step(step: Any, state: TrainState, batch: Batch) -> Call:
    """Return a compiled training step, which donates its state and goes on from the new one."""
    compiled = step.lower(state, batch).compile()

    def advance() -> object:
        nonlocal state
        state, metrics = compiled(state, batch)
        return metrics

    return advance


def random_params(encoding: encodings.PositionEncoding) -> encodings.Params:
    """Parameters of `init`, moved a little, on the CPU, where that compiles fastest."""
    rng = np.random.default_rng(0)
    with jax.default_device(jax.devices("cpu")[0]):
        params = encoding.init(jax.random.key(0))
    return jax.tree.map(
        lambda x: np.asarray(x + 0.02 * rng.normal(size=x.shape), np.asarray(x).dtype),
        params,
    )


def attention_part() -> Part:
    """Time implementations of attention, by encoding and length, in milliseconds."""
    bert = preset(_SIZE.value, vocab_size=_VOCABULARY)
    heads, size = bert.num_heads, bert.head_size
    lengths = [int(length) for length in _LENGTHS.value]
    inputs = {}  # Queries, keys and values by length, shared by all programs.
    for length in lengths:
        shape = 3, max(1, _TOKENS.value // length), length, heads, size
        inputs[length] = jax.random.normal(jax.random.key(1), shape, "bfloat16")
    named = [name for name in implementations.NAMES if name != "kernel"]

    def compiled(length: int, name: str, implementation: str) -> Call:
        encoding = encodings.from_name(
            name,
            hidden_size=heads * size,
            head_size=size,
            num_heads=heads,
            max_length=length,
        )
        arguments = inputs[length], jax.device_put(random_params(encoding)), None, None
        program = layer_gradients(encoding, implementation).lower(*arguments).compile()
        return lambda: program(*arguments)

    def differs(length: int, name: str, implementation: str) -> bool:
        """False for a program that is the same as that of "table", or takes too much memory."""
        if implementation == "naive":
            return length <= _LONGEST_NAIVE
        return implementation != "fused" or length > implementations.block_size

    every = itertools.product(lengths, _ENCODINGS.value, named)
    keys = [key for key in every if differs(*key)]

    def rows(run: Run) -> list[dict]:
        table = []
        for length in lengths:
            for name in _ENCODINGS.value:
                auto = implementations.choose(length, vectors="relative" in name)
                keyed = {
                    implementation: (length, name, implementation)
                    for implementation in named
                }
                times = {
                    implementation: run(key, median_ms)
                    for implementation, key in keyed.items()
                    if key in keys
                }
                timed = {
                    implementation: time
                    for implementation, time in times.items()
                    if time
                }
                row: dict = {"length": length, "encoding": name}
                row |= {
                    implementation: times.get(implementation)
                    for implementation in named
                }
                row["fastest"] = min(timed, key=timed.__getitem__) if timed else None
                table.append(row | {"auto": auto})
        return table

    return Part({key: functools.partial(compiled, *key) for key in keys}, rows)


def step_part() -> Part:
    """Time the pretraining step at the longest length of BERT."""
    length = min(512, max(map(int, _LENGTHS.value)))
    rows = max(1, _TOKENS.value // length)
    batch = make_batch(rows, length, _VOCABULARY)
    peak = PEAKS.get(jax.devices()[0].device_kind)

    def compiled(
        position: str, implementation: str, dropout: float
    ) -> tuple[Call, float]:
        """The step and its model FLOPs."""
        model = {
            "size": _SIZE.value,
            "max_length": 512,
            "position": position,
            "dtype": "bfloat16",
            "implementation": implementation,
            "attention_dropout_rate": dropout,
            "scan_layers": _SCAN_LAYERS.value,
            "vocab_size": _VOCABULARY,
        }
        program, step, state, arrays = make_step(batch, model)
        flops = train_flops(
            program.model, rows, length, arrays["masked_tokens"].shape[1]
        )
        return compiled_step(step, state, arrays), flops

    def records(run: Run) -> list[dict]:
        table: list[dict] = []
        for key in _STEPS:
            position, implementation, dropout = key
            record: dict = {
                "encoding": position,
                "implementation": implementation,
                "attention dropout": dropout,
            }
            ms, flops = run(key, lambda step: (median_ms(step[0]), step[1])) or (
                None,
                None,
            )
            first = table[0]["ms"] if table else ms
            record["ms"] = ms
            record["tokens/s"] = 1e3 * rows * length / ms if ms else None
            record["MFU"] = flops / (ms / 1e3) / peak if ms and peak else None
            record["to the first"] = ms / first if ms and first else None
            table.append(record)
        return table

    return Part({key: functools.partial(compiled, *key) for key in _STEPS}, records)


def seeds_part() -> Part:
    """Time a fine-tuning step of five seeds in one program, and of one seed."""
    length, rows = min(128, max(map(int, _LENGTHS.value))), 32
    rng = np.random.default_rng(0)
    batch = {
        "tokens": rng.integers(1000, _VOCABULARY, (rows, length)).astype(np.int32),
        "token_type_ids": np.zeros((rows, length), np.int32),
        "mask": np.ones((rows, length), bool),
        "label": rng.integers(0, 2, rows).astype(np.int32),
    }

    def compiled(seeds: int) -> Call:
        options = {"dtype": "bfloat16", "scan_layers": _SCAN_LAYERS.value}
        bert = preset(_SIZE.value, vocab_size=_VOCABULARY, **options)
        config = FinetuningConfig()
        schedule, optimizer = make_optimizer(config.optimizer, 10**6, bert)
        mesh = seed_mesh(seeds, jax.devices()[:1])
        program = SeedsProgram(
            bert,
            classification_task(bert, 2),
            optimizer,
            schedule,
            mesh,
            tuple(range(seeds)),
        )
        of_seeds = {name: np.stack([x] * seeds) for name, x in batch.items()}
        arrays = jax.device_put(of_seeds, program.batch_sharding)
        return compiled_step(program.train_step(), program.init(), arrays)

    def records(run: Run) -> list[dict]:
        one, several = run(1, median_ms), run(_SEEDS, median_ms)
        ratio = several / (_SEEDS * one) if one and several else None
        return [
            {"seeds": 1, "ms": one, "to as many runs": 1.0 if one else None},
            {"seeds": _SEEDS, "ms": several, "to as many runs": ratio},
        ]

    return Part(
        {seeds: functools.partial(compiled, seeds) for seeds in (1, _SEEDS)}, records
    )


def numerics_part() -> Part:
    """Compare outputs and gradients with those of the implementation naive on the CPU."""
    batch, length, heads, size = _NUMERICS_SHAPE
    width = heads * size
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        """Numbers that bfloat16 can represent, in float32."""
        return np.asarray(rng.normal(size=shape).astype(jnp.bfloat16), np.float32)

    hidden = normal(batch, length, width)
    arrays = {name: normal(*_NUMERICS_SHAPE) for name in "qkv"} | {"hidden": hidden}
    maps = [normal(width, heads, size) * np.float32(width**-0.5) for _ in range(2)]
    to = normal(*_NUMERICS_SHAPE)

    def compiled(name: str, implementation: str, dtype: str, platform: str) -> Call:
        encoding = encodings.from_name(
            name, hidden_size=width, head_size=size, num_heads=heads, max_length=length
        )

        def loss(arrays: dict, params: encodings.Params) -> tuple[jax.Array, jax.Array]:
            x = arrays["hidden"]
            queries, keys = (
                functools.partial(_projected, w.astype(x.dtype)) for w in maps
            )
            context = encodings.Context(
                positions_q=None, x_q=x, x_k=x, projections=(queries, keys)
            )
            q, k, v = (arrays[name] for name in "qkv")
            acting = encoding.in_attention
            out = attention(
                q, k, v, acting, params, context, implementation=implementation
            )
            return (out.astype(jnp.float32) * to).sum(), out

        cast = {name: x.astype(dtype) for name, x in arrays.items()}
        device = jax.devices(platform)[0]
        arguments = jax.device_put((cast, random_params(encoding)), device)
        with jax.default_matmul_precision("highest"):
            run = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
            program = run.lower(*arguments).compile()
        return lambda: jax.device_get(program(*arguments))

    here = jax.default_backend()
    # Columns of the table.
    tried = {
        "auto, float32": ("auto", "float32", here),
        "cudnn, bfloat16": ("cudnn", "bfloat16", here),
    }

    def rows(run: Run) -> list[dict]:
        table = []
        for name in _NUMERICS:
            row: dict = {"encoding": name}
            expected = run((name, "naive", "float32", "cpu"), lambda call: call())
            for column, key in tried.items():
                found = run((name, *key), lambda call: call())
                both = expected is not None and found is not None
                worst = largest_error(found, expected) if both else (None, None)
                row |= {column: worst[0], f"array of {key[0]}": worst[1]}
            table.append(row)
        return table

    wanted = [("naive", "float32", "cpu"), *tried.values()]
    keys = [(name, *key) for name in _NUMERICS for key in wanted]
    return Part({key: functools.partial(compiled, *key) for key in keys}, rows)


def _projected(w: ArrayLike, x: ArrayLike) -> jax.Array:
    return jnp.einsum("...D,Dhd->...hd", x, w)


def largest_error(found: Any, expected: Any) -> tuple[float, str]:
    """Return the largest ||a - b|| / ||b|| over arrays a and b, and which array has it."""
    found, expected = jax.tree.map(
        lambda x: np.asarray(x, np.float64), (found, expected)
    )
    # Some gradients are 0 but for rounding: of a bias that all logits share, of unused inputs.
    least = 1e-3 * max(map(np.linalg.norm, jax.tree.leaves(expected)))
    errors = []
    paths = jax.tree_util.tree_leaves_with_path(expected)
    for (path, b), a in zip(paths, jax.tree.leaves(found), strict=True):
        error = np.linalg.norm(a - b) / max(np.linalg.norm(b), least)
        gradients, *rest = path
        name = "output" if gradients.idx else "/".join(str(key.key) for key in rest[1:])
        errors.append((float(error), name))
    return max(errors)


PARTS: dict[str, Callable[[], Part]] = {
    "attention": attention_part,
    "step": step_part,
    "seeds": seeds_part,
    "numerics": numerics_part,
}
# The longest compilations first.
_COMPILATION_ORDER = "step", "seeds", "attention", "numerics"


def text(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def runner(futures: dict[Hashable, Future], errors: dict[str, str]) -> Run:
    """Return a `Run` of compiled programs, each of which it drops, that adds to `errors`."""

    def run(key: Hashable, measure: Callable[[Any], Any]) -> Any:
        try:
            future = futures.pop(key)
            if future.cancelled() or not future.done():
                raise TimeoutError(f"not compiled in {_COMPILE_SECONDS.value:g} s")
            return measure(future.result())
        except (
            Exception
        ) as error:  # Out of memory, or what cuDNN refuses: the others go on.
            first = (str(error).splitlines() or [""])[0]
            # Else the encoding has no such implementation.
            if not first.startswith("implementation="):
                errors[str(key)] = f"{type(error).__name__}: {first[:300]}"
            return None

    return run


def main(_: list[str]) -> None:
    device = jax.devices()[0]
    results: dict[str, Any] = {"device": device.device_kind, "jax": jax.__version__}
    print(f"{device.device_kind}, jax {jax.__version__}", flush=True)
    begin = time.monotonic()
    parts = {name: PARTS[name]() for name in _PARTS.value}
    pool = ThreadPoolExecutor(_THREADS.value)
    futures: dict[str, dict[Hashable, Future]] = {}
    for name in sorted(parts, key=_COMPILATION_ORDER.index):
        futures[name] = {
            key: pool.submit(make) for key, make in parts[name].programs.items()
        }
    wait(
        [f for one in futures.values() for f in one.values()],
        timeout=_COMPILE_SECONDS.value,
    )
    pool.shutdown(wait=False, cancel_futures=True)
    print(f"compilation: {time.monotonic() - begin:.0f} s", flush=True)
    for name, part in parts.items():
        begin = time.monotonic()
        errors: dict[str, str] = {}
        rows = part.rows(runner(futures[name], errors))
        results |= {name: rows, f"errors of {name}": errors}
        print(f"\n{name}, {time.monotonic() - begin:.0f} s\n")
        print(
            "\n".join(
                raw_table([*rows[0]], [[text(x) for x in row.values()] for row in rows])
            )
        )
        for key, error in errors.items():
            print(f"{key}: {error}")
        sys.stdout.flush()
        if _OUT.value:
            Path(_OUT.value).write_text(
                json.dumps(results, indent=1) + "\n", encoding="utf-8"
            )
    os._exit(0)  # Compilations that took too long are still running.


if __name__ == "__main__":
    app.run(main)
