"""Examples of sentence pairs from a small text, and their batches."""

import numpy as np

from pe_jax.trainer import data


def make_examples(books, length=48, **changes):
    corpus, _, vocabulary = books
    return data.PretrainingExamples(
        corpus, corpus.all_documents(), vocabulary, length, max_predictions=8, **changes
    )


def take(stream, count):
    return [b for b, _ in zip(iter(stream), range(count))]


def same(a, b):
    return all(np.array_equal(a[key], b[key]) for key in a)
