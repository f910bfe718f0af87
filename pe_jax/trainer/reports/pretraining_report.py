"""The report of a pretraining run: scores against baselines, settings, losses by step, and its
position vectors."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from pe_jax.common import markdown
from pe_jax.common.files import Json
from pe_jax.common.markdown import image, table
from pe_jax.trainer import figures
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.console.terminal import counted
from pe_jax.trainer.reports.pages import page
from pe_jax.trainer.reports.property_report.render import render
from pe_jax.trainer.reports.property_report.subjects import trained
from pe_jax.trainer.reports.property_report.vectors import position_vectors
from pe_jax.trainer.reports.tables import write_report
from pe_jax.trainer.tasks.pretraining import build
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.tasks.text_training import TextRun
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.checkpointing import newest_params
from pe_jax.trainer.training.metrics import HELD_OUT, read_metrics
from pe_jax.trainer.training.pytrees import Params, Scalars
from pe_jax.trainer.training.workdir import load_config

_LOSS = "masked_lm_loss"
_UNMOVED = 0.02  # A violation that training has changed by less has hardly moved.

# Row, the model's score, the baseline's, and format.
_ROWS = (
    ("masked-LM accuracy", "masked_lm_accuracy", "unigram_accuracy", ".1%"),
    ("masked-LM loss, nats", "masked_lm_loss", "unigram_loss", ".3f"),
    (
        "next-sentence accuracy",
        "next_sentence_accuracy",
        "next_sentence_majority",
        ".1%",
    ),
)


def report_pretraining(
    folder: Path, out: Path, run: TextRun[PretrainingConfig] | None = None
) -> str:
    """Measure the newest checkpoint in `folder`; write report.json, .md and figures to `out`;
    return the page.

    Args:
      run: the run in `folder`, where it is built already.

    Raises:
      ValueError: if the folder holds no run, or none with a checkpoint yet.
    """
    if run is None:
        run = build(load_config(folder, PretrainingConfig), saved_tokenizer(folder))
    step, params = newest_params(folder, run.program.shardings_of)
    numbers: Json = {
        "step": step,
        "position": run.program.model.encoding().name,
        "held_out": _scores(run, step, params),
    }
    text = _readable(numbers, run, parameters=_count(params))
    position = sharding.to_numpy(params["bert"].get("position", {}))
    if jax.process_index() == 0:  # One host suffices for the rest, and only one writes.
        params = {**params, "bert": {**params["bert"], "position": position}}
        text += _losses(folder, out, numbers)
        tokenizer = run.data.text.tokenizer
        subject = trained("", folder, run.resolved, tokenizer, step, params)
        section = render(position_vectors, [subject], PropertiesConfig(), out)
        if section is not None:
            numbers["properties"], lines, pictures = section
            figure = image("dot products of the position vectors", pictures[0].name)
            unmoved = _unmoved(numbers["properties"])
            text += "\n".join(["", *lines, "", *unmoved, figure, ""])
    return write_report(out, "report", numbers, text)


def _scores(run: TextRun[PretrainingConfig], step: int, params: Params) -> Scalars:
    """Return the model's means on held-out text, and those of two baselines on the same tokens."""
    batches = run.data.held_out[-1]
    scores = dict(run.stages[-1].evaluate(step, params))
    scores["length"] = batches[0]["tokens"].shape[1]
    scores |= baseline_scores(run)
    size = "rows" if run.config.data.packed else "pairs"
    scores[size] = sum(len(batch["tokens"]) for batch in batches)
    return scores


def baseline_scores(run: TextRun[PretrainingConfig]) -> Scalars:
    """Return the scores on held-out text of who always predicts the most frequent token or, of
    sentence pairs, the more frequent label; and the number of tokens."""
    batches = run.data.held_out[-1]

    def values(name: str) -> np.ndarray:
        return np.concatenate(
            [sharding.to_numpy(batch[name]).ravel() for batch in batches]
        )

    labels = values("masked_tokens")[values("masked_weights") > 0]
    log_p = _unigram(run)
    scores = {
        "masked_tokens": len(labels),
        "unigram_loss": float(-log_p[labels].mean()),
        "unigram_accuracy": float((labels == log_p.argmax()).mean()),
    }
    if not run.config.data.packed:
        share = values("next_sentence").mean()
        scores["next_sentence_majority"] = float(max(share, 1 - share))
    return scores


