"""Published config.json files, and what `from_hf` and the importer make of them."""

import json
import re
from pathlib import Path

from pe_jax.interop import from_hf
from pe_jax.interop.bert_import import config_of, current_config

FOLDER = Path(__file__).parents[1] / "published"
# Name of the model: its config.json.
ENCODERS = json.loads((FOLDER / "encoders.json").read_text(encoding="utf-8"))
DECODERS = json.loads((FOLDER / "decoders.json").read_text(encoding="utf-8"))


def imported(config):
    """The encoding of the model that the importer makes of a config.json."""
    return config_of(current_config(config, "the test"), "the test").encoding()


def outcome(make, config):
    """The name of an encoding; or "refused: " and the first key that the error names."""
    try:
        return make(config).name
    except ValueError as error:
        words = re.findall(r"[\w-]+", str(error))
        return "refused: " + next(word for word in words if word in config)


def table():
    """The table of docs/modern-details.md."""
    rows = [
        f"| `{name}` | {cell(from_hf, config)} | {cell(imported, config)} |"
        for name, config in {**ENCODERS, **DECODERS}.items()
    ]
    return "\n".join(["| file | `from_hf` | `load_encoder` |", "|---|---|---|", *rows])


def cell(make, config):
    result = outcome(make, config)
    if result.startswith("refused"):
        return result
    return f"`{result}`" if len(result) < 100 else f"`{result[:96]}...`"
