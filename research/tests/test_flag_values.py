"""Values of the flags of a study's commands, checked."""

import pytest
from absl import app, flags

from research.flag_values import chosen, required


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


def test_names_that_a_study_does_not_have_are_refused():
    values = flags.FlagValues()
    holder = flags.DEFINE_list("encodings", [], "", flag_values=values)
    values(["command"])
    assert chosen(holder, ("rope", "none")) == ["rope", "none"]
    values(["command", "--encodings=none"])
    assert chosen(holder, ("rope", "none")) == ["none"]
    values(["command", "--encodings=none,ropes"])
    with pytest.raises(app.UsageError, match="has ropes; accepted: rope, none"):
        chosen(holder, ("rope", "none"))
