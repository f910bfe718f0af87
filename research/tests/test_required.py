"""Flags that a command of a study cannot do without."""

import pytest
from absl import app

from research.required import required


def test_missing_flags_are_named():
    assert required({"books": "B", "workdir": "W"}) == {"books": "B", "workdir": "W"}
    with pytest.raises(app.UsageError, match="missing: --workdir, --text"):
        required({"books": "B", "workdir": None, "text": ""})
