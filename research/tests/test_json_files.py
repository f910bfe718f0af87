"""Lines of a run's log as studies read them; shapes of files are tested with each study."""

import pytest

from research.json_files import read_series


def test_values_of_a_log(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        '{"step": 1, "loss": 3}',
        '{"step": 2, "other": null}',
        '{"step": 3, "loss": 2.5}',
        "",
    ]
    path.write_text("\n".join(lines))
    assert read_series(tmp_path, "loss", "Fix it.") == {1: 3, 3: 2.5}
    for name, says in {
        "other": r"^Line 2 of .*metrics\.jsonl is damaged \('other' must be a number, got None\)",
        "none": r"^.*metrics\.jsonl is damaged \(it has no 'none'\)\. Fix it\.",
    }.items():
        with pytest.raises(ValueError, match=says):
            read_series(tmp_path, name, "Fix it.")
    path.write_text('{"step": [], "loss": 3}\n')
    with pytest.raises(ValueError, match=r"'step' must be a whole number, got \[\]"):
        read_series(tmp_path, "loss", "Fix it.")
