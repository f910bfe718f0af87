"""Published encoders that `interop.load_encoder` reads, for the cards and docs/huggingface.md."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pe_jax.common.markdown import raw_table
from pe_jax.encodings import ENCODINGS, WRAPPERS
from pe_jax.interop.hf_encoders import FORMATS, VARIANTS, EncoderFormat

ALL_FORMATS: Mapping[str, EncoderFormat] = {**FORMATS, **VARIANTS}
HEAD_TITLES = {
    "masked_lm": "masked LM",
    "classifier": "classifier",
    "spans": "spans",
    "tokens": "tokens",
    "pooler": "pooler",
    "next_sentence": "next sentence",
}
_NAME = re.compile(r"[a-z]\w*")


class PublishedModel(NamedTuple):
    """A row of published.toml, which explains the fields."""

    name: str
    format: str
    encoding: str
    config: str = ""
    keys: Mapping[str, Any] = {}
    weights_tried: bool = False

    @property
    def parts(self) -> set[str]:
        """The registered encodings and wrappers in the name of its encoding."""
        words = _NAME.findall(self.encoding)
        return {word for word in words if word in ENCODINGS or word in WRAPPERS}


def read() -> list[PublishedModel]:
    """Return the rows of published.toml."""
    file = Path(__file__).with_suffix(".toml")
    rows = []
    for model_format, models in tomllib.loads(file.read_text(encoding="utf-8")).items():
        for name, fields in models.items():
            rows.append(PublishedModel(name, model_format, **fields))
    return rows


PUBLISHED = read()


def format_title(name: str) -> str:
    """Return the model type of a format, and the key that selects it if there are several."""
    title = f"`{name.partition('/')[0]}`"
    for key, accepted in ALL_FORMATS[name].when.items():
        title += f" with `{key}`"
        if accepted is not True:
            title += " of " + " or ".join(f"`{value}`" for value in accepted)
    return title


def _grouped(
    encoders: Sequence[PublishedModel],
) -> dict[tuple[str, str], list[str]]:
    """Return names of encoders by encoding and format, in code quotes."""
    names: dict[tuple[str, str], list[str]] = {}
    for encoder in encoders:
        group = names.setdefault((encoder.encoding, encoder.format), [])
        group.append(f"`{encoder.name}`")
    return names


def card_lines(key: str) -> list[str]:
    """Return the end of a card: the published encoders with this encoding, if there are any."""
    encoders = [encoder for encoder in PUBLISHED if key in encoder.parts]
    if not encoders:
        return []
    call = f'interop.load_encoder("{encoders[0].name}")'
    lines = [f"**Load it.** `{call}`. Published encoders with `{key}`:", ""]
    for (encoding, model_format), names in _grouped(encoders).items():
        line = f"- {', '.join(names)} ({format_title(model_format)})"
        lines.append(line if encoding == key else f"{line}: `{encoding}`")
    return [*lines, ""]


def encodings_table() -> list[str]:
    """Return the table of all published encoders, with a row for each encoding of each format."""
    order = list(dict.fromkeys(encoder.encoding for encoder in PUBLISHED))
    encoders = sorted(PUBLISHED, key=lambda encoder: order.index(encoder.encoding))
    lines = ["| encoding | `model_type` | published encoders |", "|---|---|---|"]
    for (encoding, model_format), names in _grouped(encoders).items():
        title = format_title(model_format)
        lines.append(f"| `{encoding}` | {title} | {', '.join(names)} |")
    return lines


def heads_table() -> list[str]:
    """Return the table of formats and their heads."""
    tried = {encoder.format: encoder for encoder in PUBLISHED if encoder.weights_tried}
    rows = []
    for name, fields in ALL_FORMATS.items():
        facts = [head in fields.heads for head in HEAD_TITLES]
        facts.append(name in FORMATS)  # An export looks for a format among these.
        facts.append(fields.in_transformers)
        weights = f"`{tried[name].name}`" if name in tried else "–"
        cells = ["yes" if fact else "–" for fact in facts]
        rows.append([format_title(name), *cells, weights])
    header = [
        "`model_type`",
        *HEAD_TITLES.values(),
        "exported",
        "in transformers 5",
        "published weights tried",
    ]
    return raw_table(header, rows)
