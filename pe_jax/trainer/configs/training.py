"""Keys that the configs of pretraining and fine-tuning share, and ranges of their values.

Upper ends of ranges leave room for any run that a machine of today could make; they are there for
slips of the keyboard.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from pe_jax.common.schema import Config, field
from pe_jax.common.values import integer, number, one_of, optional, several, text

COUNT = integer(1, 2**31 - 1)
COUNT_OR_ZERO = integer(0, 2**31 - 1)
EPOCHS = number(0, 10**6)
LENGTH = integer(3, 10**6)  # Tokens of an input: one between the special ones.
ROWS = integer(1, 10**7)
# Methods of `resize_table` for longer tables.
RESIZE = one_of(("", "interpolate", "repeat"))
HELD_OUT = number(0, 0.5)
VECTOR = one_of("pe_jax.trainer.figures.style:VECTOR", "")
FORMATS = 'Every figure is written in this format as well: "pdf" or "svg"; empty writes PNG only.'
ACCUMULATION = (
    "Each step is split into this many micro-batches: it has the memory of one and the gradients "
    "of all."
)
_RATE = number(0, 1e9)
_ADAM = number(0, 1 - 1e-7)  # Above the limit it is 1 in float32.


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Config):
    """Learning rate, and what decays or clips."""

    name: str = field(
        "adamw",
        one_of(("adamw", "lamb", "lion", "muon", "nadamw", "sgd")),
        'This optimizer updates the parameters. "lamb" is for batches of thousands of sequences; '
        '"muon" is "nadamw" for all but the matrices of layers; "sgd" has a momentum '
        "of b1. All have the same weight decay.",
    )
    learning_rate: float = field(
        1e-4, _RATE, "The learning rate rises to this value, then falls to 0."
    )
    schedule: str = field(
        "linear",
        one_of(("linear", "cosine", "wsd")),
        'The learning rate falls after the warmup in a line ("linear") or half a '
        'cosine ("cosine"), or stays and falls in a line at the end ("wsd": warmup, '
        "stable, decay).",
    )
    frequency_learning_rate: float | None = field(
        None,
        optional(_RATE),
        "Learned frequencies of sinusoids have this learning rate; None gives them "
        "that of the other parameters.",
    )
    warmup: float = field(
        0.1, number(0, 1), "The learning rate rises in this first fraction of steps."
    )
    decay: float = field(
        0.1,
        number(0, 1),
        "The learning rate of wsd falls in this last fraction of steps.",
    )
    weight_decay: float = field(
        0.01,
        _RATE,
        "Each step shrinks parameters by the learning rate times this, but for "
        "biases, norms and frequencies.",
    )
    b1: float = field(
        0.9,
        _ADAM,
        "Moving averages of gradients (first moments) decay by this factor at each "
        "step.",
    )
    b2: float = field(
        0.999,
        _ADAM,
        "Moving averages of squared gradients (second moments) decay by this factor "
        "at each step: 0.999 in BERT; 0.98 suits short runs.",
    )
    epsilon: float = field(
        1e-6,
        number(1e-38, 1),
        "The optimizer adds this number to the root of second moments.",
    )
    clip_norm: float = field(
        1.0,
        _RATE,
        "Gradients of a larger norm are scaled down to this one; 0 turns that off.",
    )
    rates: tuple[str, ...] = field(
        (),
        several(text("Give PATTERN=RATIO.")),
        "Parameters whose path matches a pattern have the learning rate times this "
        'ratio: ("bert/token/*=0", "bert/position/*=5"). 0 freezes them; the last '
        "pattern that matches counts.",
    )

    @property
    def ratios(self) -> dict[str, float]:
        """The ratio of the learning rate by pattern of the parameters' paths."""
        ratios = {}
        for rate in self.rates:
            pattern, _, ratio = rate.rpartition("=")
            ratios[pattern] = float(ratio)
        return ratios

    def errors(self) -> Iterator[str]:
        patterns = [rate.rpartition("=")[0] for rate in self.rates]
        for rate in self.rates:
            pattern, _, ratio = rate.rpartition("=")
            if patterns.count(pattern) > 1:
                yield f"rates has {pattern!r} twice: give one ratio for it."
            if not (pattern and _is_ratio(ratio)):
                yield (
                    f"rates are PATTERN=RATIO, a glob over paths of parameters and a number of at "
                    f"least 0, such as 'bert/token/*=0'; got {rate!r}."
                )
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            yield (
                f"warmup={self.warmup} and decay={self.decay} overlap: as fractions of the same "
                "steps they must be at most 1 together. Lower one of them."
            )
        if self.frequency_learning_rate is not None and not self.learning_rate:
            yield (
                f"frequency_learning_rate={self.frequency_learning_rate} is scaled from "
                "config.optimizer.learning_rate, which then has to be above 0: leave it None to "
                "stop both."
            )


def _is_ratio(text: str) -> bool:
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False
