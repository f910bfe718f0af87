"""Pages of reports: Markdown, and the same as one HTML file with its figures and a glossary."""

from __future__ import annotations

import base64
import re
from html import escape
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from pe_jax.files import write_text
from pe_jax.reports.glossary import terms_in

_NUMBER = re.compile(r"[+−-]?\d[\d.,]*(e[+-]?\d+)?( ?%| ± .*)?|–")  # Aligned to the right.

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto;
  max-width: 1100px; padding: 0 16px 48px; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
p, li, dd { max-width: 75ch; }
.wide { max-width: none; overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 16px 4px 0; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #888; vertical-align: bottom; }
td { border-bottom: 1px solid #ddd; }
.number { text-align: right; }
img { display: block; height: auto; max-width: max(100%, 640px); }
dt { font-weight: 600; }
dd { margin: 0 0 0.6rem 1rem; }
@media (min-width: 640px) { dl { display: grid; grid-template-columns: max-content 1fr; } }
"""
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
<body>
{body}</body>
</html>
"""


def write_page(path: Path, text: str) -> str:
    """Write a page in Markdown to `path`, and beside it as .html; return the text.

    The HTML is one file: figures of the page's folder are inside of it.
    """
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
    if terms := terms_in(text):
        lines = (f"<dt>{escape(term)}\n<dd>{escape(meaning)}\n" for term, meaning in terms)
        body += f"<h2>Glossary</h2>\n<dl>\n{''.join(lines)}</dl>\n"
    title = escape(text.partition("\n")[0].lstrip("# "))
    return _PAGE.format(title=title, style=_STYLE, body=body)
