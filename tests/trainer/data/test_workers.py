"""Batches of worker processes are those of threads."""

import collections
import multiprocessing
import pickle

import pytest
from absl import flags
from helpers.books import make_examples, same, take

from pe_jax.trainer import data


def test_batches_resume_with_any_number_of_workers(books):
    """On several hosts too."""
    examples = make_examples(books)
    flags.FLAGS.mark_as_parsed()  # As in a command; grain's workers check it.
    arguments = {"batch_size": 4, "seed": 7, "host": 1, "hosts": 2}
    _, *expected = take(data.batches(examples, 4, **arguments), 5)
    for workers in (0, 2):
        resumed = take(data.batches(examples, 5, **arguments, workers=workers), 4)
        assert all(same(a, b) for a, b in zip(resumed, expected, strict=True))


def test_worker_processes_make_the_same_batches(books, tmp_path, monkeypatch):
    for name in (
        "json.py",
        "pickle.py",
        "copyreg.py",
        "pe_jax.py",
    ):  # Not run by the workers.
        (tmp_path / name).write_text("raise SystemExit('ran')")
    monkeypatch.chdir(tmp_path)
    examples = make_examples(books)
    assert (
        len(pickle.dumps(examples.corpus)) < 1_000
    )  # Workers map the files: the arrays are not pickled.
    flags.FLAGS.mark_as_parsed()  # As in a command; grain's workers check it.
    here = take(data.batches(examples, batch_size=4, seed=7), 5)
    there = iter(data.batches(examples, batch_size=4, seed=7, workers=2))
    assert all(same(batch, next(there)) for batch in here)
    for process in multiprocessing.active_children():  # As if memory had run out.
        process.kill()
    with pytest.raises(
        ChildProcessError, match=r"was killed \(exit code -9\).*workers"
    ):
        collections.deque(there, maxlen=0)
