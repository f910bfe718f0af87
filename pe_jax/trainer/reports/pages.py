"""Pages of reports: Markdown, and the same as one HTML file with its figures and a glossary."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from pe_jax.common import markdown
from pe_jax.common.files import write_text

# A cell of a table that is aligned to the right.
_NUMBER = re.compile(r"[+−-]?\d[\d.,]*(e[+-]?\d+)?( ?%| ± .*)?|–")

_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
# Term -> how a page writes it, as a regular expression, and its definition.
_GLOSSARY: dict[str, tuple[str, str]] = json.loads(
    Path(__file__).with_name("glossary.json").read_text(encoding="utf-8")
)


def page(title: str, *blocks: str | Sequence[str]) -> str:
    """Return a page in Markdown.

    Args:
      title: text, in which nothing is Markdown.
      blocks: Markdown, each a string or lines; empty ones are left out.
    """
    texts = [f"# {markdown.text(title)}"]
    for block in blocks:
        if block:
            texts.append(block if isinstance(block, str) else "\n".join(block))
    return "\n\n".join(texts) + "\n"


def write_page(path: Path, text: str) -> str:
    """Write a page to `path`, and beside it as one file of HTML with figures; return the text."""
    write_text(path, text)
    write_text(path.with_suffix(".html"), to_html(text, path.parent))
    return text


def to_html(text: str, folder: Path) -> str:
    """Return a page in HTML with the figures in `folder`, and a glossary of the terms it uses.

    The page loads nothing and has no links. Images are PNG files of `folder`, by name; in the place
    of any other one is its description.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["link", "autolink", "reference"])
    tokens = parser.parse(text)
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
        for part in token.children or []:
            if part.type == "image" and _embed(part, folder):
                opening.attrs["class"] = "wide"
    body = parser.renderer.render(tokens, parser.options, {})
    body = body.replace("<table>", '<div class="wide"><table>')
    body = body.replace("</table>", "</table></div>")
    terms = terms_in(text)
    if terms:
        body += "<h2>Glossary</h2>\n<dl>\n"
        for term, definition in terms.items():
            body += f"<dt>{escape(term)}\n<dd>{escape(definition)}\n"
        body += "</dl>\n"
    title = markdown.plain(text.partition("\n")[0].removeprefix("# "))
    return fill(_PAGE, {"title": escape(title), "body": body})


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with each `{{name}}` replaced by its value, in which nothing is replaced
    again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda field: values[field[1]], template)


def _embed(image: Token, folder: Path) -> bool:
    """Put the file of an image into the page, and return True.

    An image that is not a PNG file in `folder` becomes its description; False for that.
    """
    name = unquote(str(image.attrs.get("src")))
    path = folder / name
    is_figure = name == path.name and path.suffix == ".png" and not path.is_symlink()
    if not is_figure or not path.is_file():
        image.type = "text"
        image.content = "".join(part.content for part in image.children or [])
        return False
    data = base64.b64encode(path.read_bytes()).decode()
    image.attrs["src"] = f"data:image/png;base64,{data}"
    return True


def terms_in(page: str) -> dict[str, str]:
    """Return the terms of the glossary that a page in Markdown uses, with their definitions."""
    return {
        term: definition
        for term, (pattern, definition) in _GLOSSARY.items()
        if re.search(rf"(?<!\w)(?:{pattern})(?!\w)", page)
    }
