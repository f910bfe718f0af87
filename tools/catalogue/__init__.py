"""The catalogue of encodings: declared and measured properties, requirements, checks and costs."""

from catalogue.catalogue_page import CHECKS, page
from catalogue.cost import Cost, costs
from catalogue.entries import SIZES, VARIANTS, Entry, rows
from catalogue.linear import linear
from catalogue.measured import Properties, Requirements, measure
from catalogue.results import Measured, Results, read, write

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
    "linear",
    "measure",
    "page",
    "read",
    "rows",
    "write",
]
