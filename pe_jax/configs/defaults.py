"""Every key of a config for training, with its default. Experiments override some of them.

`pe_jax.configs.pretraining` and `pe_jax.configs.finetuning` declare what each key means and
accepts; `--help` prints it.
"""

from ml_collections import ConfigDict

from pe_jax.schema import config_dict


def pretraining() -> ConfigDict:
    from pe_jax.configs.pretraining import PretrainingConfig

    return config_dict(PretrainingConfig)


def finetuning() -> ConfigDict:
    """Return the config of GLUE."""
    from pe_jax.configs.finetuning import FinetuningConfig

    return config_dict(FinetuningConfig)


def squad() -> ConfigDict:
    from pe_jax.configs.finetuning import SquadConfig

    return config_dict(SquadConfig)
