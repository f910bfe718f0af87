"""Tables 2 (GLUE) and 3 (SQuAD) of the paper, from finished fine-tuning runs.

Command:  python eval.py --config=configs/tables.py --runs='RUNS/*' --out=R
Hardware: one CPU.
Time:     seconds; nothing is trained or scored again.
Writes:   tables.json, tables.md, and for each table that has a run its .md, .csv and .tex.
"""

from ml_collections import ConfigDict


def get_config():
    config = ConfigDict()
    config.task = "tables"
    config.baseline = "learned_absolute"  # The encoding that the others are tested against.
    config.p_value = 0.05  # Welch's two-sided t-test marks differences below it.
    config.all_rows = False  # Also rows of the paper's 13 encodings that have no run.
    return config
