"""What the config of a study may hold: configs of runs as parts of it, and what names its cells."""

from __future__ import annotations

from pe_jax.reports.report_schemas import REPORTS
from pe_jax.schema import Relation, Schema, within
from pe_jax.study.plan import ARMS, TASKS
from pe_jax.tasks.finetuning.finetuning_schema import FINETUNING
from pe_jax.tasks.pretraining.pretraining_schema import PRETRAINING
from pe_jax.tasks.training_schema import COUNT, LENGTH
from pe_jax.values import SEED, Kind, integer, one_of, several, some_of, text

# What the plan sets for each cell is whatever the config of a run has there.
_SET_BY_THE_PLAN = {"init": text(), "data.source": text()}


def _part(name: str, task: str, schema: Schema) -> Schema:
    """A whole config as a part of another."""
    own = {key: kind for key, kind in _SET_BY_THE_PLAN.items() if key in schema.kinds}
    kinds = {**schema.kinds, **own, "task": one_of((task,))}
    relations = tuple(
        Relation(
            tuple(f"{name}.{key}" for key in one.keys),
            one.holds,
            one.says.replace("config.", f"config.{name}."),
        )
        for one in schema.relations
    )
    return Schema(within(name, kinds), relations)


_PARTS = (
    *(_part(f"{arm}.pretraining", "pretraining", PRETRAINING["pretraining"]) for arm in ARMS),
    _part("glue", "cola", FINETUNING["cola"]),
    _part("squad", "squad", FINETUNING["squad"]),
    _part("measures", "properties", REPORTS["properties"]),
)
_OF_AN_ARM: dict[str, Kind] = {
    "first": text("Give names of encodings, joined by commas."),
    "then": text(),
    "kept": text(),
    "repeats": several(SEED),
}
STUDY: dict[str, Schema] = {
    "study": Schema(
        {
            "published": text(),
            "text": text("Give files to pretrain on, or another source."),
            "held_out_text": text(),
            "data_dir": text(),
            "jobs": integer(1, 10**4),
            "tasks": some_of(TASKS),
            "lengths": several(LENGTH),
            "figures": text(),
            **within("steps", dict.fromkeys(TASKS, COUNT)),
            **{key: kind for arm in ARMS for key, kind in within(arm, _OF_AN_ARM).items()},
            **{key: kind for part in _PARTS for key, kind in part.kinds.items()},
        },
        tuple(relation for part in _PARTS for relation in part.relations),
    )
}
