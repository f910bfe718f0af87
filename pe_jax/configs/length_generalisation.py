"""Length generalisation: trained on short strings, tested on longer ones (docs/measures).

Command:  python eval.py --config=configs/length_generalisation.py --out=R \
              --encodings=none,rope,alibi,t5 --config.tasks=reverse_string,copy
Hardware: 2 CPU cores; one GPU.
Time:     about a minute for each encoding and task, three seeds at once. A stopped suite continues:
          what is done is in R/cells.
"""

from pe_jax.configs.reports import LengthGeneralisationConfig
from pe_jax.schema import config_dict


def get_config():
    return config_dict(LengthGeneralisationConfig)
