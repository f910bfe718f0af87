"""Write the prose of the running Python's language reference to standard output.

python3.11 scripts/python_reference.py > pe_jax/trainer/data/python_reference.txt

The shipped text, `config.data.source=pydoc`, is that of CPython 3.11.7: every version of Python has
another one, and the numbers of a run would depend on it.
"""

import re
import sys
from collections.abc import Iterator
from pydoc_data.topics import topics


def documents() -> Iterator[str]:
    """Yield one document per topic: its paragraphs of prose, one a line, without duplicates.

    Some topics contain others as a whole. The smaller one comes first and keeps the text, so that a
    held-out topic does not occur in training as well.
    """
    seen = set()
    for _, text in sorted(topics.items(), key=lambda item: (len(item[1]), item[0])):
        paragraphs = []
        for block in re.split(r"\n\s*\n", text):
            paragraph = " ".join(block.split())
            if is_prose(paragraph) and paragraph not in seen:
                seen.add(paragraph)
                paragraphs.append(paragraph)
        if paragraphs:
            yield "\n".join(paragraphs)


def is_prose(paragraph: str) -> bool:
    """Return True for sentences; False for code, grammar productions, tables and headings."""
    letters = sum(c.isalpha() or c.isspace() for c in paragraph)
    return (
        len(paragraph.split()) >= 6
        and letters >= 0.8 * len(paragraph)
        and not paragraph.startswith((">>>", "def ", "class ", "@", "|", "+-"))
        and "::=" not in paragraph
    )


if __name__ == "__main__":
    text = "\n\n".join(documents())
    sys.stdout.buffer.write(f"{text}\n".encode())
