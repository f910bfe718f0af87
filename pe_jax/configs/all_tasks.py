"""The classes of configs for all tasks."""

from typing import TypeAlias

from pe_jax.configs.finetuning import FinetuningConfig, SquadConfig
from pe_jax.configs.pretraining import PretrainingConfig
from pe_jax.configs.reports import REPORTS
from pe_jax.configs.studies import StudyConfig
from pe_jax.schema import Config

Training: TypeAlias = PretrainingConfig | FinetuningConfig
TRAINING: tuple[type[Training], ...] = (PretrainingConfig, FinetuningConfig, SquadConfig)
CONFIGS: tuple[type[Config], ...] = (*TRAINING, *REPORTS, StudyConfig)
