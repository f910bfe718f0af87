"""The paper's comparison as a plan of cells: runs that are made, measured and judged."""

from pe_jax.study.plan import Cell, cells
from pe_jax.study.study import dry_run, run

__all__ = ["Cell", "cells", "dry_run", "run"]
