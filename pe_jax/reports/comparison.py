"""Pretraining runs compared: held-out scores on the same text, with paired standard errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from pe_jax import encodings
from pe_jax.configs.pretraining import PretrainingConfig
from pe_jax.console.terminal import say
from pe_jax.files import Json
from pe_jax.properties import Estimate
from pe_jax.reports.tables import Column, number_table, write_report
from pe_jax.tasks.pretraining import build
from pe_jax.tasks.train import saved_tokenizer
from pe_jax.training import workdir
from pe_jax.training.checkpointing import newest_params
from pe_jax.training.pytrees import Batch, Metrics, Params
from pe_jax.training.sharding import parallelize_eval
from pe_jax.training.step import Task, make_eval_step

_LOSS = "masked_lm_loss"


class Scores(NamedTuple):
    """One run's scores.

    Attributes:
      parameters: the number of those of its position encoding.
      same_for_all: what runs must have in common to be compared.
      examples: name -> (sums `[N]`, counts `[N]`), for each of N held-out examples.
    """

    position: str
    parameters: int
    step: int
    seed: int
    same_for_all: Json
    examples: dict[str, tuple[np.ndarray, np.ndarray]]

    def mean(self, name: str) -> float:
        sums, counts = self.examples[name]
        return float(sums.sum() / counts.sum())


def compare(folders: list[Path], out: Path) -> str:
    """Write `comparison.json` and `comparison.md` to `out`; return the latter's text.

    Differences are to the run with `none`, or to the first: paired by example, so that the
    difficulty of the text cancels, with the standard error of the paired mean over examples.

    Raises:
      ValueError: for fewer than two runs, or runs on different text or lengths.
    """
    if len(folders) < 2:
        raise ValueError(f"Nothing to compare: got {len(folders)} run(s), give two or more.")
    runs = []
    for folder in folders:
        say(f"Scoring {folder}")
        runs.append(score(folder))
    for run, folder in zip(runs, folders):
        if run.same_for_all != runs[0].same_for_all:
            raise ValueError(
                f"{folder} and {folders[0]} were not scored on the same examples:\n"
                f"  {run.same_for_all}\n  {runs[0].same_for_all}"
            )
    base = next((run for run in runs if run.position == "none"), runs[0])
    rows = [_row(run, base) for run in runs]
    rows.sort(key=lambda row: -row[_LOSS])
    facts = runs[0].same_for_all
    text = "\n".join(
        [
            f"Held-out text: {facts['examples']:,} pairs of length {facts['length']}, "
            f"{facts['masked_tokens']:,} masked tokens; loss in nats;",
            f"differences paired by example, ± standard error; {runs[0].step:,} steps, "
            f"seed {runs[0].seed}.",
            "",
            *_table(rows, base.position),
            "",
        ]
    )
    return write_report(out, "comparison", rows, text)


def score(folder: Path) -> Scores:
    """Return scores of the newest checkpoint in `folder` on each held-out example."""
    config = workdir.load_config(folder, PretrainingConfig)
    experiment = build(config, saved_tokenizer(folder))
    program = experiment.program
    step, params = newest_params(folder, program.shardings_of)
    shardings = program.shardings.params
    each = parallelize_eval(_each_example(program.task), program.mesh, shardings)
    scored = [jax.device_get(each(params, batch)) for batch in experiment.held_out[-1]]
    examples = {
        name: (_joined(s[name][0] for s in scored), _joined(s[name][1] for s in scored))
        for name in scored[0]
    }
    return Scores(
        position=program.model.encoding().name,
        parameters=encodings.parameter_count(program.model.encoding(), program.model.num_layers),
        step=step,
        seed=config.seed,
        same_for_all={
            "source": config.data.source,
            "validation": config.data.validation,
            "vocabulary": experiment.text.vocabulary.size,
            "length": [*config.stages.values()][-1].length,
            "examples": len(examples[_LOSS][0]),
            "masked_tokens": int(examples[_LOSS][1].sum()),
        },
        examples=examples,
    )


def _each_example(task: Task) -> Callable[[Params, Batch], Metrics]:
    """Return the task's sums and counts of every row of a batch: `[B]` each."""
    eval_step = make_eval_step(task)

    def score_row(params: Params, row: Batch) -> Metrics:
        return eval_step(params, jax.tree.map(lambda x: x[None], row))

    return jax.vmap(score_row, in_axes=(None, 0))


def _joined(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate(list(parts)).astype(np.float64)


def _row(run: Scores, base: Scores) -> Json:
    counts = run.examples[_LOSS][1]
    difference = run.examples[_LOSS][0] - base.examples[_LOSS][0]
    mean = difference.sum() / counts.sum()
    # The error of a ratio of sums; examples are the independent units (their tokens are not).
    error = np.sqrt(((difference - mean * counts) ** 2).sum()) / counts.sum()
    return {
        "position": run.position,
        "parameters": run.parameters,
        "step": run.step,
        "seed": run.seed,
        **{name: run.mean(name) for name in run.examples},
        "loss_difference": float(mean),
        "loss_difference_standard_error": float(error),
    }


def _table(rows: list[Json], base: str) -> list[str]:
    columns: list[Column] = [
        "position encoding", ("its parameters", ",d"), ("masked-LM loss", ".3f"),
        (f"against {base}", ".3f"), ("accuracy", ".1%"), ("next sentence", ".1%"),
    ]  # fmt: skip
    cells = []
    for row in rows:
        difference = Estimate(row["loss_difference"], row["loss_difference_standard_error"])
        cells.append(
            [
                row["position"],
                row["parameters"],
                row[_LOSS],
                None if row["position"] == base else difference,
                row["masked_lm_accuracy"],
                row["next_sentence_accuracy"],
            ]
        )
    return number_table(columns, cells)
