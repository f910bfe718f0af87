"""Flags that a command of a study cannot do without."""

import pytest
from absl import app, flags

from research.required import required


def parsed(**given):
    """Return holders of text flags with these values, None for a flag that is not given."""
    values = flags.FlagValues()
    holders = [
        flags.DEFINE_string(name, None, "", flag_values=values) for name in given
    ]
    arguments = [f"--{name}={x}" for name, x in given.items() if x is not None]
    values(["command", *arguments])
    return holders


def test_missing_flags_are_named():
    assert required(*parsed(books="B", workdir="W")) == ["B", "W"]
    with pytest.raises(app.UsageError, match="missing: --workdir, --text"):
        required(*parsed(books="B", workdir=None, text=""))
