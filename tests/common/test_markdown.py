"""Tables for a terminal."""

import re

from pe_jax.common import markdown


def test_tables_that_are_too_wide_are_told_in_parts():
    """Each with the columns that tell rows apart; every number once, in order."""
    header = ["position", "when", *(f"monotonicity {n}" for n in range(9))]
    rows = [
        ["a|b", when, *(f"{n}.{when}" for n in range(8)), "–"]
        for when in ("early", "late")
    ]
    page = "\n".join(
        ["word " * 30, "", *markdown.table(header, rows), "", "![figure](a.png)", ""]
    )
    told = markdown.for_terminal(page)
    assert (
        max(map(len, told.splitlines())) <= 100 and told.split()[:30] == ["word"] * 30
    )
    _, *parts = told.strip("\n").split("\n\n")
    cells = [
        [re.split(r" *(?<!\\)\| *", line)[1:-1] for line in one.split("\n")]
        for one in parts
    ]
    assert [part[0][:2] for part in cells] == [header[:2]] * 3
    for i, row in enumerate([header, *rows]):
        line = i + (i > 0)  # After the rule below the header.
        assert [cell for part in cells for cell in part[line][2:]] == row[2:]
    assert [part[3][:2] for part in cells] == [[r"a\|b", "late"]] * 3
    narrow = "\n".join(markdown.table(header[:3], [row[:3] for row in rows])) + "\n"
    assert markdown.for_terminal(narrow) == narrow
