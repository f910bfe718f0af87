"""The classes of configs for all tasks."""

from typing import TypeAlias

from pe_jax.configs.distill_positions import DistillationConfig
from pe_jax.configs.export import ExportConfig
from pe_jax.configs.finetuning import FinetuningConfig, SquadConfig
from pe_jax.configs.length_generalisation import LengthGeneralisationConfig
from pe_jax.configs.lengths import LengthsConfig
from pe_jax.configs.pretraining import PretrainingConfig
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.configs.study import StudyConfig
from pe_jax.configs.sweep import SweepConfig
from pe_jax.configs.tables import TablesConfig
from pe_jax.schema import Config

# Runs that hold an encoder, which others start from.
EncoderTraining: TypeAlias = PretrainingConfig | DistillationConfig
ENCODERS: tuple[type[EncoderTraining], ...] = (PretrainingConfig, DistillationConfig)
Training: TypeAlias = EncoderTraining | FinetuningConfig
TRAINING: tuple[type[Training], ...] = (*ENCODERS, FinetuningConfig, SquadConfig)
EVALUATIONS: tuple[type[Config], ...] = (
    ExportConfig,
    LengthGeneralisationConfig,
    LengthsConfig,
    PropertiesConfig,
    StudyConfig,
    SweepConfig,
    TablesConfig,
)
CONFIGS: tuple[type[Config], ...] = (*TRAINING, *EVALUATIONS)
