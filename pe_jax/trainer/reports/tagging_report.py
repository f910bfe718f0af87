"""The part of a report on tagging: scores by type, and what was taken for what."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from pathlib import Path

from pe_jax.common import markdown
from pe_jax.common.files import Json
from pe_jax.trainer.reports.tables import Column, number_table
from pe_jax.trainer.tasks.finetuning_task import FinetuningTask, prediction_path
from pe_jax.trainer.tasks.tag_scores import (
    ALL,
    confusions,
    read_predictions,
    type_counts,
)
from pe_jax.trainer.tasks.tagging import predictions_file

_MOST_CONFUSIONS = 20  # That are shown; `results.json` has all.


def tagging_details(
    task: FinetuningTask, folder: Path, seeds: Sequence[int], steps: Sequence[int]
) -> Json:
    """Return scores by type and confusions of each held-out set, from the files of predictions.

    Args:
      folder: of the run.
      steps: of the predictions of each seed.

    Returns:
      By set: "types", by type the number of entities (or words) in the data, and precision, recall
      and F1 in points, means over seeds; "confusions", of type, what was predicted, and how often,
      the mean over seeds, the most frequent first.
    """
    return {
        name: _of_set(
            [
                prediction_path(folder, step, seed, predictions_file(name))
                for seed, step in zip(seeds, steps, strict=True)
            ],
            task.scheme,
        )
        for name in task.held_out
    }


def _of_set(paths: Sequence[Path], scheme: str) -> Json:
    """Return the details of one held-out set, from the files of all seeds."""
    numbers = collections.defaultdict(list)
    pairs = collections.Counter[tuple[str, str]]()
    count_of = {}
    for path in paths:
        gold, predicted = read_predictions(path.read_text(encoding="utf-8"))
        for name, counts in type_counts(gold, predicted, scheme).items():
            numbers[name].append(counts.scores())
            count_of[name] = counts.gold
        pairs.update(confusions(gold, predicted, scheme))
    types = {}
    for name in sorted(numbers, key=lambda name: (name == ALL, name)):
        scores = numbers[name]
        # A type that is not in the data is missing where a seed does not predict it: 0 there.
        means = {key: sum(x[key] for x in scores) / len(paths) for key in scores[0]}
        types[name] = {"count": count_of[name], **means}
    confused = [
        [gold, predicted, count / len(paths)]
        for (gold, predicted), count in sorted(
            pairs.items(), key=lambda pair: (-pair[1], pair[0])
        )
    ]
    return {"types": types, "confusions": confused}


def tagging_sections(details: Json) -> list[str | list[str]]:
    """Return the blocks of a page for what `tagging_details` returns."""
    blocks: list[str | list[str]] = []
    for name, of_set in details.items():
        columns: list[Column] = [
            "type",
            ("in the data", ",d"),
            ("F1", ".2f"),
            ("precision", ".2f"),
            ("recall", ".2f"),
        ]
        rows = []
        for label, scores in of_set["types"].items():
            values = [scores[key] for key in ("count", "f1", "precision", "recall")]
            rows.append([label, *values])
        blocks.append(f"## {markdown.text(name.replace('_', ' '))}: by type")
        blocks.append("Means over seeds; *all* is the micro-average.")
        blocks.append(number_table(columns, rows))
        confused = of_set["confusions"][:_MOST_CONFUSIONS]
        if confused:
            blocks.append("Most frequent confusions, mean number over seeds:")
            blocks.append(
                number_table(["in the data", "predicted", ("times", ".1f")], confused)
            )
    return blocks