def _unigram(run: TextRun[PretrainingConfig]) -> np.ndarray:
    """Return log frequencies of tokens in the training documents, with add-one smoothing."""
    text = run.data.text
    counts = np.ones(text.vocabulary.size)
    bounds = text.train.sentences[text.train.documents]
    for document in text.train_documents:
        tokens = text.train.tokens[bounds[document] : bounds[document + 1]]
        counts += np.bincount(tokens["id"], minlength=len(counts))
    counts[np.setdiff1d(np.arange(len(counts)), text.vocabulary.ordinary)] = 1
    return np.log(counts / counts.sum())


def _count(params: Params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _losses(folder: Path, out: Path, numbers: Json) -> str:
    """Draw the masked-LM loss by step to `loss.png`; return its Markdown, or nothing without a
    log of two steps."""
    log = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    curves = []
    for name, key in (("training", f"train/{_LOSS}"), ("held out", HELD_OUT + _LOSS)):
        points = [(line["step"], line[key]) for line in log if key in line]
        if points:
            steps, losses = np.array(points, float).T
            curves.append(_curve(name, steps, losses))
    if not curves or max(len(curve.x) for curve in curves) < 2:
        return ""
    steps = np.array([0.0, float(numbers["step"])])
    baseline = np.full(2, numbers["held_out"]["unigram_loss"])
    curves.append(_curve("baseline", steps, baseline))
    figure = figures.model_curves(curves, title="Masked-LM loss while training")
    figures.save(figure, out / "loss.png")
    return f"\n## Loss\n\n{image('masked-LM loss by step', 'loss.png')}\n"


def _curve(name: str, x: np.ndarray, y: np.ndarray) -> figures.Curve:
    return figures.Curve("masked-LM loss, nats", "step", name, "", x, y)


def _unmoved(components: Json) -> list[str]:
    """Return a sentence on the position vectors that training has hardly changed, if any."""
    names = []
    for name, versions in components.items():
        before = versions.get("at the start")
        after = versions.get("trained")
        if not before or not after:
            continue
        change = max(abs(after[key] - before[key]) for key in before)
        if change < _UNMOVED and before["translation_invariance"]:
            names.append(name)
    if not names:
        return []
    return [
        f"Training has hardly moved {', '.join(names)}: no violation changed by {_UNMOVED} or",
        "more. The figure shows the random initial values: train for longer before you read it.",
        "",
    ]


def _readable(
    numbers: Json, run: TextRun[PretrainingConfig], *, parameters: int
) -> str:
    scores = numbers["held_out"]
    rows = []
    for name, key, baseline, form in _ROWS:
        if key in scores:
            cells = [format(scores[key], form), format(scores[baseline], form)]
            rows.append([name, *cells])
    label = ""
    if "pairs" in scores:
        inputs = f"{scores['pairs']:,} sentence pairs"
        label = ", or the more frequent label"
    else:
        inputs = f"{scores.get('rows', 0):,} rows of packed documents"
    warning = ""
    names = _not_learned(scores)
    if names:
        warning = (
            f"No better than the baseline: {', '.join(names)}. Train for more steps."
        )
    return page(
        f"What the run learned: {numbers['position']}, {numbers['step']:,} steps",
        f"On held-out text: {inputs} of length {scores['length']}, "
        f"{scores['masked_tokens']:,} masked tokens. The baseline\n"
        f"always predicts the most frequent token{label}.",
        table(["", "model", "baseline"], rows),
        warning,
        "## Settings",
        _settings(run, parameters),
    )


def _settings(run: TextRun[PretrainingConfig], parameters: int) -> list[str]:
    """Return a list of what a reader needs to repeat the run, or to compare it."""
    config = run.config
    model = run.program.model
    size = f"{counted(model.num_layers, 'layer')} of {model.hidden_size}"
    rows = [
        ("Model", f"{size}, {model.dtype}; {parameters:,} parameters"),
        ("Start", config.init or "from scratch"),
        ("Text", config.data.source),
        *run.summary,
        ("Optimizer", config.optimizer.name),
        ("Learning rate", f"{config.optimizer.learning_rate:g}"),
        ("Seed", f"{config.seed}"),
    ]
    return [f"- {name}: {markdown.text(value)}" for name, value in rows]


def _not_learned(scores: Json) -> list[str]:
    """Return the scores that are at the baseline, within two standard errors of an accuracy."""
    names = []
    if scores["masked_lm_loss"] >= scores["unigram_loss"]:
        names.append("masked-LM loss")
    if "pairs" in scores:
        majority = scores["next_sentence_majority"]
        error = (majority * (1 - majority) / scores["pairs"]) ** 0.5
        if scores["next_sentence_accuracy"] <= majority + 2 * error:
            names.append("next-sentence accuracy")
    return names
