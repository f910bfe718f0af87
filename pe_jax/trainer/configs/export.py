"""A run for other libraries: a Hugging Face folder, ONNX, or StableHLO.

ONNX and StableHLO take any encoding of text (docs/serving.md). For transformers a BERT needs a
table of positions: learned or sinusoidal absolute encodings, or none. One with `rope` becomes a
RoFormer, and a run of a modern encoder a model of its family (docs/modern.md).

Command:  python eval.py --config=configs/export.py --workdir=RUN --out=FOLDER
          for a fine-tuned run of several seeds: --config.seed=0
          with any encoding, for onnxruntime: --config.format=onnx
          for JAX without pe_jax: --config.format=stablehlo
Hardware: one CPU.
Time:     seconds.
"""

from __future__ import annotations

import dataclasses

from pe_jax.common.schema import Config, config_dict, field, task_field
from pe_jax.common.values import SEED, one_of, optional


@dataclasses.dataclass(frozen=True)
class ExportConfig(Config):
    task: str = task_field("export")
    format: str = field(
        "transformers",
        one_of(("transformers", "onnx", "stablehlo")),
        'The export is for PyTorch ("transformers"), onnxruntime ("onnx") or JAX '
        'alone ("stablehlo").',
    )
    dtype: str = field(
        "float32",
        one_of(("float32", "float16")),
        'Weights and products in ONNX have this dtype: "float16" halves the file.',
    )
    seed: int | None = field(
        None,
        optional(SEED),
        "The model of this seed is exported, of a fine-tuned run that has several.",
    )


def get_config():
    return config_dict(ExportConfig)
