"""Registry of Hugging Face's families, by `model_type`: facts that their configs leave out.

`hf_families.json` has them. `from_hf` reads all of them. `load_position_table` reads the `table` of
a family that has one, and `load_bert` and `save_bert` its `encoder`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pe_jax.interop.encoder_format import EncoderFormat
from pe_jax.interop.hf_encoders import FORMATS
from pe_jax.interop.hf_family import HFFamily
from pe_jax.interop.hf_layers import REACHES, layer_rule

_DATA = json.loads(Path(__file__).with_name("hf_families.json").read_text(encoding="utf-8"))


def _family(name: str, sizes: str, row: Mapping[str, Any]) -> HFFamily:
    facts = {key: value for key, value in row.items() if key not in ("models", "note")}
    facts |= {key: tuple(row[key]) for key in ("encodings", "needs") if key in row}
    if table := row.get("table"):
        facts["table"] = tuple(_DATA["tables"][table] if isinstance(table, str) else table)
    if isinstance(settings := row.get("settings"), str):
        facts["settings"] = _DATA["settings"][settings]
    if "is_full" in row:
        facts["is_full"] = layer_rule(row["is_full"])
    if "reach" in row:
        facts["reach"] = REACHES[row["reach"]]
    sizes_of_model = tuple(map(int, sizes.split("/")))
    return HFFamily(**facts, encoder=FORMATS.get(name), sizes=sizes_of_model)


def _families(kind: str) -> dict[str, HFFamily]:
    return {
        name: _family(name, sizes, row)
        for row in _DATA[kind]
        if not isinstance(row, str)
        for name, sizes in row["models"].items()
    }


DECODERS: Mapping[str, HFFamily] = _families("decoders")
TOWERS: Mapping[str, HFFamily] = _families("towers")  # Models of images or speech inside others.
FAMILIES: Mapping[str, HFFamily] = {**_families("encoders"), **DECODERS, **TOWERS}
# Those whose encoders are read and written; an export tries them in this order.
ENCODERS: Mapping[str, EncoderFormat] = {
    name: family.encoder for name, family in FAMILIES.items() if family.encoder is not None
}
# The reason, as the end of a sentence that names the model type.
REFUSED: Mapping[str, str] = {
    name: reason for names, reason in _DATA["refused"].items() for name in names.split()
}
WITHOUT: tuple[str, ...] = tuple(_DATA["without"])  # Parts of models, without such positions.
# Names in the first configs of a family.
FIRST_NAMES = {"new": "gte"}
