"""A fine-tuned run on inputs of other lengths than it was trained on (paper, section 4.2).

Sinusoidal and relative encodings have no maximum length. A learned table of absolute positions is
resized by the method `config.resize`; without it longer inputs are an error.

Command:  python eval.py --config=configs/lengths.py --workdir=RUN --config.lengths='(128,256,512)'
"""

from ml_collections import ConfigDict


def get_config():
    config = ConfigDict()
    config.task = "lengths"
    config.lengths = (128, 256, 384, 512)  # Lengths of inputs, in tokens.
    config.resize = ""  # "interpolate" or "repeat".
    return config
