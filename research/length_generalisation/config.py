"""Length generalisation: trained on short strings, tested on longer ones (README.md).

Command:  python research/length_generalisation/run.py --workdir=W \
              --config=research/length_generalisation/config.py \
              --encodings=none,rope,alibi,t5 --config.tasks=reverse_string,copy
Hardware: 2 CPU cores; one GPU.
Time:     about a minute for each encoding and task, three seeds at once. A stopped suite continues:
          what is done is in W/cells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pe_jax.common.schema import Config, config_dict, field, subconfig, task_field
from pe_jax.common.values import SEED, integer, number, several, some_of, text
from pe_jax.models.config import HEADS, INTERMEDIATE, LAYERS, WIDTH
from pe_jax.trainer.configs.training import COUNT, FORMATS, ROWS, VECTOR


@dataclasses.dataclass(frozen=True)
class SizesConfig(Config):
    """The sizes of a BERT."""

    num_layers: int = field(2, LAYERS)
    hidden_size: int = field(64, WIDTH)
    num_heads: int = field(4, HEADS)
    intermediate_size: int = field(256, INTERMEDIATE)

    def errors(self) -> Iterator[str]:
        if self.hidden_size % self.num_heads:
            yield (
                f"hidden_size={self.hidden_size} must be a multiple of num_heads={self.num_heads}: "
                "change one of them."
            )


@dataclasses.dataclass(frozen=True)
class LengthGeneralisationConfig(Config):
    task: str = task_field("length_generalisation")
    tasks: str = field(
        "",
        some_of("research.length_generalisation.tasks:TASKS"),
        "Tasks, separated by commas; empty: all 19.",
    )
    position: str = field(
        "", text(), "The encoding of one run of the suite.", internal=True
    )
    seeds: tuple[int, ...] = field(
        (0, 1, 2),
        several(SEED, least=1),
        "Seeds of parameters and data, trained in one program.",
    )
    length: int = field(
        20, integer(1, 10**4), "Length of the longest training inputs, in symbols."
    )
    test_lengths: tuple[int, ...] = field(
        (10, 20, 30, 40, 80, 160), several(integer(1, 10**5), least=1)
    )
    test_examples: int = field(256, COUNT, "Test inputs of each length.")
    test_batch_size: int = field(32, ROWS)
    model: SizesConfig = subconfig(SizesConfig)
    steps: int = field(1_000, COUNT)
    batch_size: int = field(32, ROWS, "Rows of a batch, for each seed.")
    learning_rate: float = field(3e-3, number(0, 1e3, "(]"))
    weight_decay: float = field(0.01, number(0, 1e3))
    vector: str = field("", VECTOR, FORMATS)

    def errors(self) -> Iterator[str]:
        if self.test_examples % self.test_batch_size:
            yield (
                f"test_examples={self.test_examples} must be a multiple of config.test_batch_size="
                f"{self.test_batch_size}: change one of them."
            )
        if not min(self.test_lengths) <= self.length < max(self.test_lengths):
            yield (
                f"test_lengths={self.test_lengths} must have lengths up to config.length="
                f"{self.length} and longer ones."
            )


def get_config():
    return config_dict(LengthGeneralisationConfig)
