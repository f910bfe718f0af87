"""The length generalisation suite: tasks against their definitions, rows, cells, the command."""

import contextlib
import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers.commands import call
from helpers.random_params import random_params

from pe_jax.common.errors import Interrupted
from pe_jax.common.schema import changed
from pe_jax.models import BertConfig
from pe_jax.trainer.console import stopping
from research.length_generalisation import cell, suite
from research.length_generalisation.cell import run
from research.length_generalisation.config import LengthGeneralisationConfig
from research.length_generalisation.rows import (
    BLANK,
    FIRST,
    PAD,
    row_length,
    rows,
    vocabulary_size,
)
from research.length_generalisation.tasks import TASKS

FOLDER = Path(__file__).parents[1]
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 13, 20)
CHARACTERS = "01234+-*()x="


def binary(digits):
    """Of a number with its least significant digit first."""
    return sum(int(d) << i for i, d in enumerate(digits))


def sides(symbols, operator):
    """The symbols on either side of an operator, or all and nothing."""
    at = symbols.index(operator) if operator in symbols else len(symbols)
    return symbols[:at], symbols[at + 1 :]


def answer_binary(compute, s):
    a, b = sides(s, 2)
    result = compute(binary(a), binary(b)) if len(s) > 2 else binary(s)
    return [int(c) for c in reversed(f"{result:b}")] + [2]


def answer_arithmetic(s):
    return [eval("".join("01234+-*"[x] for x in s)) % 5]


def answer_stack(s):
    stack = []
    for x in s:
        if x == 2:
            stack = stack[:-1]
        else:
            stack.append(x if x < 2 else x - 3)
    return [*reversed(stack), 2]


def answer_missing(s):
    if len(s) == 1:
        return [1]
    half = len(s) // 2
    at = s.index(2)
    return [s[at - half if at >= half else at + half]]


def answer_equation(s):
    """By trying all digits: exactly one fits."""
    text = "".join(CHARACTERS[x] for x in s)
    if len(s) < 3:
        return [0]
    left, right = text.split("=")
    fits = [
        x for x in range(5) if (eval(left.replace("x", str(x))) - int(right)) % 5 == 0
    ]
    assert len(fits) == 1
    return fits


def answer_addition(s):
    text = "".join("0123456789+"[x] for x in s)
    return [int(c) for c in str(sum(int(n) for n in text.split("+")))] + [11]


# By definition, each from a list of symbols to the list of symbols asked for.
ANSWERS = {
    "even_pairs": lambda s: [int(s[0] != s[-1])],
    "modular_arithmetic": answer_arithmetic,
    "parity_check": lambda s: [s.count(1) % 2],
    "cycle_navigation": lambda s: [(s.count(2) - s.count(0)) % 5],
    "stack_manipulation": answer_stack,
    "reverse_string": lambda s: s[::-1],
    "modular_arithmetic_brackets": lambda s: [
        eval("".join(CHARACTERS[x] for x in s)) % 5
    ],
    "solve_equation": answer_equation,
    "duplicate_string": lambda s: s + s,
    "missing_duplicate": answer_missing,
    "odds_first": lambda s: s[1::2] + s[::2],
    "binary_addition": lambda s: answer_binary(lambda a, b: a + b, s),
    "binary_multiplication": lambda s: answer_binary(lambda a, b: a * b, s),
    "compute_sqrt": lambda s: [
        int(c) for c in f"{int(binary(s[::-1]) ** 0.5):0{(len(s) + 1) // 2}b}"
    ],
    "bucket_sort": sorted,
    "copy": lambda s: [*s, 32],
    "reverse": lambda s: [*s[::-1], 32],
    "sort": lambda s: [*sorted(s), 32],
    "addition": answer_addition,
}


@pytest.mark.parametrize("name", TASKS)
def test_answers(name):
    task = TASKS[name]
    rng = np.random.default_rng(0)
    met = set()
    for length in LENGTHS:
        strings = task.sample(rng, 24, length)
        assert strings.answers.shape == (24, task.answer_length(length))
        assert length - 1 <= strings.inputs.shape[1] <= length
        asked = (
            np.ones_like(strings.answers, bool)
            if strings.asked is None
            else strings.asked
        )
        for symbols, answer, here in zip(
            strings.inputs, strings.answers, asked, strict=True
        ):
            expected = ANSWERS[name](symbols.tolist())
            assert answer[here].tolist() == expected, (name, symbols)
            assert not here[len(expected) :].any()
            met |= set(symbols.tolist()) | set(expected)
        assert strings.inputs.min() >= 0
        assert max(strings.inputs.max(), strings.answers.max()) < task.symbols
    assert max(met) == task.symbols - 1
    if not task.causal:
        assert len({tuple(a) for a in strings.answers.tolist()}) > 1


