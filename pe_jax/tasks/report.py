"""What a pretraining run learned: scores against baselines, its position vectors, and a figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from pe_jax import encodings, figures, properties
from pe_jax.tasks.pretraining import Experiment, build, held_out_batches, stage_configs
from pe_jax.training import workdir
from pe_jax.training.checkpoints import newest_params
from pe_jax.training.loop import evaluate
from pe_jax.training.sharding import parallelize_eval
from pe_jax.training.step import make_eval_step
from pe_jax.training.writers import write_text

WINDOWS = (5, 10, 20, 50)
_COLUMNS = {
    "translation_invariance": "TI",
    **{f"monotonicity_{w}": f"mono. {w}" for w in (*WINDOWS, "all")},
    "symmetry": "symm.",
}
_SHOWN = 128  # Positions looked at, as in the paper's figures (footnote 10).


class Report(NamedTuple):
    """Numbers as they go to `report.json`, and the same to read."""

    numbers: dict[str, Any]
    text: str


def report(folder: Path, out: Path, experiment: Experiment | None = None) -> Report:
    """Measures the newest checkpoint in `folder`; writes report.json, .md and figures to `out`.

    Raises:
      ValueError: if the folder holds no run, or none with a checkpoint yet.
    """
    if experiment is None:
        experiment = build(workdir.load_config(folder), folder / "tokenizer.json")
    step, params = newest_params(folder)

    numbers: dict[str, Any] = {
        "step": step,
        "position": experiment.model.position,
        "held_out": _scores(experiment, params),
        "properties": {},
    }
    panels = []
    start = experiment.model.encoding().init(jax.random.key(experiment.config.seed))
    trained = params["bert"].get("position", {})
    parts = encodings.split(experiment.model.encoding(), trained)
    at_start = encodings.split(experiment.model.encoding(), start)
    for (part, now), (_, before) in zip(parts, at_start, strict=True):
        if not part.vectors:
            continue
        x, axis = _shown(part, experiment)
        by_time = {"trained": now} | ({"at the start": before} if before else {})
        phi = {
            when: np.asarray(properties.proximity(part.vectors(some, x)))
            for when, some in by_time.items()
        }
        numbers["properties"][part.name] = {when: measure(p) for when, p in phi.items()}
        panels.append(figures.Proximity(part.name, phi["trained"], int(x[0]), int(x[-1]), axis))
    text = _readable(numbers)
    write_text(out / "report.json", json.dumps(numbers, indent=2) + "\n")
    if panels:
        title = f"P·Pᵀ of the position vectors after {step:,} steps"
        figures.proximity_figure(panels, out / "positions.png", title)
        text += "\n![dot products of the position vectors](positions.png)\n"
    write_text(out / "report.md", text)
    return Report(numbers, text)


def measure(phi: np.ndarray) -> dict[str, float]:
    """The violations of one proximity matrix (see `pe_jax.properties`), 0 = the property holds."""
    windows = [w for w in WINDOWS if w < len(phi)]
    return {
        "translation_invariance": float(properties.translation_invariance(phi)),
        **{f"monotonicity_{w}": float(properties.monotonicity(phi, w)) for w in windows},
        "monotonicity_all": float(properties.monotonicity(phi)),
        "symmetry": float(properties.symmetry(phi)),
    }


def _shown(part: encodings.PositionEncoding, experiment: Experiment) -> tuple[np.ndarray, str]:
    """Which positions or offsets to look at, and what to call them."""
    if part.kind == "relative":
        clip = experiment.model.clip
        return np.arange(-clip, clip + 1), "offset of the key from the query"
    longest = max(stage.length for stage in stage_configs(experiment.config))
    return np.arange(min(_SHOWN, longest)), "position"


def _scores(experiment: Experiment, params: Any) -> dict[str, float]:
    """The model's means on held-out text, and those of two baselines on the same predictions."""
    stage = stage_configs(experiment.config)[-1]
    batches = held_out_batches(experiment.config, stage, experiment.text, experiment.mesh)
    step = parallelize_eval(make_eval_step(experiment.task), experiment.mesh)
    weights = np.concatenate([np.asarray(b["masked_weights"]).ravel() for b in batches])
    labels = np.concatenate([np.asarray(b["masked_tokens"]).ravel() for b in batches])[weights > 0]
    next_sentence = np.concatenate([np.asarray(b["next_sentence"]) for b in batches])
    log_p = _unigram(experiment)
    return {
        **evaluate(step, params, batches),
        "masked_tokens": len(labels),
        "pairs": len(next_sentence),
        "length": stage.length,
        "unigram_loss": float(-log_p[labels].mean()),
        "unigram_accuracy": float((labels == log_p.argmax()).mean()),
        "next_sentence_majority": float(max(next_sentence.mean(), 1 - next_sentence.mean())),
    }


def _unigram(experiment: Experiment) -> np.ndarray:
    """Log frequencies of tokens in the training documents, each count one too high (smoothing)."""
    text = experiment.text
    counts = np.ones(text.vocabulary.size)
    bounds = text.train.sentences[text.train.documents]
    for document in text.train_documents:
        tokens = text.train.tokens[bounds[document] : bounds[document + 1]]
        counts += np.bincount(tokens, minlength=len(counts))
    counts[np.setdiff1d(np.arange(len(counts)), text.vocabulary.ordinary)] = 1
    return np.log(counts / counts.sum())


def _readable(numbers: dict[str, Any]) -> str:
    """The numbers as Markdown that also reads well on a terminal."""
    s = numbers["held_out"]
    rows = [
        ("masked-LM accuracy", s["masked_lm_accuracy"], s["unigram_accuracy"], "{:.1%}"),
        ("masked-LM loss, nats", s["masked_lm_loss"], s["unigram_loss"], "{:.3f}"),
        (
            "next-sentence accuracy",
            s["next_sentence_accuracy"],
            s["next_sentence_majority"],
            "{:.1%}",
        ),
    ]
    lines = [
        f"# What the run learned: {numbers['position']}, {numbers['step']:,} steps",
        "",
        f"On held-out text: {s['pairs']:,} sentence pairs of length {s['length']}, "
        f"{s['masked_tokens']:,} masked tokens. The baseline",
        "always answers with the most frequent token, or the more frequent label.",
        "",
        *table(
            ["", "model", "baseline"],
            [[name, form.format(model), form.format(base)] for name, model, base, form in rows],
        ),
    ]
    if numbers["properties"]:
        lines += [
            "",
            "Properties of the position vectors, each a violation by P·Pᵀ from 0 (holds exactly)",
            "to 1: translation invariance, monotonicity within a window of offsets, symmetry.",
            "",
        ]
        measured = numbers["properties"]
        found = {n for by_time in measured.values() for v in by_time.values() for n in v}
        names = [name for name in _COLUMNS if name in found]
        lines += table(
            ["position vectors", "when", *(_COLUMNS[name] for name in names)],
            [
                [part, when, *(f"{v[name]:.3f}" if name in v else "–" for name in names)]
                for part, by_time in measured.items()
                for when, v in by_time.items()
            ],
        )
    return "\n".join(lines) + "\n"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table with its columns lined up."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    line = lambda cells: "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths)) + " |"
    return [line(header), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)]
