"""The classes of configs for all tasks."""

from pe_jax.configs.reports import REPORTS
from pe_jax.configs.studies import StudyConfig
from pe_jax.configs.training import TRAINING
from pe_jax.schema import Config

CONFIGS: tuple[type[Config], ...] = (*TRAINING, *REPORTS, StudyConfig)
