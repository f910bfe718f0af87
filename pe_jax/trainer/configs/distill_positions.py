"""Give a trained encoder another position encoding, by imitation of its own hidden states.

Command:  python train.py --config=configs/distill_positions.py --config.init=BERT \
              --config.model.position=rope --workdir=W
Hardware: 2 CPU cores for a model of 6 layers of 384; a GPU or TPU for BERT-base.
Data:     any text in the model's language; the default is small and in English.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pe_jax.common.schema import config_dict, field, subconfig, task_field
from pe_jax.common.values import FLAG, integer, number, several
from pe_jax.models.config import ModelChanges
from pe_jax.trainer.configs.pretraining import EncoderTrainingConfig, StageConfig
from pe_jax.trainer.configs.training import COUNT_OR_ZERO, OptimizerConfig

_WEIGHT = number(0, 1e6)
# Frozen: the embeddings that teacher and student share. New positions learn faster.
_RATES = (
    "bert/token/*=0",
    "bert/token_type/*=0",
    "bert/position/*=5",
    "bert/position/*/frequencies=1",
    "bert/position/*/generators=1",
)


@dataclasses.dataclass(frozen=True)
class DistillationConfig(EncoderTrainingConfig):
    """Position distillation: the model at `init` with `model.position` imitates `init` itself.

    The loss is a weighted mean over layers of the squared distance of their outputs, over the
    variance of the teacher's.
    """

    task: str = task_field("distillation")
    model: ModelChanges = subconfig(
        ModelChanges, dropout_rate=0.0, attention_dropout_rate=0.0
    )
    stage1: StageConfig = subconfig(StageConfig, length=256, batch_size=4, steps=2_000)
    optimizer: OptimizerConfig = subconfig(
        OptimizerConfig, learning_rate=1e-3, weight_decay=0.0, b2=0.98, rates=_RATES
    )
    layers: tuple[float, ...] = field(
        (),
        several(_WEIGHT, most=10**4, repeated=True),
        "Layers have these weights in the loss, one each; 0 leaves a layer out, and "
        "() weights all alike.",
    )
    attention: float = field(
        0.0,
        _WEIGHT,
        "The same loss on the outputs of attention, before they are added, has this "
        "weight.",
    )
    differences: float = field(
        0.0,
        _WEIGHT,
        "Half the same loss on the change of the states when the words of every input "
        "are shuffled has this weight. Each step then reads its rows twice, as they "
        "are and shuffled.",
    )
    centered: bool = field(
        False,
        FLAG,
        "The student imitates the teacher's states without their mean at each "
        "position.",
    )
    patience: int = field(
        3,
        COUNT_OR_ZERO,
        "A stage ends after this many evaluations without `min_gain`; 0 means never.",
    )
    min_gain: float = field(
        0.001,
        number(0, 1),
        "The held-out R² has to rise by at least this for an evaluation to count.",
    )
    eval_every: int = field(
        100, COUNT_OR_ZERO, "Held-out text is evaluated every this many steps."
    )
    eval_examples: int = field(
        64,
        integer(1, 1_000_000),
        "An evaluation reads this many held-out rows of each length.",
    )

    window: int = field(
        0,
        COUNT_OR_ZERO,
        "The teacher reads longer inputs in overlapping windows of this many tokens; "
        "0 means as many as it has positions.",
    )
    test_lengths: tuple[int, ...] = field(
        (),
        several(integer(8, 10**6)),
        "R² is measured at these lengths of inputs as well.",
    )

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of inputs that R² is measured at, those of the stages first."""
        trained = [stage.length for stage in self.stages.values()]
        return tuple(dict.fromkeys((*trained, *self.test_lengths)))

    def errors(self) -> Iterator[str]:
        if self.layers and not any(self.layers):
            yield f"layers={self.layers} leaves every layer out: give one of them a weight above 0."
        if 0 < self.window < 8:
            yield f"window={self.window} is too short: give at least 8 tokens, or 0."


def get_config():
    return config_dict(DistillationConfig)
