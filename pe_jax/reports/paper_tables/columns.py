"""The columns of tables 2 and 3: a metric of a dataset each, in the paper's order."""

from __future__ import annotations

from typing import NamedTuple

# Table 2: set -> (task and metric as printed, metric in the results).
GLUE: dict[str, tuple[str, str]] = {
    "glue/cola": ("CoLA mcc", "matthews"),
    "glue/sst2": ("SST-2 acc", "accuracy"),
    "glue/mnli": ("MNLI-mm acc", "accuracy_mismatched"),
    "glue/mrpc": ("MRPC F1", "f1"),
    "glue/qnli": ("QNLI acc", "accuracy"),
    "glue/qqp": ("QQP F1", "f1"),
    "glue/rte": ("RTE acc", "accuracy"),
    "glue/stsb": ("STS-B spear.", "spearman"),
    "glue/wnli": ("WNLI acc", "accuracy"),
}

# The paper's mean excludes WNLI: its development set contradicts its training set.
IN_MEAN: tuple[str, ...] = tuple(name for name in GLUE if name != "glue/wnli")

# Table 3; other sets of questions and spans have the same two columns, under their own names.
SQUAD: dict[str, str] = {"squad/v1.1": "V1.1", "squad/v2.0": "V2.0"}
SPAN_METRICS: dict[str, str] = {"f1": "F1", "exact": "EM"}


class Column(NamedTuple):
    """One metric of the runs trained on one set and scored on another, mostly its own."""

    dataset: str
    trained_on: str
    metric: str
    label: str

    @property
    def own(self) -> bool:
        """Whether runs were trained on the set's own training split, as in published results."""
        return self.trained_on == self.dataset

    @property
    def key(self) -> str:
        """Its unique name in files."""
        origin = "" if self.own else f"{self.trained_on} -> "
        return f"{origin}{self.dataset} {self.metric}"

    @property
    def table(self) -> str:
        return "glue" if self.dataset in GLUE else "squad"


def columns(dataset: str, trained_on: str) -> list[Column]:
    """The columns that the runs on a set fill.

    Raises:
      ValueError: for a task that is not one of GLUE's nine.
    """
    if dataset in GLUE:
        label, metric = GLUE[dataset]
        return [Column(dataset, trained_on, metric, label)]
    if dataset.startswith("glue/"):
        raise ValueError(f"Unknown GLUE task {dataset!r}; table 2 has {', '.join(GLUE)}.")
    name = SQUAD.get(dataset, dataset)
    return [
        Column(dataset, trained_on, metric, f"{name} {label}")
        for metric, label in SPAN_METRICS.items()
    ]


def sort_key(column: Column) -> tuple[bool, int, str, str, int]:
    """Sorts columns: the paper's first, in its order; then those trained on another set."""
    known = [*GLUE, *SQUAD]
    at = known.index(column.dataset) if column.dataset in known else len(known)
    within = list(SPAN_METRICS).index(column.metric) if column.table == "squad" else 0
    return (not column.own, at, column.dataset, column.trained_on, within)
