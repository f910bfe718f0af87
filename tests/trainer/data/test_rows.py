"""Batches by length: their content, for one seed and for several."""

import numpy as np
import pytest

from pe_jax.trainer.data.rows import (
    Rows,
    TrainingBatches,
    evaluation_batches,
    pad_rows,
    training_batches,
)

LENGTHS = (4, 6, 9)


def make_rows(sizes):
    """Row n consists of copies of the number n + 1; its second text is its last token."""
    tokens = np.repeat(np.arange(1, len(sizes) + 1), sizes).astype(np.int32)
    bounds = np.append(0, np.cumsum(sizes))
    second = np.array(sizes, np.int32) - 1
    return Rows(tokens, bounds, second, 0, {"label": np.arange(1, len(sizes) + 1)})


def random_rows(count=53, seed=0):
    return make_rows(np.random.default_rng(seed).integers(2, 10, count))


def test_padding_against_a_worked_example():
    batch = pad_rows(make_rows([2, 3, 1]), np.array([1, 0]), 4)
    np.testing.assert_array_equal(batch["tokens"], [[2, 2, 2, 0], [1, 1, 0, 0]])
    np.testing.assert_array_equal(batch["token_type_ids"], [[0, 0, 1, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(batch["mask"], [[1, 1, 1, 0], [1, 1, 0, 0]])
    np.testing.assert_array_equal(batch["label"], [2, 1])
    assert {k: v.dtype for k, v in batch.items() if k != "label"} == {
        "tokens": np.int32, "token_type_ids": np.int32, "mask": bool,
    }  # fmt: skip


def epochs_of(source, epochs):
    n = source.steps_per_epoch
    return [[source[e * n + i] for i in range(n)] for e in range(epochs)]


@pytest.mark.parametrize("lengths", [LENGTHS, (9,)])
def test_an_epoch_has_each_row_once(lengths):
    rows = random_rows()
    source = TrainingBatches(rows, lengths, 4, seeds=(0, 5), steps=40)
    assert len(source) == 40 and source.steps_per_epoch == 53 // 4
    seen = []
    for epoch in epochs_of(source, 3):
        for seed in range(2):
            labels = np.concatenate([batch["label"][seed] for batch in epoch])
            assert len(set(labels)) == len(labels) == 52
            seen.append(tuple(labels))
    assert len(set(seen)) == 6  # Each seed and epoch has its own order.
    dropped = [set(range(1, 54)) - set(order) for order in seen]
    assert len(set(map(frozenset, dropped))) > 1  # Not the same row each time.


def test_padding_goes_no_further_than_the_bucket():
    rows = random_rows()
    source = TrainingBatches(rows, LENGTHS, 4, seeds=(1, 2, 3), steps=13)
    lengths = [source[n]["tokens"].shape for n in range(13)]
    assert {shape[:2] for shape in lengths} == {(3, 4)} and {
        shape[2] for shape in lengths
    } == {*LENGTHS}
    for n in range(13):
        sizes = source[n]["mask"].sum(-1)
        length = source[n]["tokens"].shape[-1]
        below = max((size for size in LENGTHS if size < length), default=0)
        # For every seed fewer rows than a batch come from shorter buckets.
        assert ((sizes <= below).sum(-1) < 4).all()


def test_a_seed_gets_the_batches_that_it_gets_alone():
    together = TrainingBatches(random_rows(), LENGTHS, 4, seeds=(3, 7, 9), steps=30)
    alone = TrainingBatches(random_rows(), LENGTHS, 4, seeds=(7,), steps=30)
    for n in range(30):
        for name, values in alone[n].items():
            np.testing.assert_array_equal(values[0], together[n][name][1])


def test_hosts_have_parts_of_one_batch():
    whole = TrainingBatches(random_rows(), LENGTHS, 4, (0, 1), 13)
    parts = [
        TrainingBatches(random_rows(), LENGTHS, 4, (0, 1), 13, host, 2)
        for host in range(2)
    ]
    for n in range(13):
        joined = np.concatenate([part[n]["tokens"] for part in parts], axis=1)
        np.testing.assert_array_equal(joined, whole[n]["tokens"])


def test_a_stream_resumes():
    source = TrainingBatches(random_rows(), LENGTHS, 4, (0, 1), 30)
    iterator = iter(training_batches(source))
    batches = [next(iterator) for _ in range(17)]
    rest = [next(iterator) for _ in range(13)]
    with pytest.raises(StopIteration):
        next(iterator)
    again = iter(
        training_batches(TrainingBatches(random_rows(), LENGTHS, 4, (0, 1), 30), 17)
    )
    for one in rest:
        np.testing.assert_array_equal(next(again)["tokens"], one["tokens"])
    np.testing.assert_array_equal(batches[5]["tokens"], source[5]["tokens"])


def test_evaluation_has_all_rows_once():
    rows = random_rows()
    batches = evaluation_batches(rows, LENGTHS, 8)
    assert sorted(np.concatenate([numbers for _, numbers in batches])) == list(
        range(53)
    )
    for batch, numbers in batches:
        assert batch["tokens"].shape[0] == 8
        np.testing.assert_array_equal(batch["label"][: len(numbers)], numbers + 1)
        longest = rows.sizes()[numbers].max()
        assert batch["tokens"].shape[1] == min(n for n in LENGTHS if n >= longest)


def test_rows_that_cannot_be_batched_are_refused():
    rows = random_rows()
    with pytest.raises(ValueError, match="53 examples are too few for a batch of 64"):
        TrainingBatches(rows, LENGTHS, 64, (0,), 1)
