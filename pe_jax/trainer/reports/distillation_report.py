"""The report of a distillation run: R² of the student's hidden states by layer and length, and its
order sensitivity."""

from __future__ import annotations

from pathlib import Path

from pe_jax.common import markdown
from pe_jax.common.files import Json
from pe_jax.properties import SHUFFLES
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.reports.pages import page
from pe_jax.trainer.reports.tables import Row, number_table, write_report
from pe_jax.trainer.tasks.distillation import NONE, TEACHER
from pe_jax.trainer.training import metrics
from pe_jax.trainer.training.pytrees import Scalars
from pe_jax.trainer.training.workdir import load_config


def report_distillation(folder: Path, out: Path) -> str:
    """Write report.json and report.md of the run in `folder` to `out`; return the page."""
    config, model = load_config(folder, DistillationConfig)
    evaluations = metrics.read_evaluations(folder)
    if not max(evaluations, default=0):
        raise ValueError(
            f"The run in {folder} has not been evaluated yet. Train further."
        )
    step = max(evaluations)
    first = next(
        (line for line in metrics.read_metrics(folder) if not line["step"]), {}
    )
    teacher, none = (
        {
            name.removeprefix(prefix): x
            for name, x in first.items()
            if name.startswith(prefix)
        }
        for prefix in (TEACHER, NONE)
    )
    student = {"before": evaluations.get(0, {}), "after": evaluations[step]}
    sources: dict[str, Scalars] = {"none": none, **student}
    numbers: Json = {
        "step": step,
        "position": model.encoding().name,
        "teacher": config.init,
        "r2": {
            str(length): {
                name: _by_layer(scores, length) for name, scores in sources.items()
            }
            for length in config.lengths
        },
        "order": {
            name: {key: x for key, x in scores.items() if key.startswith("order/")}
            for name, scores in {"teacher": teacher, **student}.items()
        },
    }
    return write_report(out, "report", numbers, _readable(numbers))


def _by_layer(scores: Scalars, length: int) -> list[float]:
    """Return R² of each layer; empty where the log has none."""
    other = f"length_{length}/r2/layer_"
    prefix = other if any(name.startswith(other) for name in scores) else "r2/layer_"
    layers = [name for name in scores if name.startswith(prefix)]
    return [scores[f"{prefix}{i}"] for i in range(1, len(layers) + 1)]


def _readable(numbers: Json) -> str:
    blocks: list[str | list[str]] = []
    for length, by_source in numbers["r2"].items():
        none, after = by_source["none"], by_source["after"]
        rows = [
            [
                str(layer + 1),
                *(values[layer] if values else None for values in by_source.values()),
            ]
            for layer in range(len(after))
        ]
        columns = [(name, ".3f") for name in by_source]
        blocks += [f"Length {length}:", number_table(["layer", *columns], rows)]
        if none and after[-1] <= none[-1]:
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
    columns = [
        ("pooled: teacher", "teacher", "pooled", ".4f"), ("student", "after", "pooled", ".4f"),
        ("R²", "after", "pooled_r2", ".3f"), ("by token: teacher", "teacher", "token", ".3f"),
        ("student", "after", "token", ".3f"), ("R²", "after", "token_r2", ".3f"),
    ]  # fmt: skip
    rows: list[Row] = [
        [
            kind,
            *(
                order[source].get(f"order/{kind}/{field}")
                for _, source, field, _ in columns
            ),
        ]
        for kind in SHUFFLES
    ]
    if not any(value is not None for _, *values in rows for value in values):
        return []
    return [
        "Order sensitivity: how far the last states of a held-out text move when its order is\n"
        "shuffled, pooled (1 − cosine of the mean states) and by token (in units of their spread);"
        "\nR² of the student's changes against the teacher's.",
        number_table(
            ["shuffle", *((title, form) for title, *_, form in columns)], rows
        ),
    ]
