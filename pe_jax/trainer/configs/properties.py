"""The properties of position encodings, measured: tables, figures 1 to 7, probes.

Command:  python eval.py --config=configs/properties.py --workdir=RUN --out=R
          python eval.py --config=configs/properties.py --runs='RUNS/*' --out=R
          python eval.py --config=configs/properties.py --encodings=all --out=R    (with table 1)
          python eval.py --config=configs/properties.py --checkpoints=MODEL_FOLDER --out=R
Hardware: one CPU.
Time:     a minute or two for a run of a small BERT.
"""

from __future__ import annotations

import dataclasses
import functools
import pkgutil

from pe_jax.common.schema import Config, config_dict, field, task_field
from pe_jax.common.values import SEED, integer, number, one_of, several, some_of
from pe_jax.common.values import text as any_text
from pe_jax.models.config import PRESETS
from pe_jax.trainer.configs.training import COUNT, FORMATS, VECTOR

_WINDOW = integer(2, 10**6)  # A pair of offsets is the least to compare.
_POSITIONS = integer(3, 10**6)  # Translation invariance compares offsets of three.
_RIDGE = functools.partial(
    pkgutil.resolve_name, "pe_jax.properties.position_regression:RIDGE"
)


@dataclasses.dataclass(frozen=True)
class PropertiesConfig(Config):
    task: str = task_field("properties")
    parts: str = field(
        "",
        some_of("pe_jax.trainer.reports.property_report.report:PARTS"),
        "Parts of the report, separated by commas; empty: all that apply. See docs/measures.",
    )
    length: int = field(
        128, _POSITIONS, "Positions to measure; all of an encoding that has fewer."
    )
    windows: tuple[int, ...] = field(
        (5, 10, 20, 50), several(_WINDOW), "Of local monotonicity."
    )
    seed: int = field(0, SEED, "Draws the random words.")
    attention: str = field(
        "logits",
        one_of(("logits", "weights")),
        'Attention among identical words: "logits" before scaling, or softmaxed "weights".',
    )
    heads: str = field(
        "average", one_of(("average", "each")), "Figures of the average, or of each."
    )
    layer: int = field(
        0, integer(0, 10**4 - 1), "Index of the layer whose attention is measured."
    )
    words: int = field(300, COUNT, "Random words, each repeated to fill an input.")
    kernel: str = field(
        "words",
        one_of(("words", "texts")),
        'Inputs of the offset kernel: "words", where queries of copies of a word meet keys of '
        'copies of another word; or "texts" of random words, attended to as in the model.',
    )
    texts: int = field(
        64, integer(2, 10**6), "Texts to measure trained models on; held-out ones."
    )
    text: str = field(
        "", any_text(), "For other models: as config.data.source; empty: pydoc."
    )
    size: str = field(
        "base", one_of(PRESETS), "Of the BERT around untrained encodings; in table 1."
    )
    seeds: int = field(
        3, integer(1, 10**4), "Random models that table 1 averages over."
    )
    table_window: int = field(10, _WINDOW, "Offsets of local monotonicity in table 1.")
    bands: int = field(
        4, integer(1, 10**4), "Bands of equal size for rotary frequencies."
    )
    massive: float = field(
        5.0,
        number(1, 1e6),
        "Values above this many times their head's mean are massive.",
    )
    ridge: tuple[float, ...] = field(
        _RIDGE, several(number(0, 1e9), least=1), "Penalties of the regression probe."
    )
    family: str = field(
        "",
        one_of("pe_jax.interop.position_tables:MODEL_TYPES", ""),
        "Family of a position table whose file does not name it.",
    )
    score_examples: int = field(
        256, COUNT, "Held-out examples that each checkpoint is scored on."
    )
    scores: str = field(
        "", any_text(), "CSV of scores to correlate with; empty: those of the runs."
    )
    vector: str = field("", VECTOR, FORMATS)


def get_config():
    return config_dict(PropertiesConfig)
