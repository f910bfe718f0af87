"""A fine-tuned run scored again, on inputs of its own length or of others (paper, section 4.2)."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np

from pe_jax.configs.training import FinetuningConfig, SquadConfig
from pe_jax.console.markdown import table
from pe_jax.console.terminal import say
from pe_jax.files import Json, write_text
from pe_jax.schema import changed
from pe_jax.tasks.finetuning import build, fit_length
from pe_jax.tasks.train import saved_tokenizer
from pe_jax.training import workdir
from pe_jax.training.checkpointing import newest_params


def rescore(folder: Path, out: Path, lengths: tuple[int, ...] = (), resize: str = "") -> str:
    """Scores the newest checkpoint of a fine-tuned run; returns a table of the lengths.

    Writes `rescored.json`, `rescored.md` and the predictions to `out`.

    Args:
      lengths: of inputs, in tokens; default the run's own.
      resize: the method that lengthens a learned table of positions for longer inputs, see
        `pe_jax.encodings.resize_table`.

    Raises:
      ValueError: if the folder holds no run with a checkpoint, or inputs are longer than a learned
        table and `resize` is empty.
    """
    config = workdir.load_config(folder, FinetuningConfig, SquadConfig)
    # All lengths first: one that does not fit is an error before anything is scored.
    wanted = lengths or (config.data.length,)
    # Each length is a bucket of the others: only rows that need the longest are padded to it.
    buckets = tuple(sorted({*config.data.buckets, config.data.length, *wanted}))
    fitted = [_at_length(config, length, buckets, resize) for length in wanted]
    rows = [_score(one, config.model.max_length, folder, out) for one in fitted]
    write_text(out / "rescored.json", json.dumps(rows, indent=2) + "\n")
    text = _page(config, rows)
    write_text(out / "rescored.md", text)
    return text


def _at_length(
    config: FinetuningConfig, length: int, buckets: tuple[int, ...], resize: str
) -> FinetuningConfig:
    changes = {"data.length": length, "data.buckets": buckets, "resize": resize}
    return fit_length(changed(config, changes), key="config.lengths")


def _score(config: FinetuningConfig, rows: int, folder: Path, out: Path) -> Json:
    """Scores of the run in `folder` under `config`.

    Args:
      rows: positions that the run's model has; `config` may have more.
    """
    say(f"Inputs of {config.data.length} tokens")
    experiment = build(config, out / f"length_{config.data.length}", saved_tokenizer(folder))
    step, params = newest_params(folder, experiment.program.shardings_of)
    if config.model.max_length > rows and "position" in params["bert"]:
        to = config.model.max_length, config.resize
        stretch = lambda position: experiment.program.model.encoding().resize(position, *to)
        position = jax.vmap(stretch)(params["bert"]["position"])
        params = {**params, "bert": {**params["bert"], "position": position}}
    scores = experiment.score(step, params)
    return {
        "step": step,
        "length": config.data.length,
        "dataset": experiment.problem.dataset,
        "seeds": list(experiment.seeds),
        "scores": {
            name: [scores[f"{name}/seed_{seed}"] for seed in experiment.seeds]
            for name in scores
            if "/" not in name
        },
    }


def _page(config: FinetuningConfig, rows: list[Json]) -> str:
    names = list(rows[0]["scores"])
    cells = [
        [f"{row['length']:,}", *(_mean(row["scores"][name]) for name in names)] for row in rows
    ]
    lines = [
        f"# {rows[0]['dataset']}: {config.model.position}, step {rows[0]['step']:,}",
        "",
        f"Scores in points by the length of inputs; mean ± standard deviation over "
        f"{len(rows[0]['seeds'])} seeds.",
        "",
        *table(["length", *names], cells),
    ]
    return "\n".join(lines) + "\n"


def _mean(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"
