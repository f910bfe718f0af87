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
        (128, 256, 384, 512),
        several(LENGTH),
        "The run is scored on inputs of these lengths, in tokens.",
    )
    resize: str = field(
        "",
        RESIZE,
        'A table of positions that is too short is resized in this way, "interpolate" '
        'or "repeat"; empty makes it an error.',
    )


def get_config():
    return config_dict(LengthsConfig)
