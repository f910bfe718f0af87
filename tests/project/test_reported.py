"""The commands of docs/reported.md print what the page says."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reported.md").read_text(encoding="utf-8")
UPSTREAM = ROOT / "research/upstream"
THREAD = re.compile(r"\(https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+\)")


def entries():
    """The text of each report by its heading."""
    texts = re.split(r"^###? (.*)\n", PAGE, flags=re.M)
    found = dict(zip(texts[1::2], texts[2::2]))
    return {title: text for title, text in found.items() if "```" in text}


def command(text):
    """The code of an entry's command, and the lines that it prints."""
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.S)
    call, _, shown = block.partition(')"\n')
    python, flag, code = shlex.split(f'{call})"')
    assert (python, flag) == ("python", "-c")
    return code, [line.removeprefix("# ") for line in shown.splitlines()]


def test_each_report_has_a_link_and_says_who_is_affected():
    assert len(entries()) >= 40
    for title, text in entries().items():
        assert THREAD.search(text), title
        assert "*Affected*: " in " ".join(text.split()), title


@pytest.mark.parametrize("title", entries())
def test_the_value_here(title, capsys):
    code, shown = command(entries()[title])
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == shown


def test_scripts_for_upstream_are_short_and_listed():
    readme = (UPSTREAM / "README.md").read_text(encoding="utf-8")
    scripts = list(UPSTREAM.glob("*.py"))
    assert scripts
    for script in scripts:
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 30, script.name
        assert f"`{script.name}`" in readme
    for draft in UPSTREAM.glob("*.md"):
        if draft.name != "README.md":
            assert f"({draft.name})" in readme
