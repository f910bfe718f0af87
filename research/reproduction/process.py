"""One run of a study, in its own process: train or measure, and write its values."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, TypedDict

import pe_jax
from pe_jax.common import cpu
from pe_jax.common.files import Json, parse_json, read_json, write_text
from pe_jax.common.schema import flatten, values_of
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.configs.finetuning import FinetuningConfig
from pe_jax.trainer.configs.pretraining import PretrainingConfig
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.training.metrics import HELD_OUT
from pe_jax.trainer.training.workdir import STEPS, saved_values
from research.json_files import T, check, read_json_as, read_series
from research.reproduction.plan import RESULT, TASKS, Run, plan
from research.reproduction.results import (
    ACCURACY,
    BEST,
    CHANGE,
    LOSS,
    LOSS_UNSEEN,
    PROPERTIES,
    R2,
    BySeed,
)
from research.reproduction.results_file import (
    SQUAD_EXACT,
    SQUAD_F1,
    Scores,
    read_results,
    saved_config,
)

_FIX = "Remove the folder, and start the study again."
_LIKENESS = {
    "likeness of near offsets": "likeness_near",
    "likeness of far offsets": "likeness_far",
}
_PACKAGE = Path(pe_jax.__file__).resolve().parent
# The packages that scores and measures depend on; not how they are shown.
_CODE = (
    "attention",
    "encodings",
    "interop",
    "models",
    "properties",
    "trainer/data",
    "trainer/tasks",
    "trainer/training",
)


class _Words(TypedDict):
    average: dict[str, Any]


class _Kernel(TypedDict):
    layers: list[_Words]


class _Rescored(TypedDict):
    length: int
    scores: dict[str, list[float]]


class _Finetuned(TypedDict):
    dataset: str
    trained_on: str
    select: str
    metric: str
    seeds: list[int]
    steps: list[int]
    scores: dict[str, list[float]]
    baseline: dict[str, float]


def execute_run(folder: Path, name: str) -> None:
    """Execute or resume the run `name` of the study in `folder`, planned from its results file."""
    from pe_jax.trainer.disk_cache import cache_compiled_programs

    cache_compiled_programs()
    config = saved_config(read_results(folder))
    run = next(run for run in plan(config, folder) if run.name == name)
    _check_steps(run)
    if isinstance(run.config, PretrainingConfig):
        result = _pretrain(run.config, run.folder, run.seed)
    elif isinstance(run.config, DistillationConfig):
        result = _distill(run.config, run.folder, run.seed)
    elif isinstance(run.config, PropertiesConfig):
        result = _measure(run.config, run)
    else:
        result = _finetune(run.config, run)

    import jax

    origin = {
        "settings": run.settings,
        "code": code_digest(),
        "jax": jax.__version__,
        "device": _device(),
        "cores": cpu.cores(),
    }
    write_text(run.folder / RESULT, json.dumps(origin | result, indent=1) + "\n")
    if run.kind in TASKS:  # Gigabytes in all, and nothing reads them.
        shutil.rmtree(run.folder / "checkpoints")


def _check_steps(run: Run) -> None:
    """Raise ValueError if the run began with other steps: its learning rate followed those."""
    if (
        isinstance(run.config, PropertiesConfig)
        or not (run.folder / "config.json").exists()
    ):
        return
    old, new = flatten(saved_values(run.folder)), values_of(run.config)
    for key in STEPS:
        if old.get(key) != new.get(key):
            raise ValueError(
                f"{run.folder} was started with config.{key}={old.get(key)}, but the study now has "
                f"{new.get(key)}. {_FIX}"
            )


def code_digest() -> str:
    """Return a digest of the sources that the numbers of a study depend on."""
    digest = hashlib.sha256()
    for path in sorted(
        path for part in _CODE for path in (_PACKAGE / part).rglob("*.py")
    ):
        digest.update(
            str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes()
        )
    return digest.hexdigest()[:12]


def _device() -> str:
    """Return the kind of accelerator; for a CPU its model, which says more than its kind."""
    import jax

    kind = str(jax.devices()[0].device_kind)
    return (cpu.model() or kind) if jax.default_backend() == "cpu" else kind


def _last(folder: Path, name: str) -> float:
    """Return the last value of a score in the log of a run."""
    return [*read_series(folder, f"{HELD_OUT}{name}", _FIX).values()][-1]


def _pretrain(config: PretrainingConfig, folder: Path, seed: int) -> Json:
    from pe_jax.trainer.tasks import pretraining

    pretraining.run(config, folder)
    names = {"masked_lm_loss": LOSS, "masked_lm_accuracy": ACCURACY}
    return {"values": {name: {seed: _last(folder, key)} for key, name in names.items()}}


def _distill(config: DistillationConfig, folder: Path, seed: int) -> Json:
    from pe_jax.trainer.tasks import distillation

    distillation.run(config, folder)
    return {"values": {R2: {seed: _last(folder, "r2")}}}


def _measure(config: PropertiesConfig, run: Run) -> Json:
    """Measure the model that the run needs."""
    from pe_jax.trainer.reports.property_report.report import measure_properties
    from pe_jax.trainer.reports.property_report.subjects import from_run

    folder, model = run.folder, run.needs
    assert model is not None
    measure_properties([from_run(model)], config, folder, where_possible=True)

    def section(part: str, kind: type[T]) -> T | None:
        """Return what a part says of the model; None if it does not apply."""
        path = folder / f"{part}.json"
        numbers = read_json(path, _FIX) if path.is_file() else {}
        return (
            check(numbers[model.name], kind, path, _FIX)
            if model.name in numbers
            else None
        )

    words, kernel = section("words", _Words), section("offset_kernel", _Kernel)
    assert words is not None and kernel is not None
    averages = [layer["average"] for layer in kernel["layers"]]
    values = {
        f"words, {name}": words["average"][key] for name, key in PROPERTIES.items()
    }
    values |= {
        f"kernel, {name}": sum(average[key] for average in averages) / len(averages)
        for name, key in PROPERTIES.items()
    }
    values |= {
        f"vectors {when}, {name}": violations[key]
        for when, violations in (
            section("vectors", dict[str, dict[str, Any]]) or {}
        ).items()
        for name, key in (PROPERTIES | _LIKENESS).items()
        if key in violations
    }
    scores = section("scores", Scores)
    if scores:  # Of a model with masked-LM heads.
        values[LOSS_UNSEEN] = _loss_at_unseen_length(scores, model)
    by_seed = {name: {run.seed: value} for name, value in values.items()}
    return {"values": by_seed} | ({"scores": scores} if scores else {})


def _loss_at_unseen_length(scores: Scores, model: Path) -> float:
    """Return the loss that the last stage's length adds before any training at that length."""
    *_, short, long = scores["stages"]
    unseen = [
        row for row in scores["checkpoints"] if row["stage_length"] == short["length"]
    ][-1]
    losses = read_series(model, f"{HELD_OUT}masked_lm_loss", _FIX)
    if long["step"] not in losses:
        raise ValueError(
            f"{model / 'metrics.jsonl'} is damaged (it has no loss of step {long['step']}). {_FIX}"
        )
    return unseen["masked_lm_loss"] - losses[long["step"]]


