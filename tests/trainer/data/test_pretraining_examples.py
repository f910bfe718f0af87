"""Sentence pairs, and the stream of their batches as a function of seed and number."""

import itertools

import numpy as np
import pytest
from helpers.books import make_examples, same, take

from pe_jax.trainer import data
from pe_jax.trainer.data import pretraining


def test_chunks_cover_each_document_once(books):
    corpus = books[0]
    rows = pretraining.chunks(corpus, corpus.all_documents(), 40)
    for document in corpus.all_documents():
        own = rows[rows[:, 0] == document]
        assert own[0, 1] == corpus.documents[document]
        assert own[-1, 2] == corpus.documents[document + 1]
        assert (own[1:, 1] == own[:-1, 2]).all()
        assert (own[:, 2] - own[:, 1] >= 2).all()
        sizes = corpus.sentences[own[:, 2]] - corpus.sentences[own[:, 1]]
        assert (sizes[:-1] >= 40).all()


@pytest.mark.parametrize("max_tokens", [3, 40, 10_000])
def test_chunks_equal_those_of_a_loop(books, max_tokens):
    corpus = books[0]
    documents, starts = np.array([5, 0, 11, 7]), corpus.sentences
    rows = []
    for document in documents:
        begin, stop = corpus.documents[document : document + 2]
        while stop - begin >= 2:
            end = begin + 2
            while end < stop and starts[end] - starts[begin] < max_tokens:
                end += 1
            end = stop if stop - end == 1 else end
            rows.append((document, begin, end))
            begin = end
    np.testing.assert_array_equal(
        pretraining.chunks(corpus, documents, max_tokens), rows
    )


def pair_examples(books, documents, max_tokens, **options):
    corpus, _, vocabulary = books
    sizes = (max_tokens + 3, 8)
    return data.PretrainingExamples(corpus, documents, vocabulary, *sizes, **options)


def test_pairs(books):
    examples = pair_examples(books, books[0].all_documents(), 40)
    rng = np.random.default_rng(0)
    labels, lengths = [], []
    for n in range(2_000):
        first, second, label = examples.pair(n % len(examples), rng)
        assert len(first) >= 1
        assert len(second) >= 1
        assert len(first) + len(second) <= 40
        labels.append(label)
        lengths.append(len(first) + len(second))
    assert np.mean(labels) == pytest.approx(0.5, abs=0.04)
    assert np.mean(lengths) > 34


def test_lengths_do_not_give_the_label_away(books):
    """A model that sees only the positions of [SEP] and of the end must stay at chance."""
    examples = pair_examples(books, books[0].all_documents(), 40)
    rng = np.random.default_rng(0)
    lengths = {pretraining.IS_NEXT: [], pretraining.IS_RANDOM: []}
    for n in range(4_000):
        first, second, label = examples.pair(n % len(examples), rng)
        lengths[label].append((len(first), len(second)))
    for part in (0, 1):
        counts = [
            np.bincount([t[part] for t in s], minlength=41) for s in lengths.values()
        ]
        shares = [c / c.sum() for c in counts]
        # By how much the best guess from this length beats chance.
        assert np.abs(shares[0] - shares[1]).sum() / 4 < 0.06


def test_second_parts_follow_or_come_from_another_document(books):
    corpus = books[0]
    documents = corpus.all_documents()[:2]
    examples = pair_examples(books, documents, 60, short_probability=0.0)
    bounds = corpus.sentences[corpus.documents[:3]]
    texts = [corpus.tokens["id"][a:b].tolist() for a, b in itertools.pairwise(bounds)]

    def inside(part, text):
        part = corpus.tokens["id"][part.start : part.stop].tolist()
        return any(
            text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1)
        )

    rng = np.random.default_rng(1)
    for _ in range(200):
        first, second, label = examples.pair(0, rng)
        assert inside(first, texts[0])
        if min(len(second), len(first)) > 5:
            assert inside(second, texts[0 if label == pretraining.IS_NEXT else 1])


def test_a_single_document_draws_from_outside_the_chunk(books):
    examples = pair_examples(books, books[0].all_documents()[:1], 40)
    rng = np.random.default_rng(0)
    pairs = [examples.pair(1, rng) for _ in range(20)]
    assert {label for _, _, label in pairs} == {0, 1}


def test_texts_without_any_pair_are_refused(books, tmp_path):
    (tmp_path / "a.txt").write_text("One sentence.\n\nAnother one.")
    corpus = data.tokenize(
        data.open_corpus(str(tmp_path / "a.txt")), books[1], tmp_path
    )
    with pytest.raises(
        ValueError, match="No document of this corpus has two sentences"
    ):
        make_examples((corpus, books[1], books[2]))


def test_an_example_is_consistent(books):
    _, _, v = books
    examples = make_examples(books)
    for n in range(len(examples)):
        e = examples(n, np.random.default_rng(n))
        original = e["tokens"].copy()
        used = int(e["masked_weights"].sum())
        at = e["masked_positions"][:used]
        original[at] = e["masked_tokens"][:used]
        valid = e["mask"]
        assert original[0] == v.single.before
        ends = np.flatnonzero(original == v.single.after)
        assert len(ends) == 2
        assert ends[1] == valid.sum() - 1
        assert (original[~valid] == v.pad).all()
        assert (e["token_type_ids"] == ((np.arange(48) > ends[0]) & valid)).all()
        assert not np.isin(at, [0, *ends]).any()
        assert valid[at].all()
        assert (e["masked_tokens"][used:] == 0).all()


def test_the_stream_is_a_function_of_seed_and_step(books):
    examples = make_examples(books)
    steps = 3 * len(examples) // 4
    a, b = (take(data.batches(examples, batch_size=4, seed=7), steps) for _ in range(2))
    assert all(same(x, y) for x, y in zip(a, b))
    other = take(data.batches(examples, batch_size=4, seed=8), 1)[0]
    assert not same(a[0], other)


def test_masks_are_new_each_epoch(books):
    examples = make_examples(books, short_probability=0.0)
    rows = len(examples)
    first, second = take(data.batches(examples, batch_size=rows, seed=0), 2)
    key = lambda batch, n: batch["tokens"][n].tobytes()
    assert (
        len(
            {key(first, n) for n in range(rows)} & {key(second, n) for n in range(rows)}
        )
        == 0
    )


def test_hosts_split_the_same_global_batch(books):
    examples = make_examples(books)
    whole = take(data.batches(examples, batch_size=8, seed=3), 3)
    parts = [
        take(data.batches(examples, batch_size=8, seed=3, host=h, hosts=2), 3)
        for h in range(2)
    ]
    for n, batch in enumerate(whole):
        for key, rows in batch.items():
            joined = np.concatenate([parts[0][n][key], parts[1][n][key]])
            np.testing.assert_array_equal(rows, joined)
