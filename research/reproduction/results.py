"""Values of a study by arm, model, measure and seed, from its results file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pe_jax.common.values import split_names
from pe_jax.trainer.reports.finetuning_results import Results as TaskResults
from research.reproduction.plan import REPLACED, TASKS, UNTOUCHED
from research.reproduction.results_file import SQUAD_EXACT, SQUAD_F1, Entry, Results

GLUE = tuple(task for task in TASKS if task != "squad")
CLASSIFICATION = (
    "classification"  # The mean over those of GLUE's tasks that an arm has.
)
R2 = "R² of the hidden states"  # To the untouched model, in the last layer.
LOSS, ACCURACY = "masked-LM loss", "masked-LM accuracy"
LOSS_UNSEEN = "masked-LM loss added by unseen lengths"
CHANGE = "squad f1, change at {} tokens"
BEST = "{}, best step"
KEPT = "{}, share of the untouched model's"  # Above a trivial answer.

# Violations, and how the JSON of a property report names them.
PROPERTIES = {
    "translation invariance": "translation_invariance",
    "local monotonicity": "monotonicity_10",
    "symmetry": "symmetry",
}

BySeed = dict[int, float]


class Spread(NamedTuple):
    """Variance of a score between distillations of one encoding, and its degrees of freedom."""

    variance: float
    freedom: float


# For a study that distilled each encoding once: half of the mean square difference between two
# distillations of three encodings, relative to the untouched model (docs/distillation.jsonl and
# results.json; a test computes it again). The score on classification is CoLA's.
DISTILLED_TWICE = {SQUAD_F1: Spread(0.373, 3), CLASSIFICATION: Spread(9.0, 3)}


class Values(NamedTuple):
    """Values by seed, for every (arm, model, measure) that has any.

    Attributes:
      spreads: of a score between distillations, by measure; counts: distillations of a model, by
        model and measure, where there are several.
    """

    by_key: Mapping[tuple[str, str, str], BySeed]
    spreads: Mapping[str, Spread] = {}
    counts: Mapping[tuple[str, str], int] = {}

    def distillations(self, model: str, measure: str) -> int:
        return self.counts.get((model, measure), 1)

    def by_seed(self, arm: str, model: str, measure: str) -> BySeed:
        return self.by_key.get((arm, model, measure), {})

    def mean(self, arm: str, models: Iterable[str], measure: str) -> BySeed:
        """Return the mean over models for each seed that all of them have."""
        return _mean([self.by_seed(arm, model, measure) for model in models])

    def model_means(self, arm: str, models: Iterable[str], measure: str) -> list[float]:
        """Return each model's mean over its seeds, NaN without any, to five decimals: zeros that
        are exact but for rounding errors have the same rank."""
        columns = [[*self.by_seed(arm, model, measure).values()] for model in models]
        return [
            round(sum(column) / len(column), 5) if column else math.nan
            for column in columns
        ]

    def models(self, arm: str) -> list[str]:
        return list(
            dict.fromkeys(model for other, model, _ in self.by_key if other == arm)
        )

    def distinct_models(self, arm: str) -> list[str]:
        """Return the models with positions of their own, no combinations of others'."""
        return [
            name for name in self.models(arm) if name != UNTOUCHED and "+" not in name
        ]

    def classification_measures(self, arm: str) -> list[str]:
        """Return the tasks of GLUE that an arm has scores of, then their mean if it has several."""
        names = {name for other, _, name in self.by_key if other == arm}
        tasks = [task for task in GLUE if task in names]
        return [*tasks, CLASSIFICATION] if len(tasks) > 1 else tasks


def _mean(columns: Sequence[BySeed]) -> BySeed:
    seeds = set.intersection(*map(set, columns)) if columns else set()
    return {
        seed: sum(column[seed] for column in columns) / len(columns)
        for seed in sorted(seeds)
    }


def finished(results: Results) -> Iterator[tuple[str, str, str, Entry]]:
    """Yield arm, kind, model (with the seed of repeated pretraining) and entry of each run that is
    done."""
    for name, entry in results["runs"].items():
        if entry is not None:
            arm, kind, model = name.split("/")
            yield arm, kind, model, entry


