"""Files of a study's runs that are damaged, or of another shape."""

import json
import re

import pytest
import tiny_study

from pe_jax.common.files import write_text
from research.reproduction import state
from research.reproduction.plan import plan


@pytest.fixture
def run(tmp_path):
    return plan(tiny_study.config(tmp_path), tmp_path / "S")[0]


@pytest.mark.parametrize(
    "line", ["abc", "null", '"3"', "[1]", "{}", "true", "1.5.2", "\0"]
)
def test_a_damaged_line_of_times(run, line):
    write_text(run.folder / "times.jsonl", f"1.5\n{line}\n2.0\n")
    path = re.escape(str(run.folder / "times.jsonl"))
    with pytest.raises(
        ValueError, match=f"^Line 2 of {path} is damaged: .*Delete the line.$"
    ):
        state.seconds(run)


def test_half_a_line_of_times_is_not_counted(run):
    write_text(run.folder / "times.jsonl", "1.5\n2")
    assert state.seconds(run) == 1.5


def test_a_damaged_result(run):
    whole = tiny_study.entry(run)
    path = run.folder / "result.json"
    write_text(path, json.dumps(whole))
    assert state.finished_entry(run)["values"] == whole["values"]
    for text, says in {
        "": "Expecting value",
        "3": "not a JSON object",
        json.dumps(
            {**whole, "cores": None}
        ): "'cores' must be a whole number, got None",
        json.dumps({**whole, "values": 3}): "'values' must be an object, got 3",
        json.dumps({**whole, "values": {"a": {"b": 1.0}}}): "must be by seed, got 'b'",
        json.dumps(
            {key: whole[key] for key in whole if key != "code"}
        ): "'code' is missing",
    }.items():
        write_text(path, text)
        with pytest.raises(ValueError) as error:
            state.finished_entry(run)
        assert str(error.value).startswith(f"{path} is damaged (") and says in str(
            error.value
        )
        assert "\n" not in str(error.value)
