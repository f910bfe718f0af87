"""Keys of the configs for eval.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from pe_jax.configs.model import HEADS, INTERMEDIATE, LAYERS, PRESETS, WIDTH
from pe_jax.configs.training import COUNT, LENGTH, RESIZE, ROWS
from pe_jax.schema import Config, key, part
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
)
from pe_jax.values import (
    text as any_text,
)

_WINDOW = integer(2, 10**6)  # A pair of offsets is the least to compare.
_POSITIONS = integer(3, 10**6)  # Translation invariance compares offsets of three.
_GRID = integer(2, 10**5)
_VECTOR = one_of("pe_jax.figures.style:VECTOR", "")
_FORMATS = '"pdf" or "svg" writes every figure in that format as well.'


@dataclasses.dataclass(frozen=True)
class ExportConfig(Config):
    TASKS: ClassVar[tuple[str, ...]] = ("export",)

    task: str = key("export", one_of(TASKS))
    seed: int | None = key(None, optional(SEED), "Which seed of a run that has several.")


@dataclasses.dataclass(frozen=True)
class LengthsConfig(Config):
    TASKS: ClassVar[tuple[str, ...]] = ("lengths",)

    task: str = key("lengths", one_of(TASKS))
    lengths: tuple[int, ...] = key(
        (128, 256, 384, 512), several(LENGTH), "Lengths of inputs, in tokens."
    )
    resize: str = key("", RESIZE, '"interpolate" or "repeat".')


@dataclasses.dataclass(frozen=True)
class TablesConfig(Config):
    TASKS: ClassVar[tuple[str, ...]] = ("tables",)

    task: str = key("tables", one_of(TASKS))
    baseline: str = key(
        "learned_absolute",
        any_text("Give the name of an encoding."),
        "The encoding that the others are tested against.",
    )
    p_value: float = key(
        0.05, number(0, 1, "()"), "Welch's two-sided t-test marks differences below it."
    )
    all_rows: bool = key(False, FLAG, "Also rows of the paper's 13 encodings that have no run.")


@dataclasses.dataclass(frozen=True)
class SizesConfig(Config):
    """The sizes of a BERT."""

    num_layers: int = key(2, LAYERS)
    hidden_size: int = key(64, WIDTH)
    num_heads: int = key(4, HEADS)
    intermediate_size: int = key(256, INTERMEDIATE)

    def faults(self) -> Iterator[str]:
        if self.hidden_size % self.num_heads:
            yield (
                f"hidden_size={self.hidden_size} must be a multiple of num_heads={self.num_heads}: "
                "change one of them."
            )


@dataclasses.dataclass(frozen=True)
class LengthGeneralisationConfig(Config):
    TASKS: ClassVar[tuple[str, ...]] = ("length_generalisation",)

    task: str = key("length_generalisation", one_of(TASKS))
    tasks: str = key(
        "",
        some_of("pe_jax.length_generalisation:TASKS"),
        "Separated by commas; empty means all 19.",
    )
    seeds: tuple[int, ...] = key(
        (0, 1, 2), several(SEED, least=1), "Of parameters and data; one program."
    )
    length: int = key(20, integer(1, 10**4), "Symbols of the longest training inputs.")
    test_lengths: tuple[int, ...] = key(
        (10, 20, 30, 40, 80, 160), several(integer(1, 10**5), least=1)
    )
    test_examples: int = key(256, COUNT, "Of each length.")
    test_batch_size: int = key(32, ROWS)
    model: SizesConfig = part(SizesConfig)
    steps: int = key(1_000, COUNT)
    batch_size: int = key(32, ROWS, "Of each seed.")
    learning_rate: float = key(3e-3, number(0, 1e3, "(]"))
    weight_decay: float = key(0.01, number(0, 1e3))
    vector: str = key("", _VECTOR, _FORMATS)

    def faults(self) -> Iterator[str]:
        if self.test_examples % self.test_batch_size:
            yield (
                f"test_examples={self.test_examples} must be a multiple of config.test_batch_size="
                f"{self.test_batch_size}: change one of them."
            )
        if not min(self.test_lengths) <= self.length < max(self.test_lengths):
            yield (
                f"test_lengths={self.test_lengths} must have lengths up to config.length="
                f"{self.length} and longer ones."
            )


def _ridge() -> tuple[float, ...]:
    from pe_jax.properties.position_regression import RIDGE

    return RIDGE


@dataclasses.dataclass(frozen=True)
class PropertiesConfig(Config):
    TASKS: ClassVar[tuple[str, ...]] = ("properties",)

    task: str = key("properties", one_of(TASKS))
    parts: str = key(
        "",
        some_of("pe_jax.reports.property_report.report:PARTS"),
        "Separated by commas; empty means all that apply. See the README.",
    )
    length: int = key(128, _POSITIONS, "Positions to measure, or all of a shorter encoding.")
    windows: tuple[int, ...] = key(
        (5, 10, 20, 50), several(_WINDOW), "Offsets of local monotonicity."
    )
    seed: int = key(0, SEED, "Draws the random words.")
    attention: str = key(
        "logits",
        one_of("pe_jax.reports.property_report.words:QUANTITIES"),
        'Of identical words, before scaling; or softmaxed "weights".',
    )
    heads: str = key(
        "average",
        one_of("pe_jax.reports.property_report.words:HEADS"),
        'Figures of it, or of "each" head.',
    )
    layer: int = key(0, integer(0, 10**4 - 1), "Whose attention.")
    words: int = key(300, COUNT, "Random ones, each repeated for an input.")
    kernel: str = key(
        "words",
        one_of("pe_jax.reports.property_report.offset_kernels:INPUTS"),
        'Offset kernel, in the same number of inputs: "words", copies of one word whose queries '
        'meet the keys of copies of another, or "texts" of random words as the model itself '
        "attends to them.",
    )
    texts: int = key(
        64,
        integer(2, 10**6),
        "Trained models are measured on as many: of a run, its held-out ones.",
    )
    text: str = key(
        "", any_text(), "Of others: a source as config.data.source of training; empty: pydoc."
    )
    size: str = key(
        "base", one_of(PRESETS), "Untrained encodings (and table 1): the BERT around them."
    )
    seeds: int = key(3, integer(1, 10**4), "Random models that table 1 averages over.")
    table_window: int = key(10, _WINDOW, "Offsets of its local monotonicity.")
    bands: int = key(
        4, integer(1, 10**4), "Of the frequencies of a rotary encoding, equally large."
    )
    massive: float = key(
        5.0,
        number(1, 1e6),
        "Massive values of queries and keys: as many times their head's mean.",
    )
    ridge: tuple[float, ...] = key(
        _ridge, several(number(0, 1e9), least=1), "Penalties of the regression probe."
    )
    family: str = key(
        "",
        one_of("pe_jax.interop.position_tables:MODEL_TYPES", ""),
        "For tables whose file does not tell: bert, roberta or gpt2.",
    )
    score_examples: int = key(256, COUNT, "Held-out examples that each checkpoint is scored on.")
    scores: str = key(
        "", any_text(), "CSV of scores to correlate with; empty uses the runs' held-out scores."
    )
    vector: str = key("", _VECTOR, _FORMATS)


def _memory() -> int:
    from pe_jax.properties.sweeps import MEMORY

    return MEMORY


@dataclasses.dataclass(frozen=True)
class SweepConfig(Config):
    TASKS: ClassVar[tuple[str, ...]] = ("sweep",)

    task: str = key("sweep", one_of(TASKS))
    measure: str = key(
        "turning_point",
        one_of("pe_jax.reports.sinusoid_sweep:MEASURES"),
        "Or monotonicity, monotonicity_weighted (violations).",
    )
    window: int = key(50, _WINDOW, "Offsets of monotonicity.")
    bases: tuple[float, float] = key(
        (10.0, 1e6),
        pair(number(1, 1e9, "(]")),
        "From, to; spaced evenly on a logarithmic scale.",
    )
    base_count: int = key(60, _GRID)
    dims: tuple[float, float] = key(
        (16.0, 1024.0), pair(number(2, 10**6)), "From, to; even numbers."
    )
    dim_count: int = key(60, _GRID)
    length: int = key(512, integer(2, 10**6), "Offsets 0 .. length - 1.")
    memory: int = key(_memory, integer(1, 2**50), "Bytes per device.")
    vector: str = key("", _VECTOR, _FORMATS)

    @property
    def even_dims(self) -> np.ndarray:
        """At most `dim_count` even numbers in geometric progression, ascending."""
        ends = np.geomspace(*self.dims, self.dim_count)
        return np.unique(2 * np.round(ends / 2).astype(int))

    def faults(self) -> Iterator[str]:
        # A turning point has no window.
        if self.measure != "turning_point" and self.window >= self.length:
            yield f"window={self.window} must be less than config.length={self.length}."
        if self.bases[0] == self.bases[1]:
            yield f"bases={self.bases} must be two different numbers."
        if len(self.even_dims) < 2:
            yield (
                f"dims={self.dims} with config.dim_count={self.dim_count} must span two even "
                "numbers or more."
            )


REPORTS: tuple[type[Config], ...] = (
    ExportConfig,
    LengthGeneralisationConfig,
    LengthsConfig,
    PropertiesConfig,
    SweepConfig,
    TablesConfig,
)
