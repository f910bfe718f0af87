"""Whole-word masking for the masked language model (Devlin et al. 2018, section 3.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pe_jax.data.tokenizer import Vocabulary


class Masked(NamedTuple):
    """tokens `[L]`, some replaced; their positions `[n]`, ascending; labels `[n]`, the true ids."""

    tokens: np.ndarray
    positions: np.ndarray
    labels: np.ndarray


def mask_words(
    tokens: np.ndarray,
    maskable: np.ndarray,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
    *,
    rate: float = 0.15,
    max_predictions: int = 20,
) -> Masked:
    """Masks whole words: a fraction `rate` of the maskable tokens, at most `max_predictions`.

    Of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay unchanged. A word that
    would exceed the limit is skipped for a shorter one; at least one token is chosen if any word
    fits.

    Args:
      tokens: `[L]` ids.
      maskable: `[L]` bool, False at special tokens and padding.
    """
    at = np.flatnonzero(maskable)
    wanted = min(max_predictions, max(1, round(rate * len(at))))
    # A word begins at a token that does not continue one, or after a gap (a special token).
    begins = ~vocabulary.continues[tokens[at]] | (np.diff(at, prepend=-2) > 1)
    bounds = np.append(np.flatnonzero(begins), len(at))
    chosen: list[np.ndarray] = []
    room = wanted
    for word in rng.permutation(len(bounds) - 1):
        size = bounds[word + 1] - bounds[word]
        if size <= room:
            chosen.append(at[bounds[word] : bounds[word + 1]])
            room -= size
            if not room:
                break
    positions = np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
    labels = tokens[positions]
    draw = rng.random(len(positions))
    replaced = np.where(draw < 0.8, vocabulary.mask, labels)
    random = rng.choice(vocabulary.ordinary, len(positions))
    masked = tokens.copy()
    masked[positions] = np.where(draw >= 0.9, random, replaced)
    return Masked(masked, positions, labels)
