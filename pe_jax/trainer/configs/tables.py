"""Tables 2 (GLUE) and 3 (SQuAD) of the paper, from finished fine-tuning runs.

Command:  python eval.py --config=configs/tables.py --runs='RUNS/*' --out=R
Hardware: one CPU.
Time:     seconds; nothing is trained or scored again.
Writes:   tables.json, tables.md, and for each table that has a run its .md, .csv and .tex.
"""

from __future__ import annotations

import dataclasses

from pe_jax.common.schema import Config, config_dict, field, task_field
from pe_jax.common.values import FLAG, number
from pe_jax.common.values import text as any_text


@dataclasses.dataclass(frozen=True)
class TablesConfig(Config):
    task: str = task_field("tables")
    baseline: str = field(
        "learned_absolute",
        any_text("Give the name of an encoding."),
        "The other encodings are tested against this one.",
    )
    p_value: float = field(
        0.05,
        number(0, 1, "()"),
        "Differences whose p-value in Welch's t-test is below this are marked.",
    )
    all_rows: bool = field(
        False,
        FLAG,
        "The tables have rows of the paper's 13 encodings even where there is no run.",
    )


def get_config():
    return config_dict(TablesConfig)
