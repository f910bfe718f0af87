"""A run as a Hugging Face folder: config.json, safetensors and the tokenizer.

PyTorch's BERT supports a table of positions: learned or sinusoidal absolute encodings, or none.
Others are an error.

Command:  python eval.py --config=configs/export.py --workdir=RUN --out=FOLDER
          for a fine-tuned run of several seeds: --config.seed=0
Hardware: one CPU.
Time:     seconds.
"""

from pe_jax.configs.reports import ExportConfig
from pe_jax.schema import config_dict


def get_config():
    return config_dict(ExportConfig)
