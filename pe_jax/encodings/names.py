"""The names that configs use, and what each stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pe_jax.encodings import absolute, base, relative
from pe_jax.encodings.base import PositionEncoding
from pe_jax.errors import did_you_mean


class Sizes(NamedTuple):
    """The sizes of the model that an encoding is built for."""

    hidden_size: int
    head_size: int
    num_heads: int
    max_length: int
    clip: int
    sinusoid_scale: float


# Each single encoding, built for a model's sizes. A new encoding is a new line here.
SINGLE: dict[str, Callable[[Sizes], PositionEncoding]] = {
    "none": lambda s: base.none(),
    "learned_absolute": lambda s: absolute.learned_absolute(s.max_length, s.hidden_size),
    "sinusoidal_absolute": lambda s: absolute.sinusoidal_absolute(
        s.hidden_size, scale=s.sinusoid_scale
    ),
    "learnable_sinusoidal_absolute": lambda s: absolute.learnable_sinusoidal_absolute(
        s.hidden_size, scale=s.sinusoid_scale
    ),
    "learned_relative": lambda s: relative.learned_relative(s.head_size, clip=s.clip),
    "sinusoidal_relative": lambda s: relative.sinusoidal_relative(s.head_size, clip=s.clip),
    "learnable_sinusoidal_relative": lambda s: relative.learnable_sinusoidal_relative(
        s.head_size, clip=s.clip
    ),
}

RELATIVE = ("learned_relative", "sinusoidal_relative", "learnable_sinusoidal_relative")

# The paper's rows of tables 2 and 3, in its order.
PAPER: tuple[str, ...] = (
    *SINGLE,
    *(
        f"{left}+{right}"
        for left in ("learned_absolute", "learnable_sinusoidal_absolute")
        for right in RELATIVE
    ),
)


def from_name(
    name: str,
    *,
    hidden_size: int,
    head_size: int,
    num_heads: int,
    max_length: int,
    clip: int = 64,
    sinusoid_scale: float = 1.0,
) -> PositionEncoding:
    """The encoding that `name` stands for: one of `SINGLE`, or several joined by `+`.

    Args:
      name: such as `"learned_absolute+sinusoidal_relative"`.
      hidden_size: D, the dimension of absolute position vectors.
      head_size: d, the dimension of relative position vectors.
      num_heads: H; the encodings of the paper share one table among heads and ignore it.
      max_length: rows of a learned absolute table.
      clip: relative offsets are clipped to -clip .. clip.
      sinusoid_scale: of absolute sinusoids, see `sinusoidal_absolute`.

    Raises:
      ValueError: for an unknown name (the message lists the near ones), or one used twice.
    """
    sizes = Sizes(hidden_size, head_size, num_heads, max_length, clip, sinusoid_scale)
    singles = [part.strip() for part in name.split("+")]
    for part in singles:
        if part not in SINGLE:
            raise ValueError(
                f"Unknown position encoding {part!r} in {name!r}.{did_you_mean(part, SINGLE)} "
                f"Known, to be joined with '+': {', '.join(SINGLE)}."
            )
    return base.combine(*(SINGLE[part](sizes) for part in singles))
