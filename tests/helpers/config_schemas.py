"""The shipped configs and the schemas of all tasks."""

import copy
import importlib

from pe_jax.common.schema import from_values
from pe_jax.trainer.configs.all_tasks import CONFIGS, FINETUNING
from pe_jax.trainer.console import config_files

FILES = sorted(config_files.shipped())


def read(config):
    return from_values(config, CONFIGS)


def shipped(name):
    """A config of configs/, with the one key that has no default."""
    config = importlib.import_module(f"pe_jax.trainer.configs.{name}").get_config()
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
