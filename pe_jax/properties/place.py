"""A loss by the place of the token in its text: are tokens at the ends predicted worse?"""

from __future__ import annotations

import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.properties.estimate import Estimate, over_texts
from pe_jax.shapes import Array, Float, Int


class Places(NamedTuple):
    """Losses by place, as means over texts.

    Attributes:
      bins: `[K]`, of places next to each other.
      first, last: the first and the last bin less the middle, the middle half of the places. The
        difference is taken in each text, so that how hard a text is does not count as an error.
    """

    bins: Estimate
    first: Estimate
    last: Estimate


def bin_edges(places: int, bins: int) -> Int[np.ndarray, " E"]:
    """The first place of each bin, and the end of the last; as many bins as places at most."""
    return np.linspace(0, places, min(bins, places) + 1).round().astype(int)


@partial(jax.jit, static_argnames="bins")
def by_place(losses: Float[Array, "N P"], *, bins: int = 16) -> Places:
    """Losses of the tokens at P places of N texts, in bins of about equal width."""
    places = losses.shape[1]
    edges = bin_edges(places, bins)
    each = jnp.stack([losses[:, a:b].mean(1) for a, b in itertools.pairwise(edges)], axis=1)
    middle = losses[:, places // 4 : places - places // 4].mean(1)
    ends = over_texts(each[:, np.array([0, -1])] - middle[:, None])
    return Places(over_texts(each), *(Estimate(*one) for one in zip(*ends, strict=True)))