def values(results: Results) -> Values:
    """Return the values of all runs that are done, and each seed's mean over GLUE's tasks.

    A model that was distilled, and fine-tuned, with several seeds has their mean for each seed of
    fine-tuning; the spread between distillations is then the study's own.
    """
    by_run: dict[tuple[str, str, str], dict[int, BySeed]] = {}
    tuned = set()  # Of fine-tuning, whose seeds each distillation has.
    for arm, kind, name, entry in finished(results):
        model = name.removesuffix(f", seed {entry['seed']}")
        for measure, by_seed in entry["values"].items():
            columns = by_run.setdefault((arm, model, measure), {})
            columns[entry["seed"]] = {
                int(seed): value for seed, value in by_seed.items()
            }
            if kind in TASKS:
                tuned.add((arm, model, measure))
    for arm, model in dict.fromkeys((arm, model) for arm, model, _ in by_run):
        tasks = [by_run.get((arm, model, task), {}) for task in _glue(results, arm)]
        seeds = set.intersection(*map(set, tasks)) if tasks else ()
        means = {seed: _mean([task[seed] for task in tasks]) for seed in sorted(seeds)}
        if any(means.values()):
            by_run[arm, model, CLASSIFICATION] = means
            tuned.add((arm, model, CLASSIFICATION))
    by_key = {
        key: _mean([*columns.values()])
        if key in tuned
        else {
            seed: value for column in columns.values() for seed, value in column.items()
        }
        for key, columns in by_run.items()
    }
    spreads, counts = _distillations(by_run)
    for measure in (SQUAD_F1, CLASSIFICATION):
        untouched = by_key.get((REPLACED, UNTOUCHED, measure))
        trivial = trivial_scores(results, REPLACED).get(measure)
        if not untouched or trivial is None:
            continue
        scale = sum(untouched.values()) / len(untouched) - trivial
        if scale <= 0:  # The untouched model is no better: nothing can be kept of it.
            continue
        kept = KEPT.format(measure)
        for arm, model, _ in [
            key for key in by_key if key[0] == REPLACED and key[2] == measure
        ]:
            column = by_key[arm, model, measure]
            by_key[arm, model, kept] = {
                s: (x - trivial) / scale for s, x in column.items()
            }
            counts[model, kept] = counts.get((model, measure), 1)
        spread = spreads[measure]
        spreads[kept] = spread._replace(variance=spread.variance / scale**2)
    return Values(by_key, spreads, counts)


def _distillations(
    by_run: Mapping[tuple[str, str, str], dict[int, BySeed]],
) -> tuple[dict[str, Spread], dict[tuple[str, str], int]]:
    """Return the spread between distillations, by measure, and their number by model and measure.

    Distillations of a model are compared by their means over seeds of fine-tuning.
    """
    spreads, counts = dict(DISTILLED_TWICE), {}
    for measure in DISTILLED_TWICE:
        squares, freedom = 0.0, 0
        for (arm, model, name), columns in by_run.items():
            if arm == REPLACED and name == measure and len(columns) > 1:
                means = [
                    sum(column.values()) / len(column) for column in columns.values()
                ]
                centre = sum(means) / len(means)
                squares += sum((one - centre) ** 2 for one in means)
                freedom += len(means) - 1
                counts[model, measure] = len(means)
        if freedom:
            spreads[measure] = Spread(squares / freedom, freedom)
    return spreads, counts


def trivial_scores(results: Results, arm: str) -> dict[str, float]:
    """Return the scores of an answer without any model, by measure, for the tasks that are done.

    On questions it is the first sentence of the context, else the better of two constant labels.
    """
    scores: dict[str, float] = {}
    for other, kind, _, entry in finished(results):
        if other == arm and kind in TASKS:
            baseline, metric = entry["baseline"], entry["metric"]
            if kind == "squad":
                scores |= {SQUAD_F1: baseline["f1"], SQUAD_EXACT: baseline["exact"]}
            else:  # The label that is most frequent in training may be the worse of the two.
                score = baseline[metric]
                better = max(score, 100 - score) if metric == "accuracy" else score
                scores[kind] = better
    glue = _glue(results, arm)
    if glue and scores.keys() >= set(glue):
        scores[CLASSIFICATION] = sum(scores[task] for task in glue) / len(glue)
    return scores


def _glue(results: Results, arm: str) -> list[str]:
    return [
        task for task in split_names(results["config"][arm]["tasks"]) if task in GLUE
    ]


def task_results(arm: str, kind: str, model: str, entry: Entry) -> TaskResults:
    """Return the entry of a fine-tuning run as the paper's tables take it."""
    squad = {"f1": SQUAD_F1, "exact": SQUAD_EXACT}
    measures = squad if kind == "squad" else {entry["metric"]: kind}
    columns = {metric: entry["values"][measure] for metric, measure in measures.items()}
    return TaskResults(
        folder=Path(arm, kind, model),
        dataset=entry["dataset"],
        trained_on=entry["trained_on"],
        position=entry["position"].replace(" ", ""),
        init=model,
        scores={
            name: {int(seed): score for seed, score in by_seed.items()}
            for name, by_seed in columns.items()
        },
        settings={"select": entry["select"]},
    )
