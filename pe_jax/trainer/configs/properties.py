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
        "The report has these parts, separated by commas; if this is empty, it has "
        "all that apply (docs/measures).",
    )
    length: int = field(
        128,
        _POSITIONS,
        "This many positions are measured, or all of an encoding that has fewer.",
    )
    windows: tuple[int, ...] = field(
        (5, 10, 20, 50),
        several(_WINDOW),
        "Local monotonicity is measured within these distances, in tokens.",
    )
    seed: int = field(0, SEED, "The random words depend on this number.")
    attention: str = field(
        "logits",
        one_of(("logits", "weights")),
        'Attention among identical words is measured by its "logits" before scaling, '
        'or by its "weights" after the softmax.',
    )
    heads: str = field(
        "average",
        one_of(("average", "each")),
        'Figures show the "average" of the heads, or "each" of them.',
    )
    layer: int = field(
        0,
        integer(0, 10**4 - 1),
        "Attention is measured in the layer of this index, from 0.",
    )
    words: int = field(
        300,
        COUNT,
        "Identical words are measured with this many random words, each repeated to "
        "fill an input.",
    )
    kernel: str = field(
        "words",
        one_of(("words", "texts")),
        'The offset kernel is measured with "words", where queries of copies of a '
        'word meet keys of copies of another word, or with "texts" of random words, '
        "attended to as in the model.",
    )
    texts: int = field(
        64,
        integer(2, 10**6),
        "Trained models are measured on this many held-out texts.",
    )
    text: str = field(
        "",
        any_text(),
        "Models without a run are measured on this text, given as config.data.source; "
        "empty means pydoc.",
    )
    size: str = field(
        "base",
        one_of(PRESETS),
        "Untrained encodings are measured in a random BERT of this size, for table 1.",
    )
    seeds: int = field(
        3, integer(1, 10**4), "Table 1 is the mean over this many random models."
    )
    table_window: int = field(
        10, _WINDOW, "Table 1 has local monotonicity within this distance, in tokens."
    )
    bands: int = field(
        4,
        integer(1, 10**4),
        "Rotary frequencies are grouped into this many bands of equal size.",
    )
    massive: float = field(
        5.0,
        number(1, 1e6),
        "Values above this many times their head's mean are called massive.",
    )
    ridge: tuple[float, ...] = field(
        _RIDGE,
        several(number(0, 1e9), least=1),
        "The regression probe is fitted with each of these penalties.",
    )
    family: str = field(
        "",
        one_of("pe_jax.interop.position_tables:MODEL_TYPES", ""),
        "A position table whose file names no family is of this one.",
    )
    score_examples: int = field(
        256, COUNT, "Each checkpoint is scored on this many held-out examples."
    )
    scores: str = field(
        "",
        any_text(),
        "Properties are correlated with the scores in this CSV file; if this is "
        "empty, with those of the runs.",
    )
    vector: str = field("", VECTOR, FORMATS)


def get_config():
    return config_dict(PropertiesConfig)
