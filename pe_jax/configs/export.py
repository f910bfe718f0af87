"""A run as a Hugging Face folder: config.json, safetensors and the tokenizer; or as StableHLO.

A BERT needs a table of positions: learned or sinusoidal absolute encodings, or none. One with
`rope` becomes a RoFormer, and a run of a modern encoder a model of its family (docs/modern.md).
Others are an error.

Command:  python eval.py --config=configs/export.py --workdir=RUN --out=FOLDER
          for a fine-tuned run of several seeds: --config.seed=0
          for JAX without pe_jax, with any encoding: --config.format=stablehlo
Hardware: one CPU.
Time:     seconds.
"""

from __future__ import annotations

import dataclasses

from pe_jax.schema import Config, config_dict, key, task_key
from pe_jax.values import SEED, one_of, optional


@dataclasses.dataclass(frozen=True)
class ExportConfig(Config):
    task: str = task_key("export")
    format: str = key(
        "transformers",
        one_of(("transformers", "stablehlo")),
        'For PyTorch ("transformers"), or for JAX alone ("stablehlo").',
    )
    seed: int | None = key(None, optional(SEED), "Which seed of a run that has several.")


def get_config():
    return config_dict(ExportConfig)
