"""Every key of a config for training, with its default. Experiments override some of them.

What each key means and accepts is declared in `pe_jax.configs.training`; --help prints it.
"""

from ml_collections import ConfigDict

from pe_jax.configs.training import FinetuningConfig, PretrainingConfig, SquadConfig
from pe_jax.schema import config_dict


def pretraining() -> ConfigDict:
    return config_dict(PretrainingConfig)


def finetuning() -> ConfigDict:
    """Return the config of GLUE."""
    return config_dict(FinetuningConfig)


def squad() -> ConfigDict:
    return config_dict(SquadConfig)
