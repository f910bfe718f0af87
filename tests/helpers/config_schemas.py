"""The shipped configs and the schemas of all tasks."""

import copy
import importlib
from pathlib import Path

from pe_jax.reports.report_schemas import REPORTS
from pe_jax.study.study_schema import STUDY
from pe_jax.tasks.finetuning.finetuning_schema import FINETUNING
from pe_jax.tasks.pretraining.pretraining_schema import PRETRAINING

ROOT = Path(__file__).parents[2]
SCHEMAS = {**PRETRAINING, **FINETUNING, **REPORTS, **STUDY}
FILES = sorted(
    path.stem
    for path in (ROOT / "configs").glob("*.py")
    if path.stem not in ("defaults", "__init__")
)


def shipped(name):
    """A config of configs/, with the one key that has no default."""
    config = importlib.import_module(f"pe_jax.configs.{name}").get_config()
    if config.task in FINETUNING:
        config.init = "RUN"
    return config


def changed(config, key, value):
    """A copy with another value of a dotted key, whatever its type."""
    config = copy.deepcopy(config)
    part, _, last = key.rpartition(".")
    inner = config[part] if part else config
    with inner.ignore_type():
        inner[last] = value
    return config
