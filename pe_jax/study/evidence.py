"""What the finished cells of a study say: values by arm, model and measure, for each seed.

Of pretraining a seed is that of the run; of fine-tuning, that of head, dropout and data order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pe_jax.files import Json, read_json
from pe_jax.study.plan import MEASURES, PRETRAINING, TASKS, Cell
from pe_jax.study.state import is_done
from pe_jax.training.metrics_writer import read_metrics

GLUE = tuple(task for task in TASKS if task != "squad")
GLUE_MEAN = "GLUE"
LOSS, LOSS_UNSEEN = "masked-LM loss", "masked-LM loss added by unseen lengths"
SQUAD_F1, SQUAD_EXACT = "squad f1", "squad exact"
CHANGE = "squad f1, change at {} tokens"
BEST = "{}, best step"

# Violations, and how the JSON of a property report names them.
PROPERTIES = {
    "translation invariance": "translation_invariance",
    "local monotonicity": "monotonicity_10",
    "symmetry": "symmetry",
}
LIKENESS = {"likeness of near offsets": "likeness_near", "likeness of far offsets": "likeness_far"}
MEASURED = "measured.json"  # Of a cell.
_WAY_OUT = "Remove the folder, and start the study again."

BySeed = dict[int, float]


class Key(NamedTuple):
    arm: str
    model: str
    measure: str


class Evidence(NamedTuple):
    """Values by seed, of every key that has any."""

    values: Mapping[Key, BySeed]

    def of(self, arm: str, model: str, measure: str) -> BySeed:
        return self.values.get(Key(arm, model, measure), {})

    def mean(self, arm: str, models: Iterable[str], measure: str) -> BySeed:
        """The mean over models for each seed that all of them have; empty if one has none."""
        return _mean([self.of(arm, model, measure) for model in models])

    def models(self, arm: str) -> list[str]:
        return list(dict.fromkeys(key.model for key in self.values if key.arm == arm))

    def as_json(self) -> Json:
        tree: Json = {}
        for (arm, model, measure), values in self.values.items():
            own = tree.setdefault(arm, {}).setdefault(model, {})
            own[measure] = {str(seed): value for seed, value in values.items()}
        return tree


def _mean(each: Sequence[BySeed]) -> BySeed:
    seeds = set.intersection(*map(set, each)) if each else set()
    return {seed: sum(one[seed] for one in each) / len(each) for seed in sorted(seeds)}


def gather(plan: Sequence[Cell]) -> Evidence:
    """The evidence of all cells that are done."""
    values: dict[Key, BySeed] = {}
    for cell in filter(is_done, plan):
        model = cell.model.removesuffix(f", seed {cell.seed}")
        for measure, by_seed in _read(cell).items():
            values.setdefault(Key(cell.arm, model, measure), {}).update(by_seed)
    for arm, model in dict.fromkeys((key.arm, key.model) for key in values):
        if mean := _mean([values.get(Key(arm, model, task), {}) for task in GLUE]):
            values[Key(arm, model, GLUE_MEAN)] = mean
    return Evidence(values)


def trivial_scores(plan: Sequence[Cell]) -> dict[str, float]:
    """What an answer without any model scores on the tasks that are done: on questions the first
    sentence of the context, else the better of two constant labels."""
    found: dict[str, float] = {}
    for cell in plan:
        if cell.kind in TASKS and is_done(cell):
            results = read_json(cell.folder / "results.json", _WAY_OUT)
            baseline, metric = results["baseline"], results["metric"]
            if cell.kind == "squad":
                found |= {SQUAD_F1: baseline["f1"], SQUAD_EXACT: baseline["exact"]}
            else:  # It is of the label that is most frequent in training, which may be the worse.
                one = baseline[metric]
                found[cell.kind] = max(one, 100 - one) if metric == "accuracy" else one
    if found.keys() >= set(GLUE):
        found[GLUE_MEAN] = sum(found[task] for task in GLUE) / len(GLUE)
    return found


def _read(cell: Cell) -> dict[str, BySeed]:
    if cell.kind == PRETRAINING:
        last = [line for line in read_metrics(cell.folder) if "held_out/masked_lm_loss" in line][-1]
        names = {"masked_lm_loss": LOSS, "masked_lm_accuracy": "masked-LM accuracy"}
        return {name: {cell.seed: last[f"held_out/{key}"]} for key, name in names.items()}
    if cell.kind == MEASURES:
        found = read_json(cell.folder / MEASURED, _WAY_OUT)
        return {name: {cell.seed: value} for name, value in found.items()}
    return _of_task(cell)


def measured(folder: Path, run: Path) -> dict[str, float]:
    """Of a property report in `folder` on the pretraining `run`: what a study takes from it."""
    read = lambda part: read_json(folder / f"{part}.json", _WAY_OUT)[run.name]
    words, layers = read("words")["average"], read("offset_kernel")["layers"]
    found = {f"words, {name}": words[key] for name, key in PROPERTIES.items()}
    found |= {
        f"kernel, {name}": sum(layer["average"][key] for layer in layers) / len(layers)
        for name, key in PROPERTIES.items()
    }
    if (folder / "vectors.json").is_file():
        parts = read_json(folder / "vectors.json", _WAY_OUT)
        if run.name in parts:  # Not for encodings of several parts.
            found |= {
                f"vectors {when}, {name}": violations[key]
                for when, violations in parts[run.name].items()
                for name, key in (PROPERTIES | LIKENESS).items()
                if key in violations
            }
    scored = read("scores")
    *_, short, long = scored["stages"]
    unseen = [one for one in scored["checkpoints"] if one["stage_length"] == short["length"]][-1]
    seen = [one for one in read_metrics(run) if "held_out/masked_lm_loss" in one]
    at_the_switch = next(one for one in seen if one["step"] == long["step"])
    found[LOSS_UNSEEN] = unseen["masked_lm_loss"] - at_the_switch["held_out/masked_lm_loss"]
    return found


def _of_task(cell: Cell) -> dict[str, BySeed]:
    results = read_json(cell.folder / "results.json", _WAY_OUT)
    seeds, metric = results["seeds"], results["metric"]
    by_seed = lambda values: dict(zip(seeds, values, strict=True))
    if cell.kind != "squad":
        found = {cell.kind: by_seed(results["scores"][metric])}
        lines = [one for one in read_metrics(cell.folder) if f"held_out/{metric}" in one]
        best = [max(one[f"held_out/{metric}/seed_{seed}"] for one in lines) for seed in seeds]
        return found | {BEST.format(cell.kind): by_seed(best)}
    scores = {name: by_seed(results["scores"][name]) for name in ("f1", "exact")}
    found = {SQUAD_F1: scores["f1"], SQUAD_EXACT: scores["exact"]}
    if cell.lengths:
        for row in json.loads((cell.folder / "lengths" / "rescored.json").read_text()):
            longer = by_seed(row["scores"]["f1"])
            change = {seed: longer[seed] - scores["f1"][seed] for seed in seeds}
            found[CHANGE.format(row["length"])] = change
    return found
