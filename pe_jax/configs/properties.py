"""The properties of position encodings, measured: tables, figures 1 to 7, probes.

Command:  python eval.py --config=configs/properties.py --workdir=RUN --out=R
          python eval.py --config=configs/properties.py --runs='RUNS/*' --out=R
          python eval.py --config=configs/properties.py --encodings=all --out=R    (with table 1)
          python eval.py --config=configs/properties.py --checkpoints=MODEL_FOLDER --out=R
Hardware: one CPU.
Time:     a minute or two for a run of a small BERT.
"""

from pe_jax.configs.reports import PropertiesConfig
from pe_jax.schema import config_dict


def get_config():
    return config_dict(PropertiesConfig)
