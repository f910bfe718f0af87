"""The encodings of the comparison, with the options that they need in a small model."""

from __future__ import annotations

from pathlib import Path

from pe_jax import encodings
from pe_jax.encodings import PositionEncoding
from pe_jax.encodings.parser import for_text

FOLDER = Path(__file__).resolve().parent  # Of the records, too.

# Absolute sinusoids of their own size, 1, dominate the token embeddings of a model this small.
OPTIONS = {
    "sinusoidal_absolute": "sinusoidal_absolute(scale=0.03)",
    "learnable_sinusoidal_absolute": "learnable_sinusoidal_absolute(scale=0.03)",
}
# Usual options and combinations.
OTHERS = (
    "rope(fraction=0.5)", "rope(proportional=0.5)", "rope(base=1000000)", "rope(learnable=True)",
    "learned_absolute+rope", "learned_absolute+learned_relative", "rope+alibi", "rope+ssmax",
    "cycle(rope, rope, rope+window(max_distance=64))", "cycle(rope, rope, rope, none)",
    "rove(rope)", "lerope(rope)", "randomized(rope)",
    # These tell left from right, unlike `alibi` and `fire` by default.
    "alibi(directed=True)", "fire(directed=True)",
)  # fmt: skip
# Compared with three seeds: the encodings of the README and of docs/which-encoding.md, and those
# that come close to the best.
IN_DEPTH = (
    "t5", "learned_relative", "learned_absolute", "tisa", "dynamic_position_bias", "none", "rope",
    "alibi", "rope+alibi", "sinusoidal_relative", "sinusoidal_absolute(scale=0.03)", "kerple",
    "transformer_xl", "fire", "deberta", "tupe", "relative_key_query", "rope(fraction=0.5)",
    "learnable_sinusoidal_relative", "inkling",
)  # fmt: skip
# Trained for ten million tokens as well: the control, then those that the first runs have to tell
# apart, then the others.
TEN_MILLION = (
    "none", "rope", "learned_absolute", "t5", "learned_relative", "alibi", "rope+alibi",
    "sinusoidal_absolute(scale=0.03)", "transformer_xl", "dynamic_position_bias",
)  # fmt: skip
SECOND_SEEDS = ("none", "rope", "learned_absolute", "t5")  # Of TEN_MILLION.
# These change attention without telling positions apart.
NOT_POSITIONS = {
    "log_n",
    "ssmax",
    "sink",
    "window",
    "chunks",
    "causal",
    "dape",
    "dape_v2",
}


def encodings_to_compare() -> list[str]:
    """Return the names of all encodings of text, controls first."""
    first = ["none", "learned_absolute", "rope", "learned_relative", "t5", "alibi"]
    names = [*first, *OTHERS[:2], *for_text(), *OTHERS]
    return list(
        dict.fromkeys(OPTIONS.get(x, x) for x in names if x not in NOT_POSITIONS)
    )


def encoding_of(name: str) -> PositionEncoding:
    """Return an encoding at the sizes of the models that are compared."""
    return encodings.from_name(
        name, hidden_size=256, head_size=64, num_heads=4, max_length=512
    )
