"""The training step that `train.py` runs, on one device, and a batch for it: what is timed here."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import numpy as np

from pe_jax.common.schema import changed
from pe_jax.models import preset
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.tasks.pretraining import make_program
from pe_jax.trainer.tasks.run import Program
from pe_jax.trainer.training import sharding


class Step(NamedTuple):
    """`step(state, batch) -> (state, metrics)`; the state is donated."""

    program: Program
    step: Any
    state: Any
    batch: Any


def make_step(
    arrays: dict[str, np.ndarray], model: dict[str, Any], **optimizer: Any
) -> Step:
    """The step on a batch of such shapes; `model` has a size and keys of BertConfig."""
    values = {f"optimizer.{name}": value for name, value in optimizer.items()}
    config = changed(PretrainingConfig(), values)
    mesh = sharding.data_mesh(jax.devices()[:1])
    sizes = dict(model)
    bert = preset(sizes.pop("size", "base"), **sizes)
    # So many steps that the learning rate stays where it is for the time of a benchmark.
    program = make_program(config, mesh, bert, steps=10**6)
    batch = sharding.to_global(arrays, sharding.by_rows(mesh))
    return Step(program, program.train_step(), program.init(), batch)


def make_batch(rows: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
    """Random tokens as pretraining has them: 15 % to predict, and padding in the last row."""
    rng = np.random.default_rng(0)
    lengths = np.full(rows, length)
    lengths[-1] = 3 * length // 4
    count = math.ceil(0.15 * length)
    at = np.stack([np.sort(rng.permutation(n)[:count]) for n in lengths])
    tokens = rng.integers(1000, vocab_size, (rows, length))
    labels = np.take_along_axis(tokens, at, axis=1)
    np.put_along_axis(tokens, at, 103, axis=1)
    return {
        "tokens": tokens.astype(np.int32),
        "token_type_ids": np.tile(np.arange(length) >= length // 2, (rows, 1)).astype(
            np.int32
        ),
        "mask": np.arange(length) < lengths[:, None],
        "masked_positions": at.astype(np.int32),
        "masked_tokens": labels.astype(np.int32),
        "masked_weights": np.ones((rows, count), np.float32),
        "next_sentence": rng.integers(0, 2, rows).astype(np.int32),
    }
