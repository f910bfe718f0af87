"""Tables 2 (GLUE) and 3 (SQuAD) of the paper, from finished fine-tuning runs.

Command:  python eval.py --config=configs/tables.py --runs='RUNS/*' --out=R
Hardware: one CPU.
Time:     seconds; nothing is trained or scored again.
Writes:   tables.json, tables.md, and for each table that has a run its .md, .csv and .tex.
"""

from pe_jax.configs.reports import TablesConfig
from pe_jax.schema import config_dict


def get_config():
    return config_dict(TablesConfig)
