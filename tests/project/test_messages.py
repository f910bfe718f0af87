"""The list of messages that tools/list_messages.py writes."""

import runpy
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "list_messages.py"

SOURCE = '''
"""A docstring that is no message."""


def check(size, log):
    """Another docstring of a function."""
    if size < 1:
        raise ValueError(
            f"size must be at least 1, got {size!r}. "
            "Give more."
        )
    log(f"{size:,} tokens" if size > 1 else "one token")
    fault = "the file is damaged at " + str(size)
    return {"too short": fault}
'''


def test_messages_are_listed_with_their_placeholders():
    tool = runpy.run_path(str(TOOL))
    assert [tuple(message) for message in tool["messages"](SOURCE)] == [
        (8, "raised", "size must be at least 1, got {size!r}. Give more."),
        (12, "printed", "{size:,} tokens | one token"),
        (13, "other", "the file is damaged at {str(size)}"),
    ]


def test_the_tool_lists_files_and_kinds(capsys):
    tool = runpy.run_path(str(TOOL))
    tool["main"](["--kind=raised", "--under=pe_jax/interop/tokenizer.py"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert all(
        " raised: " in line and line.startswith("pe_jax/interop/") for line in lines
    )
