"""Pretraining runs compared: held-out scores on the same text, with paired standard errors."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from pe_jax import encodings
from pe_jax.common import markdown
from pe_jax.common.files import Json
from pe_jax.properties import Estimate
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.reports.pages import page
from pe_jax.trainer.reports.pretraining_report import baseline_scores
from pe_jax.trainer.reports.tables import Column, Row, number_table, write_report
from pe_jax.trainer.tasks.pretraining import build
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.tasks.text_training import TextRun
from pe_jax.trainer.training.checkpointing import newest_params
from pe_jax.trainer.training.pytrees import Batch, Metrics, Params, Scalars
from pe_jax.trainer.training.sharding import compiled
from pe_jax.trainer.training.step import make_eval_step
from pe_jax.trainer.training.workdir import load_config

_LOSS = "masked_lm_loss"
_NEXT_SENTENCE = "next_sentence_accuracy"  # Packed runs have none.

# Name -> sums and counts of each of N held-out examples, `[N]` both.
Examples = dict[str, tuple[np.ndarray, np.ndarray]]


def compare(folders: list[Path], out: Path) -> str:
    """Write `comparison.json` and `comparison.md` to `out`; return the latter's text.

    Differences are to the run with `none`, or to the first: paired by example, so that the
    difficulty of the text cancels, with the standard error of the paired mean over examples.

    Raises:
      ValueError: for fewer than two runs, or runs on different text or lengths.
    """
    if len(folders) < 2:
        raise ValueError(f"A comparison needs at least two runs, got {len(folders)}.")
    runs: list[ScoredRun] = []
    for folder in folders:
        log(f"Scoring {folder}")
        run = score(folder)
        runs.append(run)
        if run.facts != runs[0].facts:
            raise ValueError(
                f"{folder} and {folders[0]} were not scored on the same examples:\n"
                f"  {run.facts}\n  {runs[0].facts}"
            )
    without_positions = [run for run in runs if run.row["position"] == "none"]
    base = without_positions[0] if without_positions else runs[0]
    rows = [
        run.row | _difference(run.examples[_LOSS], base.examples[_LOSS]) for run in runs
    ]
    rows.sort(key=lambda row: -row[_LOSS])
    facts = runs[0].facts
    seeds = sorted({row["seed"] for row in rows})
    seeds_text = "seeds " if len(seeds) > 1 else "seed "
    seeds_text += ", ".join(map(str, seeds))
    about = (
        f"Held-out text: {facts['examples']:,} {facts['inputs']} of length {facts['length']}, "
        f"{facts['masked_tokens']:,} masked tokens; loss in nats;\n"
        "differences paired by example, ± standard error over examples; "
        f"{runs[0].row['step']:,} steps, {seeds_text}. The baseline\n"
        "always predicts the most frequent token, or the more frequent label."
    )
    text = page(
        f"Held-out scores of {len(rows)} runs",
        about,
        _table(rows, base.row, runs[0].baseline),
        _undecided(rows, base.row["position"]),
        _spread_over_seeds(rows),
    )
    return write_report(out, "comparison", rows, text)


class ScoredRun(NamedTuple):
    """Scores of the newest checkpoint of a run."""

    row: Json  # The run and its mean scores.
    facts: Json  # What runs must have in common to be compared.
    examples: Examples
    baseline: Scalars  # See `baseline_scores`.


def score(folder: Path) -> ScoredRun:
    """Score the newest checkpoint in `folder` on held-out text.

    Raises:
      ValueError: if the folder holds no pretraining run, or none with a checkpoint yet.
    """
    run = build(load_config(folder, PretrainingConfig), saved_tokenizer(folder))
    config = run.config
    step, params = newest_params(folder, run.program.shardings_of)
    examples = _score_examples(run, params)
    model = run.program.model
    encoding = model.encoding()
    row: Json = {
        "position": encoding.name,
        "parameters": encodings.parameter_count(encoding, model.num_layers),
        "step": step,
        "seed": config.seed,
    }
    for name, (sums, counts) in examples.items():
        row[name] = float(sums.sum() / counts.sum())
    *_, last_stage = config.stages.values()
    losses, masked_tokens = examples[_LOSS]
    facts = {
        "source": config.data.source,
        "validation": config.data.validation,
        "vocabulary": run.data.text.vocabulary.size,
        "length": last_stage.length,
        "inputs": "packed rows" if config.data.packed else "pairs",
        "examples": len(losses),
        "masked_tokens": int(masked_tokens.sum()),
    }
    return ScoredRun(row, facts, examples, baseline_scores(run))


def _score_examples(run: TextRun[PretrainingConfig], params: Params) -> Examples:
    """Return the scores of each held-out example, on inputs of the last stage's length."""
    program = run.program
    eval_step = make_eval_step(program.task)

    def score_row(params: Params, row: Batch) -> Metrics:
        return eval_step(params, jax.tree.map(lambda x: x[None], row))

    score_batch = compiled(
        jax.vmap(score_row, in_axes=(None, 0)),
        program.mesh,
        (program.shardings.params, program.batch_sharding),
    )
    batches = run.data.held_out[-1]
    scored = [jax.device_get(score_batch(params, batch)) for batch in batches]

    def joined(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate(parts).astype(np.float64)

    return jax.tree.map(joined, *scored)


def _difference(
    scores: tuple[np.ndarray, np.ndarray], base: tuple[np.ndarray, np.ndarray]
) -> dict[str, float]:
    """Return the mean of the paired differences of sums, and its standard error."""
    sums, counts = scores
    difference = sums - base[0]
    mean = difference.sum() / counts.sum()
    # The error of a ratio of sums; examples are the independent units (their tokens are not).
    error = np.sqrt(((difference - mean * counts) ** 2).sum()) / counts.sum()
    return {"loss_difference": mean, "loss_difference_standard_error": error}


def _undecided(rows: list[Json], base: str) -> str:
    """Return a sentence on the runs within two standard errors of the one compared with, if any."""
    names = []
    for row in rows:
        error = row["loss_difference_standard_error"]
        if row["position"] != base and abs(row["loss_difference"]) <= 2 * error:
            names.append(row["position"])
    if not names:
        return ""
    return markdown.text(
        f"No difference from {base} seen in the loss: {', '.join(names)}."
    )


def _spread_over_seeds(rows: list[Json]) -> str:
    """Return sentences on what the seeds of training allow to say about encodings."""
    by_seed: dict[str, dict[int, float]] = {}
    for row in rows:
        by_seed.setdefault(row["position"], {})[row["seed"]] = row[_LOSS]
    losses = {name: list(values.values()) for name, values in by_seed.items()}
    counts = {name: len(values) for name, values in losses.items()}
    freedom = sum(count - 1 for count in counts.values())
    if not freedom:
        return (
            "Each encoding has one seed. The standard errors are over examples and leave out the\n"
            "seed of training, so this table cannot tell a difference between encodings from one\n"
            "between seeds. Train at least three seeds of each (`--config.seed`) and compare all."
        )
    squares = sum(float(np.var(values)) * len(values) for values in losses.values())
    deviation = (squares / freedom) ** 0.5
    fewest = min(counts.values())
    needed = 2 * deviation * (2 / fewest) ** 0.5
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    return (
        f"Seeds: {markdown.text(listed)}. Over the seeds of an encoding the loss has a standard\n"
        f"deviation of {deviation:.3f}, of {freedom} degrees of freedom. Means of {fewest} "
        f"seed{'s' * (fewest > 1)} each have to differ by about {needed:.3f},\n"
        "two standard errors, before the seeds do not explain it."
    )


def _table(rows: list[Json], base: Json, baseline: Scalars) -> list[str]:
    columns: list[Column] = [
        "position encoding",
        ("seed", "d"),
        ("its parameters", ",d"),
        ("masked-LM loss", ".3f"),
        (f"against {base['position']}", ".3f"),
        ("accuracy", ".1%"),
    ]
    chance: Row = [
        "baseline",
        None,
        None,
        baseline["unigram_loss"],
        None,
        baseline["unigram_accuracy"],
    ]
    has_next_sentence = _NEXT_SENTENCE in rows[0]
    if has_next_sentence:
        columns.append(("next sentence", ".1%"))
        chance = [*chance, baseline["next_sentence_majority"]]
    cells: list[Row] = [chance]
    for row in rows:
        difference: Estimate | None = Estimate(
            mean=row["loss_difference"], error=row["loss_difference_standard_error"]
        )
        if (row["position"], row["seed"]) == (base["position"], base["seed"]):
            difference = None
        of_row: Row = [
            row["position"],
            row["seed"],
            row["parameters"],
            row[_LOSS],
            difference,
            row["masked_lm_accuracy"],
        ]
        if has_next_sentence:
            of_row = [*of_row, row[_NEXT_SENTENCE]]
        cells.append(of_row)
    return number_table(columns, cells)