def test_long_numbers_are_exact():
    """80 binary digits are more than any machine integer has."""
    rng = np.random.default_rng(1)
    for name in ("binary_multiplication", "compute_sqrt"):
        strings = TASKS[name].sample(rng, 4, 160)
        for symbols, answer in zip(
            strings.inputs.tolist(), strings.answers.tolist(), strict=True
        ):
            if name == "compute_sqrt":
                root, number = (int("".join(map(str, s)), 2) for s in (answer, symbols))
                assert root**2 <= number < (root + 1) ** 2
            else:
                expected = ANSWERS[name](symbols)
                assert answer[: len(expected)] == expected


@pytest.mark.parametrize(
    "name", ["reverse_string", "addition", "duplicate_string", "parity_check"]
)
def test_rows(name):
    """Tokens, targets and padding of inputs of several lengths, read back."""
    task, lengths = TASKS[name], np.array([3, 7, 1, 7])
    size = row_length(task, 7)
    made = rows(task, np.random.default_rng(0), lengths, size)
    assert all(array.shape == (4, size) for array in made.values())
    for i, length in enumerate(lengths):
        symbols = (made["tokens"][i, :length] - FIRST).tolist()
        expected = ANSWERS[name](symbols)
        assert (made["targets"][i][made["asked"][i]] - FIRST).tolist() == expected
        assert np.flatnonzero(made["asked"][i])[0] == length
        assert made["tokens"][i, length] == BLANK
        end = length + task.answer_length(length)
        assert made["mask"][i].tolist() == [place < end for place in range(size)]
        assert (made["tokens"][i, end:] == PAD).all()
        after = made["tokens"][i, length + 1 : length + len(expected)]
        if task.causal:  # The answer so far is read, one token behind.
            assert (after - FIRST).tolist() == expected[:-1]
        else:
            assert (after == BLANK).all()
    assert max(made["tokens"].max(), made["targets"].max()) < vocabulary_size(TASKS)


def tiny(position, **sizes):
    model = BertConfig(
        vocab_size=vocabulary_size(TASKS), hidden_size=32, num_layers=1, num_heads=2,
        intermediate_size=32, max_length=64, dropout_rate=0.0,
        attention_dropout_rate=0.0, initializer_stddev=0.2, **sizes,
    )  # fmt: skip
    return dataclasses.replace(model, position=position)


CELL = LengthGeneralisationConfig(
    tasks="even_pairs", seeds=(0, 1, 2, 3), length=3, steps=150, batch_size=16,
    learning_rate=1e-2, weight_decay=0.0, test_lengths=(3, 6), test_examples=32,
    test_batch_size=16,
)  # fmt: skip


@pytest.mark.slow
def test_a_cell_learns_and_resumes(tmp_path, monkeypatch):
    """Even pairs of three symbols are learned, by each seed in its own way."""
    task = TASKS["even_pairs"]
    whole = run(task, tiny("learned_absolute"), CELL, tmp_path / "whole")
    assert np.mean(whole.accuracy[3]) > 0.9
    assert max(whole.losses) < 0.4 and len(set(whole.losses)) == 4
    # Stopped within the last tenth of its steps, it has the same loss over all of them.
    with monkeypatch.context() as patch:
        stop_requested = lambda step: 75 if step == 145 else 0
        patch.setattr(
            stopping, "deferred", lambda: contextlib.nullcontext(stop_requested)
        )
        with pytest.raises(Interrupted, match="saved at step 145"):
            run(task, tiny("learned_absolute"), CELL, tmp_path / "stopped")
    resumed = run(task, tiny("learned_absolute"), CELL, tmp_path / "stopped")
    assert dataclasses.replace(resumed, seconds=whole.seconds) == whole


def test_seeds_draw_their_own_rows():
    """In a group as alone; what the program makes of them is tested in test_finetuning.py."""
    together, alone = (
        next(iter(cell._training_batches(TASKS["even_pairs"], config, 5)))
        for config in (CELL, changed(CELL, {"seeds": (2,)}))
    )
    for name, rows_of_seeds in together.items():
        np.testing.assert_array_equal(rows_of_seeds[2], alone[name][0])
    assert not np.array_equal(together["tokens"][1], together["tokens"][2])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The command, with an encoding on two tasks, one of them a decoder's."""
    out = tmp_path_factory.mktemp("suite")
    args = [
        "research/length_generalisation/run.py", f"--workdir={out}",
        f"--config={FOLDER / 'config.py'}",
        "--encodings=rope", "--config.tasks=copy,even_pairs", "--config.steps=3",
        "--config.length=3", "--config.test_lengths=(2,4)", "--config.test_examples=8",
        "--config.test_batch_size=8", "--config.batch_size=4", "--config.model.num_layers=1",
        "--config.model.hidden_size=16", "--config.model.num_heads=2", "--config.seeds=(0,5)",
    ]  # fmt: skip
    return out, args, call(*args)


