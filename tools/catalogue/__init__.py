"""The catalogue of encodings: what they say of themselves, what is measured, what they cost."""

from catalogue.catalogue_page import CHECKS, Measured, page
from catalogue.cost import Cost, costs
from catalogue.entries import SIZES, VARIANTS, Entry, rows
from catalogue.measured import Properties, Requirements, measure

__all__ = [
    "CHECKS",
    "SIZES",
    "VARIANTS",
    "Cost",
    "Entry",
    "Measured",
    "Properties",
    "Requirements",
    "costs",
    "measure",
    "page",
    "rows",
]
