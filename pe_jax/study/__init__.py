"""The paper's comparison as a study: runs that are planned, executed, measured and judged."""

from pe_jax.study.plan import Run, plan
from pe_jax.study.study import dry_run, execute

__all__ = ["Run", "dry_run", "execute", "plan"]