def test_the_command(finished):
    out, _, (status, printed, _) = finished
    assert status == 0
    assert "## Regular tasks" in printed and "| rope " in printed
    assert re.search(r"\| guessing +\| 50 ", printed)
    saved = json.loads((out / "cells/copy/rope.json").read_text())
    assert set(saved["accuracy"]) == set(saved["exact"]) == {"2", "4"}
    assert len(saved["losses"]) == 2
    lines = (out / "scores.csv").read_text().splitlines()
    assert (
        lines[0] == "encoding,task,length,seed,accuracy,exact"
        and len(lines) == 1 + 2 * 2 * 2
    )
    assert {line.split(",")[3] for line in lines[1:]} == {"0", "5"}
    for name in ("curves", "beyond"):
        assert (out / f"{name}.png").stat().st_size > 5_000


def test_it_continues(finished, monkeypatch):
    """What is done is read; a missing cell is made, and only that one."""
    out, args, (_, printed, _) = finished
    lost = out / "cells/copy/rope.json"
    before = json.loads(lost.read_text())
    lost.unlink()
    made = []
    original = suite.run
    monkeypatch.setattr(
        suite, "run", lambda *a: made.append(a[1].encoding().name) or original(*a)
    )
    status, again, _ = call(*args)
    assert status == 0 and again == printed
    assert made == ["rope+causal"]
    after = json.loads(lost.read_text())
    assert {**after, "seconds": 0} == {**before, "seconds": 0}  # The same numbers.


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("--config.steps=4", "results of other settings"),
        ("--encodings=", "--encodings is required"),
        ("--encodings=rope,ropee", "Did you mean rope"),
        ("--encodings=xpos", "Combine it with causal"),
        ("--config.length=1", "must have lengths up to config.length=1 and longer"),
        ("--config.test_examples=9", "multiple of config.test_batch_size"),
        ("--config.tasks=coppy", "Did you mean copy"),
        (
            "--config.model.num_heads=3",
            "hidden_size=16 must be a multiple of num_heads=3",
        ),
    ],
)
def test_what_is_refused(finished, change, says):
    _, args, _ = finished
    status, _, errors = call(*args, change)
    assert status == 1 and says in errors, errors
    assert len(errors.strip().splitlines()) <= 4


def test_a_damaged_cell(finished):
    out, args, _ = finished
    path = out / "cells/copy/rope.json"
    whole = path.read_text()
    saved = json.loads(whole)
    by_length = saved["accuracy"]
    damaged = {
        "": "Expecting value",
        "{": "Expecting property name",
        "[]": "not a JSON object",
        '{"losses": []}': "'accuracy' is missing",
        json.dumps(saved | {"losses": 3}): "'losses' must be a list, got 3",
        json.dumps(
            saved | {"losses": [1.0, None]}
        ): "'losses'[1] must be a number, got None",
        json.dumps(saved | {"seconds": True}): "'seconds' must be a number, got True",
        json.dumps(
            saved | {"losses": [1.0]}
        ): "must be 2 values, one a seed, got [1.0]",
        json.dumps(
            saved | {"exact": {}}
        ): "'exact' must have the lengths [2, 4], got []",
        json.dumps(
            saved | {"accuracy": {**by_length, "x": [1.0, 1.0]}}
        ): "'accuracy' must have",
        json.dumps(
            saved | {"accuracy": {**by_length, "4": 1}}
        ): "'accuracy'['4'] must be a list",
    }
    for text, says in damaged.items():
        path.write_text(text)
        status, _, errors = call(*args)
        assert status == 1 and errors.count("\n") == 1, errors
        assert "rope.json is damaged (" in errors and says in errors, errors
    path.write_text(whole)


def test_the_number_of_tasks_in_the_list_of_pages():
    text = (FOLDER.parents[1] / "docs/README.md").read_text(encoding="utf-8")
    assert f"tested on longer ones, {len(TASKS)} tasks" in " ".join(text.split())


def test_causal_tasks_are_causal():
    """What a decoder answers does not depend on what comes later."""
    model = cell.BertForSymbols(tiny("rope+causal"))
    tokens = np.random.default_rng(0).integers(2, 20, (1, 8))
    valid = tokens > 0
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, valid)
    params = random_params(shapes, 0.2)
    changed = tokens.copy()
    changed[0, 5] = 1
    answers = jax.jit(model.apply)
    a, b = (answers(params, x, valid) for x in (tokens, changed))
    np.testing.assert_array_equal(a[0, :5], b[0, :5])
    assert not np.allclose(a[0, 5:], b[0, 5:])
