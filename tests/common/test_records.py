"""Public records can get more fields in 1.x without breaking their users."""

import copy
import dataclasses
import importlib
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Generic, TypeVar

import jax
import pytest
from helpers.added_field import NAME

from pe_jax.attention import Cache, init_cache, with_index
from pe_jax.common.records import Record
from pe_jax.encodings import AttentionWindow, Context, OffsetTerms, Part, causal, rope

ROOT = Path(__file__).parents[2]
PUBLIC = (
    "attention",
    "encodings",
    "golden",
    "interop",
    "models",
    "properties",
    "testing",
)


def public_records():
    for name in PUBLIC:
        module = importlib.import_module(f"pe_jax.{name}")
        for public in module.__all__:
            value = getattr(module, public)
            if inspect.isclass(value) and issubclass(value, tuple | Record):
                yield f"{name}.{public}", value


def test_no_public_record_is_a_tuple():
    found = dict(public_records())
    tuples = [name for name, record in found.items() if issubclass(record, tuple)]
    assert not tuples
    assert {
        "encodings.Context",
        "attention.Cache",
        "properties.Measures",
    } <= found.keys()
    for name, record in found.items():
        fields = dataclasses.fields(record)
        assert fields and all(field.kw_only for field in fields), name


def test_fields_are_named():
    with pytest.raises(
        TypeError, match=r"takes its fields by name: AttentionWindow\(left=..., "
    ):
        AttentionWindow(1, 2)
    with pytest.raises(
        TypeError, match="Part has no field 'heads'. It is map_qkv now."
    ):
        Part(heads=None)
    with pytest.raises(
        TypeError, match="OffsetTerms has no field 'clip'. It is max_distance now."
    ):
        OffsetTerms(clip=3)
    with pytest.raises(
        TypeError, match=r"no field 'position_q'. Did you mean positions_q"
    ):
        Context(position_q=range(3))
    with pytest.raises(TypeError, match="Context has no field 'mask'"):
        Context().replace(mask=None)


def test_former_names_of_attributes():
    context = Context()
    with pytest.raises(AttributeError, match="'rng'. It is position_rng now."):
        _ = context.rng
    with pytest.raises(AttributeError, match="'reach'. It is window now."):
        _ = rope(head_size=4).reach
    assert not hasattr(context, "mask")


def test_a_record_that_extends_another():
    class Own(Context, renamed={"shift": "offset"}):
        offset: int = 0

    assert Own(positions_q=range(3), offset=2).replace(offset=3).offset == 3
    for former, name in (("shift", "offset"), ("rng", "position_rng")):
        with pytest.raises(TypeError, match=f"It is {name} now"):
            Own(**{former: 1})


def test_a_generic_record():
    Number = TypeVar("Number")

    class Interval(Record, Generic[Number]):
        width: Number

    assert Interval[int](width=2) == Interval(width=2)


def pickled(x):
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_records_are_copied(copied):
    encoding = rope(head_size=4) + causal()
    assert copied(encoding) == encoding and hash(copied(encoding)) == hash(encoding)
    sizes = dict(num_kv_heads=1, head_size=4, hidden_size=4)
    cache = with_index(init_cache(encoding, 2, 3, **sizes), jax.numpy.array([1, 2]))
    assert isinstance(copied(cache), Cache) and copied(cache).index.tolist() == [1, 2]


def test_a_record_of_arrays_is_a_tree():
    context = Context(positions_q=jax.numpy.arange(3))
    doubled = jax.jit(lambda x: jax.tree.map(lambda leaf: 2 * leaf, x))(context)
    assert doubled.positions_q.tolist() == [0, 2, 4] and doubled.x_q is None


def run_with_a_field(*arguments):
    environment = {**os.environ, "PE_JAX_ADDED_FIELD": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_field_can_be_added_to_every_record():
    """Encodings, attention, a cache, and tests of both, where each record has a field more."""
    has_field = f"""
import sys
sys.path[:0] = ["tests", "tests/common", "."]
from helpers import added_field
added_field.add_if_asked()
sys.path.insert(0, "tests/project")
from test_records import public_records
assert all(hasattr(record, {NAME!r}) for _, record in public_records())
"""
    run_with_a_field("-c", has_field)
    tests = "tests/encodings/test_window.py", "tests/encodings/test_hooks.py"
    assert " passed" in run_with_a_field("-m", "pytest", "-q", "-n", "0", *tests)


@pytest.mark.slow
def test_all_tests_of_the_library_with_another_field():
    folders = [
        f"tests/{name}" for name in ("attention", "encodings", "models", "properties")
    ]
    assert " passed" in run_with_a_field("-m", "pytest", "-q", "-n", "2", *folders)
