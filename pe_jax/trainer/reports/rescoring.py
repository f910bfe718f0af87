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
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.training.checkpointing import newest_params
from pe_jax.trainer.training.workdir import ResolvedConfig, load_config


def rescore(
    folder: Path, out: Path, lengths: tuple[int, ...] = (), resize: str = ""
) -> str:
    """Score the newest checkpoint of a fine-tuned run on inputs of `lengths`, by default its own.

    Writes `rescored.json`, `rescored.md`, which it returns, and the predictions to `out`.

    Args:
      resize: method of `encodings.resize_table` that lengthens a learned table of positions.

    Raises:
      ValueError: for a folder without a checkpoint, or if a table is too short without `resize`.
    """
    config, model = load_config(folder, FINETUNING)
    lengths = lengths or (config.data.length,)
    # Each length is a bucket of the others: only rows that need the longest are padded to it.
    buckets = tuple(sorted({*config.data.buckets, config.data.length, *lengths}))
    # All lengths first: one that does not fit is an error before anything is scored.
    fitted = []
    for length in lengths:
        values = {"data.length": length, "data.buckets": buckets, "resize": resize}
        longer = changed(config, values)
        longer_model = fit_length(model, longer, key="config.lengths")
        fitted.append(ResolvedConfig(longer, longer_model))
    rows = [_score(longer, model.max_length, folder, out) for longer in fitted]
    cells = []
    for row in rows:
        scores = map(mean_and_spread, row["scores"].values())
        cells.append([f"{row['length']:,}", *scores])
    text = page(
        f"{rows[0]['dataset']}: {model.encoding().name}, step {rows[0]['step']:,}",
        f"Scores in points by the length of inputs; mean ± standard deviation over "
        f"{len(config.seeds)} seeds.",
        number_table(["length", *rows[0]["scores"]], cells),
    )
    return write_report(out, "rescored", rows, text)


def _score(
    resolved: ResolvedConfig[FinetuningConfig], rows: int, folder: Path, out: Path
) -> Json:
    """Return scores of the run in `folder`, whose model has `rows` positions, as `resolved`."""
    config, model = resolved
    log(f"Inputs of {config.data.length} tokens")
    run = build(resolved, out / f"length_{config.data.length}", saved_tokenizer(folder))
    step, params = newest_params(folder, run.program.shardings_of)
    length = model.max_length
    if length > rows and "position" in params["bert"]:
        encoding = run.program.model.encoding()
        resize = functools.partial(encoding.resize, length=length, method=config.resize)
        position = jax.vmap(resize)(params["bert"]["position"])
        params = {**params, "bert": {**params["bert"], "position": position}}
    scores = run.scorer.score(step, params)
    by_seed = {}
    for name in scores:
        if "/" not in name:
            by_seed[name] = [scores[f"{name}/seed_{seed}"] for seed in config.seeds]
    return {
        "step": step,
        "length": config.data.length,
        "dataset": run.task.dataset,
        "seeds": list(config.seeds),
        "scores": by_seed,
    }
