"""Masked words: which, how many, and what replaces them."""

import numpy as np
import pytest

from pe_jax.interop.special_tokens import bert_template
from pe_jax.trainer import data
from pe_jax.trainer.data import masking

VOCABULARY = data.Vocabulary(
    size=50,
    pad=0,
    mask=4,
    ordinary=np.arange(5, 50),
    single=bert_template([2], [3], pair=False),
    pair=bert_template([2], [3], pair=True),
)


def masked(tokens, maskable, rng, max_predictions=20, **options):
    """Tokens, and the positions and true ids of those that were chosen; tokens from 40 on continue
    words."""
    words = (tokens < 40, maskable, VOCABULARY)
    arrays = masking.mask_words(tokens, *words, rng, max_predictions, **options)
    count = int(arrays["masked_weights"].sum())
    assert (
        not arrays["masked_positions"][count:].any()
        and not arrays["masked_tokens"][count:].any()
    )
    return (
        arrays["tokens"],
        arrays["masked_positions"][:count],
        arrays["masked_tokens"][:count],
    )


def test_whole_words_and_rates():
    # Alternating words of one, two and three tokens.
    tokens = np.array([2, *[10, 11, 41, 12, 42, 43] * 10, 3], np.int32)
    maskable = np.ones(62, bool)
    maskable[[0, -1]] = False
    words = [
        [i for i in (6 * n + 1 + o for o in w)]
        for n in range(10)
        for w in ([0], [1, 2], [3, 4, 5])
    ]
    rng = np.random.default_rng(0)
    kinds = np.zeros(3)
    for _ in range(1_000):
        changed, positions, labels = masked(tokens, maskable, rng)
        chosen = set(positions.tolist())
        assert len(chosen) == len(positions) == 9  # 15 % of 60.
        assert all(chosen >= set(w) or not chosen & set(w) for w in words)
        assert (labels == tokens[positions]).all()
        untouched = np.setdiff1d(np.arange(62), positions)
        assert (changed[untouched] == tokens[untouched]).all()
        now = changed[positions]
        kinds += [(now == 4).sum(), (now == labels).sum(), 0]
        kinds[2] += len(now) - (now == 4).sum() - (now == labels).sum()
        assert (now[now != 4] >= 5).all()
    # A random token is the true one in 1 of 45 draws.
    assert kinds / kinds.sum() == pytest.approx(
        [0.8, 0.1 + 0.1 / 45, 0.1 - 0.1 / 45], abs=0.01
    )


def test_the_number_of_masks_has_a_maximum_and_is_at_least_one():
    tokens, rng = np.arange(5, 35, dtype=np.int32), np.random.default_rng(0)
    every = np.ones(30, bool)

    def count(*args, **options):
        return len(masked(*args, rng, **options)[1])

    assert count(tokens, every, max_predictions=3) == 3
    assert count(tokens[:2], every[:2]) == 1
    assert count(tokens[:2], ~every[:2]) == 0


def test_a_word_does_not_cross_a_separator():
    tokens = np.array([2, 10, 3, 40, 41, 3])  # [CLS] word [SEP] ##cut ##off [SEP]
    maskable = np.array([False, True, False, True, True, False])
    rng = np.random.default_rng(0)
    seen = {tuple(masked(tokens, maskable, rng, rate=0.67)[1]) for _ in range(50)}
    assert seen == {(3, 4), (1,)}
