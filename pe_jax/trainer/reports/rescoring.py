"""A fine-tuned run scored again, on inputs of its own length or of others (paper, section 4.2)."""

from __future__ import annotations

import functools
from pathlib import Path

import jax

from pe_jax.common.files import Json
from pe_jax.common.schema import changed
from pe_jax.trainer.configs.all_tasks import FINETUNING
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.reports.pages import page
from pe_jax.trainer.reports.tables import mean_and_spread, number_table, write_report
from pe_jax.trainer.tasks.finetuning import build, fit_length
from pe_jax.trainer.tasks.run import run_config, saved_tokenizer
from pe_jax.trainer.training.checkpointing import newest_params


def rescore(
    folder: Path, out: Path, lengths: tuple[int, ...] = (), resize: str = ""
) -> str:
    """Score the newest checkpoint of a fine-tuned run on inputs of `lengths`, by default its own.

    Writes `rescored.json`, `rescored.md`, which it returns, and the predictions to `out`. `resize`
    is the method of `encodings.resize_table` that lengthens a learned table of positions.

    Raises:
      ValueError: for a folder without a checkpoint, or if a table is too short without `resize`.
    """
    config: FinetuningConfig = run_config(folder, FINETUNING)
    # All lengths first: one that does not fit is an error before anything is scored.
    lengths = lengths or (config.data.length,)
    # Each length is a bucket of the others: only rows that need the longest are padded to it.
    buckets = tuple(sorted({*config.data.buckets, config.data.length, *lengths}))
    fitted = [
        fit_length(
            changed(
                config,
                {"data.length": length, "data.buckets": buckets, "resize": resize},
            ),
            key="config.lengths",
        )
        for length in lengths
    ]
    rows = [_score(longer, config.model.max_length, folder, out) for longer in fitted]
    text = page(
        f"{rows[0]['dataset']}: {config.model.encoding().name}, step {rows[0]['step']:,}",
        f"Scores in points by the length of inputs; mean ± standard deviation over "
        f"{len(config.seeds)} seeds.",
        number_table(
            ["length", *rows[0]["scores"]],
            [
                [f"{r['length']:,}", *map(mean_and_spread, r["scores"].values())]
                for r in rows
            ],
        ),
    )
    return write_report(out, "rescored", rows, text)


def _score(config: FinetuningConfig, rows: int, folder: Path, out: Path) -> Json:
    """Return scores of the run in `folder`, whose model has `rows` positions, under `config`."""
    log(f"Inputs of {config.data.length} tokens")
    run = build(config, out / f"length_{config.data.length}", saved_tokenizer(folder))
    step, params = newest_params(folder, run.program.shardings_of)
    if config.model.max_length > rows and "position" in params["bert"]:
        encoding, length = run.program.model.encoding(), config.model.max_length
        resize = functools.partial(encoding.resize, length=length, method=config.resize)
        position = jax.vmap(resize)(params["bert"]["position"])
        params = {**params, "bert": {**params["bert"], "position": position}}
    scores = run.scorer.score(step, params)
    by_seed = {
        name: [scores[f"{name}/seed_{seed}"] for seed in config.seeds]
        for name in scores
        if "/" not in name
    }
    return {
        "step": step, "length": config.data.length, "dataset": run.task.dataset,
        "seeds": list(config.seeds), "scores": by_seed,
    }  # fmt: skip
