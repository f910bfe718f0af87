"""Templates of pages in HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with each `{{name}}` replaced by its value, in which nothing is replaced
    again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda field: values[field[1]], template)
