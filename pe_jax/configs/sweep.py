"""A sweep: how far does the proximity of fixed sinusoids decrease, by base and dimension?

Command:  python eval.py --config=configs/sweep.py --out=R
Hardware: one CPU.
Time:     under a minute.
Expected: up to 43 for base 10,000 at BERT's D = 768 (the paper's "about 50"), 68 at 1,024; up to 68
          already at 768 for any base between 400 and 6,000.
"""

from pe_jax.configs.reports import SweepConfig
from pe_jax.schema import config_dict


def get_config():
    return config_dict(SweepConfig)
