"""A run as a Hugging Face folder: config.json, safetensors and the tokenizer.

PyTorch's BERT supports a table of positions: learned or sinusoidal absolute encodings, or none.
Others are an error.

Command:  python eval.py --config=configs/export.py --workdir=RUN --out=FOLDER
          for a fine-tuned run of several seeds: --config.seed=0
Hardware: one CPU.
Time:     seconds.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config():
    config = ConfigDict()
    config.task = "export"
    config.seed = placeholder(int)  # Which seed of a run that has several.
    return config
