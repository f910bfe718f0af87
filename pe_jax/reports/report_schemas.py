"""What the configs of eval.py may hold: every key, its values, their relations."""

from __future__ import annotations

from pe_jax.figures.style import VECTOR
from pe_jax.interop.position_tables import MODEL_TYPES
from pe_jax.length_generalisation import TASKS
from pe_jax.models.config import FIELDS, PRESETS
from pe_jax.reports.property_report.offset_kernels import INPUTS
from pe_jax.reports.property_report.report import PARTS
from pe_jax.reports.property_report.words import HEADS, QUANTITIES
from pe_jax.reports.sinusoid_sweep import MEASURES, even_dimensions
from pe_jax.schema import Relation, Schema, within
from pe_jax.tasks.training_schema import COUNT, LENGTH, RESIZE, ROWS, SIZES, divides
from pe_jax.values import (
    FLAG,
    SEED,
    integer,
    number,
    one_of,
    optional,
    pair,
    several,
    some_of,
    text,
)

_VECTOR = one_of(("", *VECTOR))
_WINDOW = integer(2, 10**6)  # A pair of offsets is the least to compare.
_POSITIONS = integer(3, 10**6)  # Translation invariance compares offsets of three.
_GRID = integer(2, 10**5)

REPORTS: dict[str, Schema] = {
    "export": Schema({"seed": optional(SEED)}),
    "length_generalisation": Schema(
        {
            "tasks": some_of(TASKS),
            "seeds": several(SEED, least=1),
            "length": integer(1, 10**4),
            "test_lengths": several(integer(1, 10**5), least=1),
            "test_examples": COUNT,
            "test_batch_size": ROWS,
            **within("model", {size: FIELDS[size] for size in SIZES}),
            "steps": COUNT,
            "batch_size": ROWS,
            "learning_rate": number(0, 1e3, "(]"),
            "weight_decay": number(0, 1e3),
            "vector": _VECTOR,
        },
        (
            Relation(
                ("test_examples", "test_batch_size"),
                divides,
                "config.test_examples is a multiple of config.test_batch_size.",
            ),
            Relation(
                ("length", "test_lengths"),
                lambda length, lengths: min(lengths) <= length < max(lengths),
                "config.test_lengths has lengths up to config.length, and beyond.",
            ),
            Relation(
                ("model.hidden_size", "model.num_heads"),
                divides,
                "config.model.hidden_size is a multiple of config.model.num_heads.",
            ),
        ),
    ),
    "lengths": Schema({"lengths": several(LENGTH), "resize": RESIZE}),
    "properties": Schema(
        {
            "parts": some_of(PARTS),
            "length": _POSITIONS,
            "windows": several(_WINDOW),
            "seed": SEED,
            "attention": one_of(QUANTITIES),
            "heads": one_of(HEADS),
            "layer": integer(0, 10**4 - 1),
            "words": COUNT,
            "kernel": one_of(INPUTS),
            "texts": integer(2, 10**6),
            "text": text(),
            "size": one_of(PRESETS),
            "seeds": integer(1, 10**4),
            "table_window": _WINDOW,
            "bands": integer(1, 10**4),
            "massive": number(1, 1e6),
            "ridge": several(number(0, 1e9), least=1),
            "family": one_of(("", *MODEL_TYPES)),
            "score_examples": COUNT,
            "scores": text(),
            "vector": _VECTOR,
        },
    ),
    "sweep": Schema(
        {
            "measure": one_of(MEASURES),
            "window": _WINDOW,
            "bases": pair(number(1, 1e9, "(]")),
            "base_count": _GRID,
            "dims": pair(number(2, 10**6)),
            "dim_count": _GRID,
            "length": integer(2, 10**6),
            "memory": integer(1, 2**50),
            "vector": _VECTOR,
        },
        (
            Relation(
                ("measure", "window", "length"),
                lambda measure, window, length: not MEASURES[measure].windowed or window < length,
                "config.window is below config.length, which it is a part of.",
            ),
            Relation(
                ("bases",),
                lambda bases: bases[0] != bases[1],
                "config.bases are two different ones.",
            ),
            Relation(
                ("dims", "dim_count"),
                lambda dims, count: len(even_dimensions(dims, count)) > 1,
                "config.dims span two even numbers or more.",
            ),
        ),
    ),
    "tables": Schema(
        {
            "baseline": text("Give the name of an encoding."),
            "p_value": number(0, 1, "()"),
            "all_rows": FLAG,
        }
    ),
}
