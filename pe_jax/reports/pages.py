"""Pages of reports: Markdown, and the same as one HTML file with its figures and a glossary."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from pe_jax.files import write_text

_NUMBER = re.compile(r"[+−-]?\d[\d.,]*(e[+-]?\d+)?( ?%| ± .*)?|–")  # Aligned to the right.

_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
# Term -> how a page writes it, as a regular expression, and its definition.
_GLOSSARY: dict[str, tuple[str, str]] = json.loads(
    Path(__file__).with_name("glossary.json").read_text(encoding="utf-8")
)


def page(title: str, *blocks: str | Sequence[str]) -> str:
    """Return Markdown: a title, then texts or lists of lines, but for empty ones."""
    texts = ["\n".join([block] if isinstance(block, str) else block) for block in blocks]
    return "\n\n".join([f"# {title}", *filter(None, texts)]) + "\n"


def write_page(path: Path, text: str) -> str:
    """Write a page to `path`, and beside it as one file of HTML with figures; return the text."""
    write_text(path, text)
    write_text(path.with_suffix(".html"), to_html(text, path.parent))
    return text


def to_html(text: str, folder: Path) -> str:
    """Return a page in HTML with the figures in `folder`, and a glossary of the terms it uses."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    headings: list[Token] = []
    for opening, token in pairwise(tokens):
        match opening.type:
            case "table_open":
                headings = []
            case "tr_open":
                columns = iter(headings)
            case "th_open":
                headings.append(opening)
            case "td_open":
                heading = next(columns)
                if _NUMBER.fullmatch(token.content):
                    heading.attrs["class"] = opening.attrs["class"] = "number"
        for image in token.children or []:
            source = folder / unquote(str(image.attrs.get("src")))
            if image.type == "image" and source.is_file():
                data = base64.b64encode(source.read_bytes()).decode()
                image.attrs["src"] = f"data:image/png;base64,{data}"
                opening.attrs["class"] = "wide"
    body = markdown.renderer.render(tokens, markdown.options, {})
    body = body.replace("<table>", '<div class="wide"><table>')
    body = body.replace("</table>", "</table></div>")
    lines = (f"<dt>{escape(term)}\n<dd>{escape(what)}\n" for term, what in terms_in(text).items())
    if terms := "".join(lines):
        body += f"<h2>Glossary</h2>\n<dl>\n{terms}</dl>\n"
    title = escape(text.partition("\n")[0].lstrip("# "))
    return _PAGE.replace("{{title}}", title).replace("{{body}}", body)


def terms_in(page: str) -> dict[str, str]:
    """Return the terms of the glossary that a page in Markdown uses, with their definitions."""
    return {
        term: definition
        for term, (pattern, definition) in _GLOSSARY.items()
        if re.search(rf"(?<!\w)(?:{pattern})(?!\w)", page)
    }
