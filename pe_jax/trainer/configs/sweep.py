"""A sweep: how far does the proximity of fixed sinusoids decrease, by base and dimension?

Command:  python eval.py --config=configs/sweep.py --out=R
Hardware: one CPU.
Time:     under a minute.
Expected: up to 43 for base 10,000 at BERT's D = 768 (the paper's "about 50"), 68 at 1,024; up to 68
          already at 768 for any base between 400 and 6,000.
"""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
from collections.abc import Iterator

import numpy as np

from pe_jax.common.schema import Config, config_dict, field, task_field
from pe_jax.common.values import integer, number, one_of, several
from pe_jax.trainer.configs.training import FORMATS, VECTOR

# Name -> label, of a window of offsets.
MEASURES = {
    "turning_point": "ψ decreases up to offset m",
    "monotonicity": "violation of monotonicity within {} offsets",
    "monotonicity_weighted": "violation of monotonicity, weighted within {} offsets",
}
_WINDOW = integer(2, 10**6)  # A pair of offsets is the least to compare.
_GRID = integer(2, 10**5)
_MEMORY = functools.partial(pkgutil.resolve_name, "pe_jax.properties.sweeps:MEMORY")


@dataclasses.dataclass(frozen=True)
class SweepConfig(Config):
    task: str = task_field("sweep")
    measure: str = field(
        "turning_point",
        one_of(MEASURES),
        'The sweep computes this of each sinusoid: "turning_point", the offset up to '
        'which ψ decreases, or the violation of "monotonicity" or '
        '"monotonicity_weighted".',
    )
    window: int = field(
        50, _WINDOW, "Monotonicity is measured within this distance, in tokens."
    )
    bases: tuple[float, float] = field(
        (10.0, 1e6),
        several(number(1, 1e9, "(]"), 2, 2),
        "Bases are spaced logarithmically from the first number to the second.",
    )
    base_count: int = field(60, _GRID, "The sweep has this many bases.")
    dims: tuple[float, float] = field(
        (16.0, 1024.0),
        several(number(2, 10**6), 2, 2),
        "Dimensions are even numbers from the first number to the second.",
    )
    dim_count: int = field(60, _GRID, "The sweep has at most this many dimensions.")
    length: int = field(
        512,
        integer(2, 10**6),
        "Offsets are computed from 0 up to this number, without it.",
    )
    memory: int = field(
        _MEMORY,
        integer(1, 2**50),
        "The sweep is computed in chunks that take at most this many bytes per device.",
    )
    vector: str = field("", VECTOR, FORMATS)

    @property
    def even_dims(self) -> np.ndarray:
        """At most `dim_count` even numbers in geometric progression, ascending."""
        ends = np.geomspace(*self.dims, self.dim_count)
        return np.unique(2 * np.round(ends / 2).astype(int))

    def errors(self) -> Iterator[str]:
        # A turning point has no window.
        if self.measure != "turning_point" and self.window >= self.length:
            yield f"window={self.window} must be less than config.length={self.length}."
        if len(self.even_dims) < 2:
            yield (
                f"dims={self.dims} with config.dim_count={self.dim_count} must span two even "
                "numbers or more."
            )


def get_config():
    return config_dict(SweepConfig)