def _finetune(config: FinetuningConfig, run: Run) -> Json:
    from pe_jax.trainer.reports.finetuning_report import report_finetuning
    from pe_jax.trainer.reports.rescoring import rescore
    from pe_jax.trainer.tasks import finetuning

    folder, task = run.folder, run.kind
    report_finetuning(finetuning.run(config, folder), folder)
    results = read_json_as(_Finetuned, folder / "results.json", _FIX)
    seeds, metric = results["seeds"], results["metric"]

    def by_seed(column: list[float]) -> BySeed:
        return dict(zip(seeds, column, strict=True))

    scores = {name: by_seed(column) for name, column in results["scores"].items()}
    if task == "squad":
        values = {SQUAD_F1: scores["f1"], SQUAD_EXACT: scores["exact"]}
        if run.lengths:
            rescore(folder, folder / "lengths", run.lengths)
            path = folder / "lengths" / "rescored.json"
            rows = parse_json(path.read_text(encoding="utf-8"))
            for row in check(rows, list[_Rescored], path, _FIX):
                longer = by_seed(row["scores"]["f1"])
                change = {seed: longer[seed] - scores["f1"][seed] for seed in seeds}
                values[CHANGE.format(row["length"])] = change
    else:
        names = [f"{HELD_OUT}{metric}/seed_{seed}" for seed in seeds]
        best = [max(read_series(folder, name, _FIX).values()) for name in names]
        values = {task: scores.pop(metric), BEST.format(task): by_seed(best)}
        values |= {f"{task} {name}": column for name, column in scores.items()}
    facts = {
        "dataset": results["dataset"],
        "trained_on": results["trained_on"],
        "select": results["select"],
        "metric": metric,
        "steps": results["steps"],
        "baseline": results["baseline"],
    }
    return {**facts, "values": values}
