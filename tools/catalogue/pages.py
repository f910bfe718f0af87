"""All pages of the catalogue: the table of encodings, and the cards of each family."""

from __future__ import annotations

from collections.abc import Sequence

from catalogue import card, catalogue_page, snippets
from catalogue.drawings import PARTNERS
from catalogue.entries import Entry, rows
from catalogue.results import Results
from research.which_encoding.results import read_lines


def pages(entries: Sequence[Entry], results: Results) -> dict[str, str]:
    """Return pages by their path in docs/.

    Args:
      entries: rows of the table.
    """
    scores, pictures = (read_lines(f"{name}.jsonl") for name in ("results", "pictures"))
    keys = {row.key for row in entries}
    first = {row.key: row for row in reversed(rows(snippets.SIZES)) if row.key in keys}
    code = {
        key: snippets.snippet(row, PARTNERS.get(key, "")) for key, row in first.items()
    }
    families = dict.fromkeys(card.family(row.key) for row in entries)
    return {
        "catalogue.md": catalogue_page.page(
            entries, results.rows, results.none_ms, scores
        ),
        **{
            f"gallery/{name}.md": card.family_page(
                name, entries, results.rows, code, scores, pictures
            )
            for name in families
        },
    }
