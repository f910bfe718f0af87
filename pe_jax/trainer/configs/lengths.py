"""A fine-tuned run on inputs of other lengths than it was trained on (paper, section 4.2).

Sinusoidal and relative encodings have no maximum length. A learned table of absolute positions is
resized by the method `config.resize`; without it longer inputs are an error.

Command:  python eval.py --config=configs/lengths.py --workdir=RUN --config.lengths='(128,256,512)'
"""

from __future__ import annotations

import dataclasses

from pe_jax.common.schema import Config, config_dict, field, task_field
from pe_jax.common.values import several
from pe_jax.trainer.configs.training import LENGTH, RESIZE


@dataclasses.dataclass(frozen=True)
class LengthsConfig(Config):
    task: str = task_field("lengths")
    lengths: tuple[int, ...] = field(
        (128, 256, 384, 512), several(LENGTH), "Tokens of inputs."
    )
    resize: str = field("", RESIZE, '"interpolate" or "repeat".')


def get_config():
    return config_dict(LengthsConfig)
