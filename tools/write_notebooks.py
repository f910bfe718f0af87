"""Writes the pages in docs/notebooks as Jupyter notebooks, beside them.

    python tools/write_notebooks.py

A block of Python is a cell, and the plain block after it is its output. Links and images stay on
the page: a notebook is opened away from the other pages.
"""

import json
import re
from pathlib import Path

PAGES = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
SETUP = "%pip install -q '../..[train]'"  # The checkout, until there is a release.
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```\n(.*?)```\n)?", re.S)


def notebook(page):
    """Return a page in Markdown as the text of a notebook."""
    start, *rest = BLOCK.split(page)
    cells = [_text(start), _code(SETUP, None)]
    for code, output, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        if "save(figure" in code:
            code += "figure"  # Shown below the cell.
        cells += [_code(code, output), _text(text)]
    cells = [
        {"id": f"cell-{n}", **cell} for n, cell in enumerate(cells) if cell["source"]
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _text(text):
    text = re.sub(r"!\[.*?\]\(.*?\)\n?", "", text)
    text = re.sub(r"^Also as .*?\n\n", "", text, flags=re.M | re.S)
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(text)}


def _code(code, output):
    outputs = [
        {"name": "stdout", "output_type": "stream", "text": _lines(output)}
    ] * bool(output)
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}}
    return {**cell, "outputs": outputs, "source": _lines(code)}


def _lines(text):
    return (text or "").strip().splitlines(keepends=True)


if __name__ == "__main__":
    for page in PAGES.glob("*.md"):
        page.with_suffix(".ipynb").write_text(
            notebook(page.read_text("utf-8")), encoding="utf-8"
        )
