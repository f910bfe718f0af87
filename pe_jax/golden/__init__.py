"""Golden vectors: what position code has to compute, for every published config, in float64.

`write` makes files that need no pe_jax to be read; `check` compares other code with them.
"""

from pe_jax.golden.checking import Failure, check, report
from pe_jax.golden.files import write

__all__ = ["Failure", "check", "report", "write"]
