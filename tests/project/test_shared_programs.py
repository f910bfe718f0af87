"""Which functions count as the same: sharing what differs would hide mistakes."""

import functools

import jax
import numpy as np
import pytest
from shared_programs import SHARED, key, remembering

from pe_jax.encodings import rope
from pe_jax.models import BertConfig
from pe_jax.tasks.pretraining import pretraining_task


def scaled(by, name="x"):
    inner = lambda x: by * x
    return lambda x: (inner(x), name)


def test_the_same_code_of_equal_things():
    for make in (
        lambda: scaled(2.0),
        lambda: functools.partial(scaled, 2.0, name="y"),
        lambda: pretraining_task(BertConfig(vocab_size=9)),
    ):
        assert key(make()) == key(make())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (scaled(2.0), scaled(3.0)),
        (scaled(1), scaled(1.0)),
        (scaled(1), scaled(True)),
        (scaled(2.0), scaled(2.0, "y")),
        (functools.partial(scaled, 2.0), functools.partial(scaled, 3.0)),
        (lambda x: x + 1, lambda x: x + 2),
        *[
            (pretraining_task(BertConfig(vocab_size=9)), pretraining_task(BertConfig(**changed)))
            for changed in ({"vocab_size": 8}, {"vocab_size": 9, "position": rope(head_size=64)})
        ],
    ],
)
def test_what_differs_has_another_key(one, other):
    assert key(one) != key(other)


def test_functions_of_arrays_are_not_shared():
    for array in (np.ones(2), jax.numpy.ones(2)):
        with pytest.raises(TypeError, match="unhashable"):
            key(scaled(array))


def test_programs_of_the_library_are_shared_and_no_others():
    made = []
    jit = remembering(lambda fun=None, **options: made.append(fun) or object())
    for module, shared in ((f"{SHARED[0]}x", True), ("pe_jax.encodings.base", False)):
        functions = [scaled(2.0), scaled(2.0)]
        for one in functions:
            one.__module__ = module
        first, second = map(jit, functions)
        assert (first is second) == shared
        assert jit(functions[0], donate_argnums=0) is not first
    assert jax.jit(scaled(1.0)) is not jax.jit(scaled(1.0))  # A test's own function.
