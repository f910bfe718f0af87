"""The report of a distillation run: R² of the student's hidden states by layer and length, and its
order sensitivity."""

from __future__ import annotations

from pathlib import Path

from pe_jax.common import markdown
from pe_jax.common.files import Json
from pe_jax.properties import SHUFFLES
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.reports.pages import page
from pe_jax.trainer.reports.tables import Column, Row, Value, number_table, write_report
from pe_jax.trainer.tasks.distillation import NONE, TEACHER
from pe_jax.trainer.training import metrics
from pe_jax.trainer.training.pytrees import Scalars
from pe_jax.trainer.training.workdir import load_config

# Heading, whose score, its name in the log, and format.
_ORDER_COLUMNS = (
    ("pooled: teacher", "teacher", "pooled", ".4f"),
    ("student", "after", "pooled", ".4f"),
    ("R²", "after", "pooled_r2", ".3f"),
    ("by token: teacher", "teacher", "token", ".3f"),
    ("student", "after", "token", ".3f"),
    ("R²", "after", "token_r2", ".3f"),
)


def report_distillation(folder: Path, out: Path) -> str:
    """Write report.json and report.md of the run in `folder` to `out`; return the page.

    Raises:
      ValueError: if the run has not been evaluated since its first step.
    """
    config, model = load_config(folder, DistillationConfig)
    evaluations = metrics.read_evaluations(folder)
    step = max(evaluations, default=0)
    if not step:
        raise ValueError(
            f"The run in {folder} has not been evaluated yet. Train further."
        )
    at_start = [line for line in metrics.read_metrics(folder) if not line["step"]]
    first = next(iter(at_start), {})
    student = {"before": evaluations.get(0, {}), "after": evaluations[step]}
    sources = {"none": _with_prefix(first, NONE), **student}
    r2 = {}
    for length in config.lengths:
        r2[str(length)] = {
            name: _by_layer(scores, length) for name, scores in sources.items()
        }
    order = {}
    for name, scores in {"teacher": _with_prefix(first, TEACHER), **student}.items():
        order[name] = {key: x for key, x in scores.items() if key.startswith("order/")}
    numbers: Json = {
        "step": step,
        "position": model.encoding().name,
        "teacher": config.init,
        "r2": r2,
        "order": order,
    }
    return write_report(out, "report", numbers, _readable(numbers))


def _with_prefix(scores: Scalars, prefix: str) -> Scalars:
    """Return the scores whose names begin with `prefix`, without it."""
    return {
        name.removeprefix(prefix): score
        for name, score in scores.items()
        if name.startswith(prefix)
    }


def _by_layer(scores: Scalars, length: int) -> list[float]:
    """Return R² of each layer; empty where the log has none."""
    prefix = f"length_{length}/r2/layer_"
    if not any(name.startswith(prefix) for name in scores):
        prefix = "r2/layer_"
    count = sum(name.startswith(prefix) for name in scores)
    return [scores[f"{prefix}{layer}"] for layer in range(1, count + 1)]


def _readable(numbers: Json) -> str:
    blocks: list[str | list[str]] = []
    for length, by_source in numbers["r2"].items():
        rows: list[Row] = []
        for layer in range(len(by_source["after"])):
            cells = [values[layer] if values else None for values in by_source.values()]
            rows.append([str(layer + 1), *cells])
        columns = [(name, ".3f") for name in by_source]
        blocks += [f"Length {length}:", number_table(["layer", *columns], rows)]
        none = by_source["none"]
        if none and by_source["after"][-1] <= none[-1]:
            blocks.append(
                "The last layer is no nearer to the teacher's than without positions."
            )
    return page(
        f"Distilled into {numbers['position']}: {numbers['step']:,} steps",
        "R² of the student's hidden states on held-out text: 1 minus their squared distance from\n"
        "the teacher's, over the variance of the teacher's. `none` has the teacher's parameters\n"
        "and no positions but its windows; `before` has the new positions, not trained. A length\n"
        "is that of a row, which holds inputs of up to so many tokens.\n"
        f"Teacher: {markdown.text(numbers['teacher'])}.",
        *blocks,
        *_order_sensitivity(numbers["order"]),
    )


def _order_sensitivity(order: dict[str, Scalars]) -> list[str | list[str]]:
    """Return a text and a table by kind of shuffle; nothing where the log has none."""
    columns: list[Column] = ["shuffle"]
    rows: list[list[Value]] = [[kind] for kind in SHUFFLES]
    for title, source, field, form in _ORDER_COLUMNS:
        columns.append((title, form))
        for row, kind in zip(rows, SHUFFLES, strict=True):
            row.append(order[source].get(f"order/{kind}/{field}"))
    if all(value is None for row in rows for value in row[1:]):
        return []
    return [
        "Order sensitivity: how far the last states of a held-out text move when its order is\n"
        "shuffled, pooled (1 − cosine of the mean states) and by token (in units of their spread);"
        "\nR² of the student's changes against the teacher's.",
        number_table(columns, rows),
    ]
