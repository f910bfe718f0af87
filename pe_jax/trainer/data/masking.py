"""Masked words, which a masked language model predicts (Devlin et al. 2018, section 3.1)."""

from __future__ import annotations

import numpy as np

from pe_jax.interop.special_tokens import Vocabulary

# Shape and dtype of each array of an example, by name.
ElementSpec = dict[str, tuple[tuple[int, ...], type[np.generic]]]


def masked_spec(length: int, max_predictions: int) -> ElementSpec:
    """Return shape and dtype of what `mask_words` returns."""
    return {
        "tokens": ((length,), np.int32),
        "masked_positions": ((max_predictions,), np.int32),
        "masked_tokens": ((max_predictions,), np.int32),
        "masked_weights": ((max_predictions,), np.float32),
    }


def mask_words(
    tokens: np.ndarray,
    begins: np.ndarray,
    maskable: np.ndarray,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
    max_predictions: int,
    rate: float = 0.15,
) -> dict[str, np.ndarray]:
    """Mask whole words: a fraction `rate` of the maskable tokens, at most `max_predictions`.

    Of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay unchanged. A word that
    would exceed the limit is skipped for a shorter one; at least one token is chosen if any fits.

    Args:
      tokens, begins, maskable: `[L]` ids, True where one begins a word, and False at special tokens
        and padding.

    Returns:
      tokens `[L]`; masked_positions `[P]` int32 of the chosen ones, ascending; masked_tokens `[P]`
      int32, their true ids; masked_weights `[P]` float32, 0 at padding.
    """
    candidates = np.flatnonzero(maskable)
    room = min(max_predictions, max(1, round(rate * len(candidates))))
    # A word also begins after a gap (a special token), where its first tokens may have been cut.
    is_first = begins[candidates] | (np.diff(candidates, prepend=-2) > 1)
    bounds = np.append(np.flatnonzero(is_first), len(candidates))
    chosen = [np.zeros(0, np.int64)]
    for word in rng.permutation(len(bounds) - 1):
        size = bounds[word + 1] - bounds[word]
        if size <= room:
            chosen.append(candidates[bounds[word] : bounds[word + 1]])
            room -= size
            if not room:
                break
    positions = np.sort(np.concatenate(chosen))
    labels = tokens[positions]
    draw = rng.random(len(positions))
    replaced = np.where(draw < 0.8, vocabulary.mask, labels)
    random = rng.choice(vocabulary.ordinary, len(positions))
    masked = tokens.copy()
    masked[positions] = np.where(draw >= 0.9, random, replaced)
    pad = (0, max_predictions - len(positions))
    weights = np.ones(len(positions), np.float32)
    return {
        "tokens": masked,
        "masked_positions": np.pad(positions, pad).astype(np.int32),
        "masked_tokens": np.pad(labels, pad).astype(np.int32),
        "masked_weights": np.pad(weights, pad),
    }
