"""The paper's tables 2 and 3, made from finished fine-tuning runs."""

from pe_jax.reports.paper_tables.build import build, tables_page, write_tables
from pe_jax.reports.paper_tables.cells import Cell, Comparison, mean_over_tasks, welch
from pe_jax.reports.paper_tables.columns import Column
from pe_jax.reports.paper_tables.formats import csv_text, latex, markdown
from pe_jax.reports.paper_tables.results import Results, pool, read
from pe_jax.reports.paper_tables.table import Table

__all__ = [
    "Cell",
    "Column",
    "Comparison",
    "Results",
    "Table",
    "build",
    "csv_text",
    "latex",
    "markdown",
    "mean_over_tasks",
    "pool",
    "read",
    "tables_page",
    "welch",
    "write_tables",
]
