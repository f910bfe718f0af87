"""The explorer: a page where encodings are chosen and seen side by side, drawn by Plotly.

Imports neither JAX nor Flax, so that the site can be built without them.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

from pe_jax.common.errors import extra
from pe_jax.trainer.reports.pages import fill

FROM_FOLDER = 'src="plotly.min.js"'
TEMPLATE = Path(__file__).with_name("explorer.html")


class Entry(TypedDict):
    """A choice on the page."""

    name: str  # In the list of choices; entries that share it differ by their options.
    options: dict[str, Any]  # All entries of a name have the same ones.
    title: str  # In legends and in the address of the page, unique.
    note: str  # Sentences below the choice.
    picture: dict[str, Any]  # Of `pe_jax.properties.picture`, see `without_repetition`.


def plotly_source() -> str:
    """Return plotly.min.js of the package plotly.

    Raises:
      SystemExit: if it is not installed; the message names the command that installs it.
    """
    with extra("explore", SystemExit):
        from plotly.offline import get_plotlyjs
    source: str = get_plotlyjs()
    return source


def without_repetition(picture: dict[str, Any]) -> dict[str, Any]:
    """Return the picture without its heat map if the offset alone matters: a tenth of the size."""
    curve = picture["curve"]
    if any(curve["spread"]):  # None where a query has no such key.
        return picture
    return {**picture, "heat": None}


def page(entries: Iterable[Entry], *, title: str, about: str, plotly: str = "") -> str:
    """Return the page in HTML.

    Args:
      about: a paragraph below the title.
      plotly: source of plotly.js, which the page then contains; by default it loads plotly.min.js
        from its own folder.
    """
    data = json.dumps(list(entries), ensure_ascii=False, separators=(",", ":"))
    library = f"<script {FROM_FOLDER}></script>"
    if plotly:
        library = f"<script>{plotly}</script>"
    texts = {
        "title": html.escape(title),
        "about": html.escape(about),
        "library": library,
        "data": data.replace("<", r"\u003c"),
    }
    return fill(TEMPLATE.read_text(encoding="utf-8"), texts)
