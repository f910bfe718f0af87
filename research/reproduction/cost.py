"""Cost of a study: model FLOPs of its runs, and the hours that they take here."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

from pe_jax.common.markdown import raw_table
from pe_jax.models import BertConfig
from pe_jax.models.flops import forward_flops, train_flops
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.configs.pretraining import (
    PretrainingConfig,
    PretrainingStageConfig,
    StageConfig,
)
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.data import PretrainingExamples, load_tokenizer
from pe_jax.trainer.tasks import distillation, pretraining, text_training
from pe_jax.trainer.tasks.pretrained_source import tokenizer_file
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.workdir import ResolvedConfig
from research.reproduction.plan import Run
from research.reproduction.results_file import Entry
from research.reproduction.state import to_execute

# Rows to score, those held out of training included, and mean tokens of a padded row: with
# BERT's vocabulary, at the lengths of config.py.
_ROWS: dict[str, tuple[int, int]] = {
    "squad": (12_006, 256),
    "cola": (1_471, 18),
    "rte": (402, 80),
    "mrpc": (591, 69),
    "sst2": (4_240, 23),
}
_TIMED_STEPS = 3


class Costs(NamedTuple):
    """Costs of a plan on this machine.

    Attributes:
      runs: all runs; done: the entries of those that are done, by name.
      flops: of each run, by its name.
      rates: FLOPs a second of a training step of each arm's model, on all cores.
      jobs: runs executed side by side.
    """

    runs: list[Run]
    done: dict[str, Entry]
    flops: dict[str, float]
    rates: dict[str, float]
    jobs: int

    def hours(self, runs: Iterable[Run]) -> float:
        """Return the hours to execute `runs`, at the speed of similar runs that are done."""
        return sum(self.flops[run.name] / self._speed(run) for run in runs) / 3600

    def _speed(self, run: Run) -> float:
        """FLOPs a second of all jobs together: measured on runs of the same arm and kind that are
        done, else of `rates`."""
        similar = [
            other.name
            for other in self.runs
            if (other.arm, other.kind) == (run.arm, run.kind)
            and other.name in self.done
            and self.done[other.name]["seconds"]
        ]
        if not similar:
            return self.rates[run.arm]
        total = sum(self.done[name]["seconds"] for name in similar)
        return self.jobs * sum(self.flops[name] for name in similar) / total


def costs(runs: list[Run], done: dict[str, Entry], jobs: int) -> Costs:
    """Return the costs of a plan, after timing a training step of the first model of each arm that
    has runs left.

    FLOPs are roughly those of the first encoding of an arm.
    """
    first = {
        run.arm: run.config
        for run in reversed(runs)
        if isinstance(run.config, PretrainingConfig | DistillationConfig)
    }
    configs = {arm: _resolve(config) for arm, config in first.items()}
    models = {
        arm: dataclasses.replace(model, vocab_size=_vocab_size(config))
        for arm, (config, model) in configs.items()
    }
    flops = {
        run.name: _flops(run, configs[run.arm].config, models[run.arm]) for run in runs
    }
    stages = {arm: next(iter(config.stages.values())) for arm, config in first.items()}
    left = {run.arm for run in to_execute(runs, done)}
    rates = {
        arm: _rate(stage, models[arm]) for arm, stage in stages.items() if arm in left
    }
    return Costs(runs, done, flops, rates, jobs)


_TextConfig = PretrainingConfig | DistillationConfig


def _resolve(config: _TextConfig) -> ResolvedConfig[_TextConfig]:
    resolve = distillation if isinstance(config, DistillationConfig) else text_training
    return resolve.resolve(config)


def _vocab_size(config: _TextConfig) -> int:
    file = tokenizer_file(config)
    return load_tokenizer(file).get_vocab_size() if file else config.data.vocab_size


def _flops(run: Run, trained: _TextConfig, model: BertConfig) -> float:
    """Return the model FLOPs of a run; the forward passes of its scores count too."""
    config = run.config
    if isinstance(config, DistillationConfig):
        return sum(
            stage.steps
            * distillation.step_flops(
                config, model, model, stage.batch_size, stage.length
            )
            for stage in config.stages.values()
        )
    if isinstance(config, PretrainingConfig):
        return sum(
            stage.steps
            * train_flops(model, stage.batch_size, stage.length, stage.max_predictions)
            for stage in config.stages.values()
        )
    if isinstance(config, PropertiesConfig):
        if not isinstance(trained, PretrainingConfig):
            return 0.0  # Nothing is scored.
        stages = [*trained.stages.values()]
        steps, last = sum(stage.steps for stage in stages), stages[-1]
        scored = config.score_examples * steps // trained.checkpoint_every
        return forward_flops(model, scored, last.length, last.max_predictions)
    rows, tokens = _ROWS[run.kind]
    times = 1 if not config.eval_every else -(-config.steps // config.eval_every)
    step = train_flops(model, len(config.seeds) * config.data.batch_size, tokens, 0)
    scored = len(config.seeds) * rows * (times + len(run.lengths))
    return config.steps * step + forward_flops(model, scored, tokens, 0)


def _rate(rows: StageConfig, model: BertConfig) -> float:
    """Return the FLOPs a second of a pretraining step of `model`, on `rows` of one token."""
    predictions = max(1, rows.length * 15 // 100)
    stage = PretrainingStageConfig(
        rows.length, rows.batch_size, 1, max_predictions=predictions
    )
    timed = PretrainingConfig(stage1=stage)
    program = pretraining.make_program(timed, sharding.data_mesh(), model, 1)
    state = program.init()
    spec = PretrainingExamples.element_spec(stage.length, stage.max_predictions)
    arrays = {
        name: np.ones((stage.batch_size, *shape), dtype)
        for name, (shape, dtype) in spec.items()
    }
    batch = jax.device_put(arrays, sharding.by_rows(program.mesh))
    step = program.train_step()
    state, _ = jax.block_until_ready(step(state, batch))
    begin = time.perf_counter()
    for _ in range(_TIMED_STEPS):
        state, _ = step(state, batch)
    jax.block_until_ready(state)
    flops = train_flops(model, stage.batch_size, stage.length, stage.max_predictions)
    return _TIMED_STEPS * flops / (time.perf_counter() - begin)


def cost_table(costs: Costs) -> str:
    """Return a table of the remaining runs and their time: a row for each arm and kind."""
    left = to_execute(
        costs.runs, costs.done
    )  # A model may be retrained for runs of other kinds.
    rows = []
    for arm, kind in dict.fromkeys((run.arm, run.kind) for run in costs.runs):
        group, group_left = (
            [run for run in some if (run.arm, run.kind) == (arm, kind)]
            for some in (costs.runs, left)
        )
        done = sum(run.name in costs.done for run in group)
        tera = f"{sum(costs.flops[run.name] for run in group) / 1e12:,.0f}"
        hours = f"{costs.hours(group_left):.2f}"
        counts = [f"{count:,}" for count in (len(group), done, len(group_left))]
        rows.append([arm.replace("_", " "), kind, *counts, tera, hours])
    totals = [f"{len(some):,}" for some in (costs.runs, costs.done, left)]
    rows.append(["all", "", *totals, "", f"{costs.hours(left):.2f}"])
    return "\n".join(
        raw_table(["arm", "", "runs", "done", "left", "TFLOPs", "hours to go"], rows)
    )
