"""The catalogue of encodings: declared and measured properties, requirements, checks and costs."""

from catalogue.cost import Cost, costs, memory
from catalogue.entries import SIZES, VARIANTS, Entry, rows
from catalogue.export import exports
from catalogue.linear import linear
from catalogue.measured import Properties, Requirements, measure
from catalogue.pages import pages
from catalogue.results import CHECKS, Measured, Results, read, write

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
