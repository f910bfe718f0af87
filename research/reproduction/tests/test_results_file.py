"""A results file that is damaged, or of another shape, is named with the value."""

import json
from pathlib import Path

import pytest

from research.reproduction.results_file import read_results

WHOLE = (Path(__file__).parents[1] / "results.json").read_text(encoding="utf-8")
MODEL, SQUAD = "from_scratch/pretraining/rope", "replaced/squad/rope"
MEASURES = "from_scratch/measures/rope"


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (["runs"], [], "'runs' must be an object, got []"),
        (["options"], None, "'options' must be a list, got None"),
        (["table_1"], 3, "'table_1' must be an object, got 3"),
        (["table_1", "lines"], [1], "'table_1'['lines'][0] must be a text, got 1"),
        (["config"], [], "'config' must be an object, got []"),
        (["config", "jobs"], 0, "results.json: config.jobs must be"),
        (["config", "from_scratch", "first"], "rope(", "results.json: "),
        (["config", "replaced", "then"], "", "its config has no run 'replaced/"),
        (["runs", "a"], None, "its config has no run 'a'"),
        (["runs", MODEL], "done", f"'runs'['{MODEL}'] must be an object, got 'done'"),
        (["runs", MODEL], {}, f"'runs'['{MODEL}']['position'] is missing"),
        (["runs", MODEL, "seconds"], "9", "['seconds'] must be a number, got '9'"),
        (["runs", MODEL, "cores"], 1.5, "['cores'] must be a whole number, got 1.5"),
        (["runs", MODEL, "values"], {"a": [1.0]}, "['a'] must be an object"),
        (["runs", MODEL, "values"], {"a": {"x": 1.0}}, "values['a'] must be by seed, got 'x'"),
        (["runs", MEASURES, "scores"], {"length": 1}, "['scores']['stages'] is missing"),
        (["runs", SQUAD, "values"], {}, f"of {SQUAD}, values['squad f1'] is missing"),
        (["runs", SQUAD, "baseline"], {"f1": 1.0}, "baseline['exact'] is missing"),
        (["runs", SQUAD, "steps"], 320, "['steps'] must be a list, got 320"),
    ],
)  # fmt: skip
def test_other_shapes(tmp_path, keys, value, says):
    results = json.loads(WHOLE)
    *outer, last = keys
    inner = results
    for key in outer:
        inner = inner[key]
    inner[last] = value
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(ValueError) as error:
        read_results(tmp_path)
    message = str(error.value)
    assert (
        says in message
        and str(tmp_path / "results.json") in message
        and "\n" not in message
    )


def test_no_json(tmp_path):
    for content in (b"", b"[]", WHOLE[:1000].encode(), b"\xff"):
        (tmp_path / "results.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"results\.json is damaged \("):
            read_results(tmp_path)
