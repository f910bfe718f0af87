"""A table of results: rows of encodings, columns of scores, and what is printed around them."""

from __future__ import annotations

from typing import NamedTuple

from pe_jax.reports.paper_tables.cells import Cell

TITLES = {"glue": "GLUE (table 2)", "squad": "SQuAD (table 3)"}
DECIMALS = {"glue": 1, "squad": 2}  # As the paper prints them.


class Table(NamedTuple):
    """`rows`: encoding -> a cell for each of `keys`, None where there is no score.

    `keys` name columns in files, `labels` in print; `usual` is the number of seeds that is not
    printed in the cells.
    """

    name: str
    keys: list[str]
    labels: list[str]
    rows: dict[str, list[Cell | None]]
    baseline: str
    p_value: float
    usual: int
    notes: list[str]

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def decimals(self) -> int:
        return DECIMALS[self.name]
