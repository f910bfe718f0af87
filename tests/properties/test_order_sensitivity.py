"""Order sensitivity: shuffles, and how far they move the states of a text."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny_subject

from pe_jax import properties
from pe_jax.models import hidden_states
from pe_jax.properties import SHUFFLES
from pe_jax.properties.shuffling import shuffled_order
from pe_jax.trainer import data
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report.report import measure_properties

BEGINS = np.array([1, 1, 0, 0, 1, 0, 1, 1], bool)  # Words: 0, 1-3, 4-5, 6, 7.


def test_shuffles_of_words():
    np.testing.assert_array_equal(shuffled_order(BEGINS), [1, 2, 3, 0, 6, 4, 5, 7])
    for seed in range(20):
        order = shuffled_order(BEGINS, np.random.default_rng(seed))
        np.testing.assert_array_equal(np.sort(order), np.arange(8))
        inside = ~BEGINS[order]  # Pieces of a word follow one another,
        np.testing.assert_array_equal(order[1:][inside[1:]], order[:-1][inside[1:]] + 1)
        starts = np.flatnonzero(
            BEGINS
        )  # and each word is another one than at its place before.
        assert (np.searchsorted(starts, order[BEGINS[order]]) != np.arange(5)).all()


def test_shuffles_of_texts():
    """By kind; special tokens stay; a text of one sentence as well."""
    sentences = np.array([[1, 0, 0, 0, 1, 0, 0, 0], [1] + [0] * 7], bool)
    begins = np.stack([np.stack([BEGINS] * 2), sentences])
    orders = properties.shuffled_orders(begins, ends=(2, 1))
    assert orders.shape == (3, 2, 11)
    np.testing.assert_array_equal(
        orders[..., [0, 1, 10]], np.tile([0, 1, 10], (3, 2, 1))
    )
    np.testing.assert_array_equal(orders[1, 0, 2:10] - 2, [1, 2, 3, 0, 6, 4, 5, 7])
    np.testing.assert_array_equal(
        orders[2, :, 2:10] - 2, [[4, 5, 6, 7, 0, 1, 2, 3], range(8)]
    )
    assert (orders[0, 0] != orders[0, 1]).any()
    np.testing.assert_array_equal(
        orders, properties.shuffled_orders(begins, ends=(2, 1))
    )
    assert (
        orders[0] != properties.shuffled_orders(begins, ends=(2, 1), seed=1)[0]
    ).any()


def naive(states, orders, teacher):
    """Text by text and token by token, in float64. `states(tokens)` are of one text."""
    found = []
    for texts in orders:
        pooled, moved, changes = [], [], {"pooled": [], "token": []}
        for number, order in enumerate(texts):
            both = []
            for f in (states, teacher):
                tokens = np.arange(len(order)) + 10 * number
                h, shuffle = (
                    np.asarray(f(rows), np.float64) for rows in (tokens, tokens[order])
                )
                back = np.stack(
                    [shuffle[list(order).index(i)] for i in range(len(order))]
                )
                both.append((h, back))
            for key, of in (("token", lambda x: x), ("pooled", lambda x: x.mean(0))):
                changes[key].append([of(back) - of(h) for h, back in both])
            if (order == np.arange(len(order))).all():
                continue
            h, back = both[0]
            a, b = h.mean(0), back.mean(0)
            pooled.append(1 - a @ b / np.sqrt((a @ a) * (b @ b)))
            spread = sum(((x - h.mean(0)) ** 2).sum() for x in h)
            moved.append(
                np.sqrt(sum(((x - y) ** 2).sum() for x, y in zip(h, back)) / spread)
            )
        r2 = {
            key: 1
            - sum(((a - b) ** 2).sum() for a, b in x) / sum((b**2).sum() for _, b in x)
            for key, x in changes.items()
        }
        found.append([np.mean(pooled), np.mean(moved), r2["pooled"], r2["token"]])
    return np.array(found).T


def test_against_loops_in_float64():
    """States of words and their places; a text that a shuffle leaves as it is counts for none."""
    rng = np.random.default_rng(0)
    words, places = (
        jnp.asarray(rng.normal(1, 1, (30, 6))),
        jnp.asarray(rng.normal(size=(8, 6))),
    )
    ours = lambda rows: words[rows] + 0.2 * places * words[rows][..., :1]
    theirs = lambda rows: words[rows] + 0.3 * places * words[rows][..., 1:2]
    begins = np.stack([np.stack([BEGINS] * 3), np.zeros((3, 8), bool)])
    begins[1, :2, 4] = True
    orders = properties.shuffled_orders(begins)
    tokens = np.arange(8) + 10 * np.arange(3)[:, None]
    states, teacher = (
        properties.states_by_order(
            lambda f, x, of=of: f * of(x), 1.0, tokens, orders, batch=2
        )
        for of in (ours, theirs)
    )
    found = properties.order_sensitivity(states, orders, teacher)
    np.testing.assert_allclose(
        np.stack(list(vars(found).values())),
        naive(ours, orders, theirs),
        rtol=1e-4,
        atol=1e-6,
    )
    scaled = properties.order_sensitivity(
        3 * states, orders
    )  # The unit does not matter.
    np.testing.assert_allclose(
        [scaled.pooled, scaled.token], [found.pooled, found.token], rtol=1e-5
    )
    assert scaled.token_r2 is None
    zeros = properties.order_sensitivity(0 * states, orders)
    np.testing.assert_array_equal([zeros.pooled, zeros.token], 0)

    # Changes of the right size in the opposite direction.
    against = jnp.concatenate([teacher[:1], 2 * teacher[:1] - teacher[1:]])
    opposite = properties.order_sensitivity(against, orders, teacher)
    itself = properties.order_sensitivity(teacher, orders, teacher)
    np.testing.assert_allclose(opposite.token, itself.token, rtol=1e-5)
    np.testing.assert_allclose(
        np.stack([opposite.pooled_r2, opposite.token_r2]), -3, rtol=1e-5
    )
    np.testing.assert_array_equal(np.stack([itself.pooled_r2, itself.token_r2]), 1)


@pytest.mark.parametrize(
    ("position", "sensitive"),
    [("none", False), ("learned_absolute", True), ("rope", True)],
)
def test_a_bag_of_words_has_none(position, sensitive):
    config, params = tiny_subject.config(position), tiny_subject.parameters(position)
    tokens = tiny_subject.texts().tokens
    begins = np.stack([np.ones_like(tokens, bool), tokens % 3 == 0])
    orders = properties.shuffled_orders(begins)
    last = lambda params, rows: hidden_states(config, params, rows)[-1]
    states = properties.states_by_order(last, params["bert"], tokens, orders)
    found = properties.order_sensitivity(states, orders)
    assert ((np.array(found.pooled) > 1e-4) == sensitive).all()
    assert ((np.array(found.token) > 1e-2) == sensitive).all()
    if not sensitive:
        assert np.max(found.pooled) < 1e-10 and np.max(found.token) < 1e-5


def test_pieces(tmp_path):
    """Tokens in a row of a document, with where words and sentences begin."""
    text = "Untied knots. A knot was untied! Is it tied?"
    (tmp_path / "text.txt").write_text(f"{text}\n\nToo short.\n\n{text}\n")
    (tmp_path / "vocab.txt").write_text(
        "\n".join(
            "[PAD] [UNK] [CLS] [SEP] [MASK] un ##tied knot ##s . a was ! is it ti ##ed ?".split()
        )
    )
    corpus, tokenizer = data.open_source(
        str(tmp_path / "text.txt"),
        vocab=str(tmp_path / "vocab.txt"),
        cache_dir=tmp_path / "cache",
    )
    ids, begins = data.pieces(corpus, corpus.all_documents(), 4, 9)
    assert [
        tokenizer.id_to_token(i) for i in ids[0]
    ] == "un ##tied knot ##s . a knot was un".split()
    np.testing.assert_array_equal(ids[1], ids[0])
    np.testing.assert_array_equal(begins[0, 1], [1, 0, 1, 0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(begins[1, 1], [1, 0, 0, 0, 0, 1, 0, 0, 0])
    assert len(data.pieces(corpus, corpus.all_documents(), 1, 9)[0]) == 1
    assert data.pieces(corpus, corpus.all_documents(), 4, 99)[1].shape == (2, 0, 99)


def test_the_report(tmp_path):
    """Random words have no sentences."""
    config = PropertiesConfig(parts="order_sensitivity")
    subject = tiny_subject.subject("rope")
    tiny_subject.give(config, subject)
    text = measure_properties([subject], config, tmp_path)
    numbers = json.loads((tmp_path / "order_sensitivity.json").read_text())["rope"]
    assert numbers["sentences"] == {"pooled": None, "token": None}
    assert f"{numbers['words']['pooled']:.4f}" in text and set(SHUFFLES) < set(numbers)
