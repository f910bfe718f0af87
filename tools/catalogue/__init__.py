"""The catalogue of encodings: declared and measured properties, requirements, checks and costs."""

from catalogue.cost import Cost, costs, exports, linear, memory
from catalogue.entries import SIZES, VARIANTS, Entry, rows
from catalogue.measured import (
    CHECKS,
    Measured,
    Properties,
    Requirements,
    Results,
    measure,
    read,
    write,
)
from catalogue.pages import pages

__all__ = [
    "CHECKS",
    "SIZES",
    "VARIANTS",
    "Cost",
    "Entry",
    "Measured",
    "Properties",
    "Requirements",
    "Results",
    "costs",
    "exports",
    "linear",
    "measure",
    "memory",
    "pages",
    "read",
    "rows",
    "write",
]
