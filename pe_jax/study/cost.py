"""What the cells of a study cost: model FLOPs, and the hours that these take here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from pe_jax.console.markdown import table
from pe_jax.data.tokenizer import load_tokenizer
from pe_jax.models import BertConfig, train_flops
from pe_jax.models.flops import forward_flops
from pe_jax.study.plan import MEASURES, PRETRAINING, Cell
from pe_jax.study.state import is_done, seconds, to_make
from pe_jax.tasks import pretraining
from pe_jax.tasks.model_config import model_config
from pe_jax.tasks.start import open_start
from pe_jax.training import sharding

# Rows to score, those held out of training included, and mean tokens of a row in its bucket: with
# BERT's vocabulary, at the lengths of configs/study.py.
_ROWS: dict[str, tuple[int, int]] = {
    "squad": (1_200, 190),
    "cola": (1_471, 18),
    "rte": (402, 80),
    "mrpc": (591, 69),
    "sst2": (4_240, 23),
}
_TIMED_STEPS = 3


def flops(cell: Cell, pretrained: Cell, model: BertConfig) -> float:
    """Model FLOPs of a cell, roughly: the forward passes of its scores count too.

    Args:
      pretrained: the cell of `model`, which it is or starts from.
    """
    stages = pretraining.stage_configs(pretrained.config)
    if cell.kind == MEASURES:
        last, own = stages[-1], pretrained.config
        scored = cell.config.score_examples * sum(s.steps for s in stages) // own.checkpoint_every
        return forward_flops(model, scored, last.length, last.max_predictions)
    if cell.kind == PRETRAINING:
        return sum(
            stage.steps * train_flops(model, stage.batch_size, stage.length, stage.max_predictions)
            for stage in stages
        )
    own, (rows, tokens) = cell.config, _ROWS[cell.kind]
    times = 1 if not own.eval_every else -(-own.steps // own.eval_every)
    seeds = len(own.seeds)
    scored = seeds * rows * (times + len(cell.lengths))
    return own.steps * train_flops(model, seeds * own.data.batch_size, tokens, 0) + forward_flops(
        model, scored, tokens, 0
    )


def _models(plan: Sequence[Cell]) -> dict[Path, BertConfig]:
    """The models of a plan, by the folders of their pretraining. Those of an arm differ in their
    encodings alone, so a published model is read once."""
    of_arm: dict[str, ConfigDict] = {}
    models = {}
    for cell in plan:
        if cell.kind == PRETRAINING:
            if cell.arm not in of_arm:
                of_arm[cell.arm] = pretraining.resolve(cell.config)
            config = of_arm[cell.arm].copy_and_resolve_references()
            config.model.position = cell.position
            models[cell.folder] = model_config(config, vocab_size=_vocab_size(config))
    return models


def _vocab_size(config: ConfigDict) -> int:
    if config.init:
        return load_tokenizer(open_start(config.init).tokenizer()).get_vocab_size()
    return config.data.vocab_size


class Costs(NamedTuple):
    """Of a plan, on this machine.

    Attributes:
      plan: all cells.
      flops: of each, by its folder.
      rate: FLOPs a second of a training step, on all cores.
      jobs: cells made side by side.
    """

    plan: list[Cell]
    flops: dict[Path, float]
    rate: float
    jobs: int

    def hours(self, some: Iterable[Cell]) -> float:
        """To make `some` of the plan: at the speed of those of their arm and kind that are done,
        else at `rate`."""
        return sum(self.flops[cell.folder] / self._speed(cell) for cell in some) / 3600

    def _speed(self, cell: Cell) -> float:
        """FLOPs a second, of all jobs together."""
        alike = [
            one
            for one in self.plan
            if (one.arm, one.kind) == (cell.arm, cell.kind) and is_done(one) and seconds(one)
        ]
        if not alike:
            return self.rate
        return self.jobs * sum(self.flops[one.folder] for one in alike) / sum(map(seconds, alike))


def costs(plan: list[Cell], jobs: int) -> Costs:
    """The costs of a plan; times a training step of its first model."""
    by_folder = {cell.folder: cell for cell in plan}
    models = _models(plan)
    own = {}
    for cell in plan:
        start = cell.needs or cell.folder
        own[cell.folder] = flops(cell, by_folder[start], models[start])
    first = next(cell for cell in plan if cell.kind == PRETRAINING)
    return Costs(plan, own, _rate(first.config, models[first.folder]), jobs)


def _rate(config: ConfigDict, model: BertConfig) -> float:
    """FLOPs a second of a step of the first stage, on tokens that are all the same."""
    stage = pretraining.stage_configs(config)[0]
    program = pretraining.make_program(config, sharding.data_mesh(), model, 1)
    state = program.init()
    batch = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), pretraining.batch_shapes(stage))
    batch = jax.device_put(batch, sharding.by_rows(program.mesh))
    step = program.train_step(stage)
    state, _ = jax.block_until_ready(step(state, batch))
    begin = time.perf_counter()
    for _ in range(_TIMED_STEPS):
        state, _ = step(state, batch)
    jax.block_until_ready(state)
    one = train_flops(model, stage.batch_size, stage.length, stage.max_predictions)
    return _TIMED_STEPS * one / (time.perf_counter() - begin)


def cost_table(costs: Costs) -> str:
    """What is to be made, and how long that takes: a row for each arm and kind."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in costs.plan:
        groups.setdefault((cell.arm, cell.kind), []).append(cell)
    left = to_make(costs.plan)  # Of the whole plan: a model may be made again for other kinds.
    rows = []
    for (arm, kind), some in groups.items():
        own = [cell for cell in left if (cell.arm, cell.kind) == (arm, kind)]
        tera = sum(costs.flops[one.folder] for one in some) / 1e12
        rows.append([arm.replace("_", " "), kind, f"{len(some):,}", f"{sum(map(is_done, some)):,}",
                     f"{len(own):,}", f"{tera:,.0f}", f"{costs.hours(own):.2f}"])  # fmt: skip
    done = sum(map(is_done, costs.plan))
    rows.append(["all", "", f"{len(costs.plan):,}", f"{done:,}", f"{len(left):,}", "",
                 f"{costs.hours(left):.2f}"])  # fmt: skip
    header = ["arm", "", "cells", "done", "to make", "TFLOPs", "hours to go"]
    return "\n".join(table(header, rows))
