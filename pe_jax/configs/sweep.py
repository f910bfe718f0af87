"""A sweep: how far does the proximity of fixed sinusoids decrease, by base and dimension?

Command:  python eval.py --config=configs/sweep.py --out=R
Hardware: one CPU.
Time:     under a minute.
Expected: up to 43 for base 10,000 at BERT's D = 768 (the paper's "about 50"), 68 at 1,024; up to 68
          already at 768 for any base between 400 and 6,000.
"""

from ml_collections import ConfigDict

from pe_jax.properties.sweeps import MEMORY


def get_config():
    config = ConfigDict()
    config.task = "sweep"
    config.measure = "turning_point"  # Or monotonicity, monotonicity_weighted (violations).
    config.window = 50  # Offsets of monotonicity.
    config.bases = (10.0, 1e6)  # From, to; spaced evenly on a logarithmic scale.
    config.base_count = 60
    config.dims = (16.0, 1024.0)  # From, to; even numbers.
    config.dim_count = 60
    config.length = 512  # Offsets 0 .. length - 1.
    config.memory = MEMORY  # Bytes per device.
    config.vector = ""  # "pdf" or "svg" writes the figure in that format as well.
    return config
