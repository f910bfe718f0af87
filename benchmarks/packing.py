"""Real tokens a second of training on packed documents, and on padded sentence pairs.

    python benchmarks/packing.py --source=wikitext-2/train.txt [--positions=learned_absolute,rope]

Both train the same model in one process, on the same number of rows of the same length: a round is
one step of each, in turn. Attention of one layer, with its gradients, is timed as well, on packed
rows and on as many rows of one document. Prints medians over the rounds, and ratios with minimum
and maximum, and writes them to --out as JSON. On a CPU seconds are processor time, which other
programs on the machine change little.
Tokens are real if they are not padding; their fraction is a mean over many batches.
"""

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
from _layer import gradients_of_layer
from absl import app, flags

from pe_jax.common.schema import changed
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.tasks import pretraining, text_training
from pe_jax.trainer.training import sharding

_SOURCE = flags.DEFINE_string("source", "pydoc", "As config.data.source.")
_POSITIONS = flags.DEFINE_list(
    "positions", "learned_absolute,rope,learned_relative", "Encodings."
)
_LENGTHS = flags.DEFINE_list("lengths", "128,512", "Tokens of a row.")
_SIZE = flags.DEFINE_string("size", "mini", "As config.model.size.")
_TOKENS = flags.DEFINE_integer("tokens", 4096, "Of a batch, padding included.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of each.")
_BATCHES = flags.DEFINE_integer("batches", 64, "Batches whose real tokens are counted.")
_OUT = flags.DEFINE_string("out", None, "JSON file of the results.")


def filled_blocks(documents: np.ndarray, size: int = 128) -> float:
    """Return the fraction of blocks of so many queries and keys that hold a pair of one document.

    Args:
      documents: `[B, L]` their numbers, 0 at padding.
    """
    rows, length = documents.shape
    same = (documents[:, :, None] == documents[:, None]) & (documents[:, None] > 0)
    blocks = same.reshape(rows, length // size, size, length // size, size)
    return float(blocks.any((2, 4)).mean())


class Side:
    """Training on one kind of rows.

    Attributes:
      real: the fraction of tokens that are not padding.
      filled: of packed rows, see `filled_blocks`.
      documents: of the batches of packed rows.
      seconds: of the steps so far.
    """

    def __init__(self, config: PretrainingConfig):
        experiment = pretraining.build(text_training.resolve(config))
        stream = iter(experiment.stages[0].batches(0))
        batches = [next(stream) for _ in range(_BATCHES.value)]
        padding = experiment.data.text.vocabulary.pad
        self.real = float(np.mean([batch["tokens"] != padding for batch in batches]))
        self.documents = [
            batch["document_ids"] for batch in batches if "document_ids" in batch
        ]
        filled = [filled_blocks(x) for x in self.documents]
        self.filled = float(np.mean(filled)) if filled else None
        program = experiment.program
        self._batch = sharding.to_global(batches[0], program.batch_sharding)
        self._step, self._state = experiment.stages[0].train_step, program.init()
        self.seconds: list[float] = []

    def step(self) -> None:
        begin = clock()
        self._state, metrics = self._step(self._state, self._batch)
        jax.block_until_ready((self._state, metrics))
        self.seconds.append(clock() - begin)


def clock() -> float:
    return (
        time.process_time() if jax.default_backend() == "cpu" else time.perf_counter()
    )


def attention_ratios(position: str, batches: list[np.ndarray]) -> list[float]:
    """Return the time of attention over that in rows of one document, a number for each batch."""
    rows, length = batches[0].shape
    one = jnp.ones((rows, length), jnp.int32)
    shape = rows, length, 4, 64
    compiled, arguments = gradients_of_layer(
        position, "auto", shape, "float32", document_ids=one
    )

    def seconds(documents: jax.Array) -> float:
        begin = clock()
        jax.block_until_ready(compiled(*arguments[:-1], documents))
        return clock() - begin

    seconds(one)
    return [seconds(jnp.asarray(documents)) / seconds(one) for documents in batches]


def compare(position: str, length: int) -> dict:
    """Return medians of both kinds of rows."""
    masked = round(0.15 * (length - 2))
    base = changed(
        PretrainingConfig(),
        {
            "model.size": _SIZE.value,
            "model.position": position,
            "model.max_length": max(512, length),
            "data.source": _SOURCE.value,
            "data.vocab_size": 8192,
            "stage1.length": length,
            "stage1.batch_size": _TOKENS.value // length,
            "stage1.max_predictions": masked,
            "stage1.steps": 1,
        },
    )
    sides = {
        name: Side(changed(base, {"data.packed": name == "packed"}))
        for name in ("packed", "padded")
    }
    for number in range(_ROUNDS.value + 1):
        for side in sides.values():
            side.step()
            if not number:
                side.seconds.clear()  # Compiled.
    row: dict = {
        "position": position,
        "length": length,
        "filled": sides["packed"].filled,
    }
    for name, side in sides.items():
        row[f"{name}_real"] = side.real
        row[f"{name}_seconds"] = statistics.median(side.seconds)
        row[f"{name}_tokens_per_second"] = (
            side.real * _TOKENS.value / row[f"{name}_seconds"]
        )
    real = row["packed_real"] / row["padded_real"]
    seconds = zip(sides["padded"].seconds, sides["packed"].seconds, strict=True)
    ratios = [real * of_padded / of_packed for of_padded, of_packed in seconds]
    row["ratio"] = [statistics.median(ratios), min(ratios), max(ratios)]
    ratios = attention_ratios(position, sides["packed"].documents[: _ROUNDS.value])
    row["attention_ratio"] = [statistics.median(ratios), min(ratios), max(ratios)]
    return row


def main(_) -> None:
    results = []
    for length in map(int, _LENGTHS.value):
        for position in _POSITIONS.value:
            results.append(row := compare(position, length))
            for name in ("packed", "padded"):
                speed, real = row[f"{name}_tokens_per_second"], row[f"{name}_real"]
                print(f"  {name}: {speed:,.0f} ({real:.1%} real)", flush=True)
            for name, title in (("ratio", "ratio"), ("attention_ratio", "attention")):
                middle, low, high = row[name]
                print(f"  {title} {middle:.2f} ({low:.2f} to {high:.2f})", flush=True)
            if _OUT.value:
                Path(_OUT.value).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
