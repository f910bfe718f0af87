"""Keys that the configs of pretraining and fine-tuning share, and what their values may be.

Upper ends leave room for any run that a machine of today could make; they are there for slips of
the keyboard.
"""

from __future__ import annotations

from pe_jax.schema import Relation
from pe_jax.training.optimizer import OPTIMIZERS
from pe_jax.values import Kind, integer, number, one_of, optional, text

COUNT = integer(1, 2**31 - 1)
COUNT_OR_ZERO = integer(0, 2**31 - 1)
EPOCHS = number(0, 10**6)
LENGTH = integer(3, 10**6)  # Tokens of an input: one between the special ones.
ROWS = integer(1, 10**7)
POSITION = text("Give the name of an encoding, or none.")
RESIZE = one_of(("", "interpolate", "repeat"))  # Methods of `resize_table` for longer tables.
RATE = number(0, 1e9)

# Learning rate, and what decays or clips, of either optimizer. b2 above the limit is 1 in float32.
OPTIMIZER: dict[str, Kind] = {
    "name": one_of(OPTIMIZERS),
    "learning_rate": RATE,
    "frequency_learning_rate": optional(RATE),
    "warmup": number(0, 1),
    "weight_decay": RATE,
    "b1": number(0, 1 - 1e-7),
    "b2": number(0, 1 - 1e-7),
    "epsilon": number(1e-38, 1),
    "clip_norm": RATE,
}
CADENCE: dict[str, Kind] = {
    "log_every": COUNT_OR_ZERO,
    "eval_every": COUNT_OR_ZERO,
    "checkpoint_every": COUNT_OR_ZERO,
    "keep_checkpoints": integer(1, 10**6),
}
FREQUENCY_RATE = Relation(
    ("optimizer.learning_rate", "optimizer.frequency_learning_rate"),
    lambda rate, own: own is None or rate > 0,
    "config.optimizer.frequency_learning_rate is scaled from config.optimizer.learning_rate, which "
    "then has to be above 0: leave it None to stop both.",
)

SIZES = ("num_layers", "hidden_size", "num_heads", "intermediate_size")
MODEL_KEYS = (
    "max_length", "dropout_rate", "attention_dropout_rate", "initializer_stddev", "dtype",
    "attention", "scan_layers", "remat",
)  # fmt: skip


def divides(rows: int, parts: int) -> bool:
    return rows % parts == 0
