"""A fine-tuned run on inputs of other lengths than it was trained on (paper, section 4.2).

Sinusoidal and relative encodings have no maximum length. A learned table of absolute positions is
resized by the method `config.resize`; without it longer inputs are an error.

Command:  python eval.py --config=configs/lengths.py --workdir=RUN --config.lengths='(128,256,512)'
"""

from pe_jax.configs.reports import LengthsConfig
from pe_jax.schema import config_dict


def get_config():
    return config_dict(LengthsConfig)
