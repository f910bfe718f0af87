"""Pretraining runs compared: held-out scores on the same text, with paired standard errors."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from pe_jax import encodings
from pe_jax.configs.pretraining import PretrainingConfig
from pe_jax.console.terminal import log
from pe_jax.files import Json
from pe_jax.properties import Estimate
from pe_jax.reports.pages import page
from pe_jax.reports.tables import Column, Row, number_table, write_report
from pe_jax.tasks.pretraining import build
from pe_jax.tasks.run import run_config, saved_tokenizer
from pe_jax.training.checkpointing import newest_params
from pe_jax.training.pytrees import Batch, Metrics, Params
from pe_jax.training.sharding import compiled
from pe_jax.training.step import make_eval_step

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
    runs = []
    for folder in folders:
        log(f"Scoring {folder}")
        runs.append(score(folder))
        facts, known = runs[-1][1], runs[0][1]
        if facts != known:
            raise ValueError(
                f"{folder} and {folders[0]} were not scored on the same examples:\n"
                f"  {facts}\n  {known}"
            )
    base, _, base_examples = next((run for run in runs if run[0]["position"] == "none"), runs[0])
    rows = [row | _difference(examples[_LOSS], base_examples[_LOSS]) for row, _, examples in runs]
    rows.sort(key=lambda row: -row[_LOSS])
    run, facts, _ = runs[0]
    text = page(
        f"Held-out scores of {len(rows)} runs",
        f"Held-out text: {facts['examples']:,} {facts['inputs']} of length {facts['length']}, "
        f"{facts['masked_tokens']:,} masked tokens; loss in nats;\n"
        f"differences paired by example, ± standard error; {run['step']:,} steps, "
        f"seed {run['seed']}.",
        _table(rows, base["position"]),
        _undecided(rows, base["position"]),
    )
    return write_report(out, "comparison", rows, text)


def score(folder: Path) -> tuple[Json, Json, Examples]:
    """Score the newest checkpoint in `folder`: return the run and its mean scores, what runs must
    have in common to be compared, and the scores of each held-out example."""
    config = run_config(folder, PretrainingConfig)
    run = build(config, saved_tokenizer(folder))
    program = run.program
    step, params = newest_params(folder, program.shardings_of)
    arguments = (program.shardings.params, program.batch_sharding)
    eval_step = make_eval_step(program.task)

    def score_row(params: Params, row: Batch) -> Metrics:
        return eval_step(params, jax.tree.map(lambda x: x[None], row))

    score_batch = compiled(jax.vmap(score_row, in_axes=(None, 0)), program.mesh, arguments)
    scored = [jax.device_get(score_batch(params, batch)) for batch in run.data.held_out[-1]]
    examples = jax.tree.map(lambda *parts: np.concatenate(parts).astype(np.float64), *scored)
    encoding = program.model.encoding()
    count = encodings.parameter_count(encoding, program.model.num_layers)
    row = {"position": encoding.name, "parameters": count, "step": step, "seed": config.seed}
    row |= {name: float(sums.sum() / counts.sum()) for name, (sums, counts) in examples.items()}
    same_for_all = {
        "source": config.data.source, "validation": config.data.validation,
        "vocabulary": run.data.text.vocabulary.size, "length": [*config.stages.values()][-1].length,
        "inputs": "packed rows" if config.data.packed else "pairs",
        "examples": len(examples[_LOSS][0]), "masked_tokens": int(examples[_LOSS][1].sum()),
    }  # fmt: skip
    return row, same_for_all, examples


def _difference(
    scores: tuple[np.ndarray, np.ndarray], base: tuple[np.ndarray, np.ndarray]
) -> dict[str, float]:
    difference, counts = scores[0] - base[0], scores[1]
    mean = difference.sum() / counts.sum()
    # The error of a ratio of sums; examples are the independent units (their tokens are not).
    error = np.sqrt(((difference - mean * counts) ** 2).sum()) / counts.sum()
    return {"loss_difference": mean, "loss_difference_standard_error": error}


def _undecided(rows: list[Json], base: str) -> str:
    """Return a sentence on the runs within two standard errors of the one compared with, if any."""
    names = [
        row["position"]
        for row in rows
        if row["position"] != base
        and abs(row["loss_difference"]) <= 2 * row["loss_difference_standard_error"]
    ]
    return f"No difference from {base} seen in the loss: {', '.join(names)}." if names else ""


def _table(rows: list[Json], base: str) -> list[str]:
    columns: list[Column] = [
        "position encoding", ("its parameters", ",d"), ("masked-LM loss", ".3f"),
        (f"against {base}", ".3f"), ("accuracy", ".1%"),
    ]  # fmt: skip
    if _NEXT_SENTENCE in rows[0]:
        columns.append(("next sentence", ".1%"))
    cells: list[Row] = []
    for row in rows:
        difference = Estimate(
            mean=row["loss_difference"], error=row["loss_difference_standard_error"]
        )
        name, shown = row["position"], None if row["position"] == base else difference
        accuracies = [row[key] for key in ("masked_lm_accuracy", _NEXT_SENTENCE) if key in row]
        cells.append([name, row["parameters"], row[_LOSS], shown, *accuracies])
    return number_table(columns, cells)
