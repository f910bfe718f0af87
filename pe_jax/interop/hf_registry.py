"""Registry of Hugging Face's families, by `model_type`: facts that their configs leave out.

`hf_families.json` has them. `from_hf` reads all of them. `load_position_table` reads the `table` of
a family that has one, and `load_encoder` and `save_encoder` its `encoder`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pe_jax.encodings.rotary.several_axes import AxialLayout
from pe_jax.interop.hf_encoders import FORMATS, EncoderFormat
from pe_jax.interop.hf_layers import REACHES, SLIDING, Config, IsFull, layer_rule

AXIAL, INKLING = "axial", "inkling"
BY_LAYER = ("rope", "rotary", "rope_gptj", AXIAL, INKLING)
SIZE_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "max_position_embeddings",
)
_ROPE = {"head_dim", "rope_theta", "rope_scaling", "rope_parameters", "is_causal"}
_ROPE |= {"original_max_position_embeddings"}


class HFFamily(NamedTuple):
    """Facts about a family that its configs leave out."""

    theta: float = 10_000.0  # The default of `rope_theta`.
    # Of the keys that the class has besides those of `reads`, None for no default.
    defaults: Config = {}
    layout: AxialLayout = (
        "half"  # Of the weights; `rope_interleave` in a config takes precedence.
    )
    # The layers with full attention where `layer_types` is missing; None for all.
    is_full: IsFull | None = None
    other: str = SLIDING  # The type of the other layers.
    slides: bool = False  # Layers with full attention have the window, if there is one.
    # Layers with full attention have no RoPE, if there is a window.
    only_sliding_rotates: bool = False
    # Of a window, from its size; None for the rules of `from_hf`.
    reach: Callable[[int], int] | None = None
    # Version 4's `rope_scaling` is of the layers with full attention alone.
    scales_full_only: bool = False
    scales_logits: bool = False  # YaRN's `mscale_all_dim` scales all logits as well.
    settings: Config = {}  # Rope settings of a config that has none.
    # What `position_embedding_type` may be, the default first; with one, it is not read.
    # `"rotary"` is RoPE without settings, `"axial"` RoPE of rows and columns.
    encodings: tuple[str, ...] = ("rope",)
    # Keys that the class has under another name, which takes precedence: theirs -> ours.
    renamed: Mapping[str, str] = {}
    needs: tuple[str, ...] = ()  # Keys without which nothing is known.
    only: Config = {}  # Keys that are supported with this value alone, or left out.
    padded_table: bool = (
        False  # Rows up to `pad_token_id` of the learned table are of no position.
    )
    # Names that the learned table has in published checkpoints; none if it is not read.
    table: tuple[str, ...] = ()
    # How its encoders are read and written; None if they are not.
    encoder: EncoderFormat | None = None
    sizes: tuple[int, ...] = ()  # Defaults of `SIZE_KEYS`.

    def reads(self) -> set[str]:
        """Return the keys of a config that matter to positions; its class ignores all others."""
        keys = {*SIZE_KEYS, "model_type", *self.defaults, *self.needs}
        has_types = self.is_full is not None
        if has_types:
            keys.add("layer_types")
        if self.slides or (has_types and self.other == SLIDING):
            keys.add("sliding_window")
        if len(self.encodings) > 1:
            keys.add("position_embedding_type")
        if self.padded_table:
            keys.add("pad_token_id")
        if "rope" in self.encodings or AXIAL in self.encodings:
            keys |= _ROPE
        return keys


# A config without `model_type`: nothing is known but what it says.
UNNAMED = HFFamily(encodings=("rope", "rotary", "rope_gptj"))


_DATA = json.loads(
    Path(__file__).with_name("hf_families.json").read_text(encoding="utf-8")
)


def _family(name: str, sizes: str, row: Mapping[str, Any]) -> HFFamily:
    facts = dict(row)
    facts.pop("models")
    facts.pop("note", None)
    # Strings are the names of tables and settings that several families have.
    if isinstance(row.get("table"), str):
        facts["table"] = _DATA["tables"][row["table"]]
    if isinstance(row.get("settings"), str):
        facts["settings"] = _DATA["settings"][row["settings"]]
    for key in ("encodings", "needs", "table"):
        if key in facts:
            facts[key] = tuple(facts[key])
    if "is_full" in row:
        facts["is_full"] = layer_rule(row["is_full"])
    if "reach" in row:
        facts["reach"] = REACHES[row["reach"]]
    sizes_of_model = tuple(map(int, sizes.split("/")))
    return HFFamily(**facts, encoder=FORMATS.get(name), sizes=sizes_of_model)


def _families(kind: str) -> dict[str, HFFamily]:
    families = {}
    for row in _DATA[kind]:
        if isinstance(row, str):
            continue
        for name, sizes in row["models"].items():
            families[name] = _family(name, sizes, row)
    return families


DECODERS: Mapping[str, HFFamily] = _families("decoders")
# Models of images or speech inside others.
TOWERS: Mapping[str, HFFamily] = _families("towers")
FAMILIES: Mapping[str, HFFamily] = {**_families("encoders"), **DECODERS, **TOWERS}
# Those whose encoders are read and written; an export tries them in this order.
ENCODERS: Mapping[str, EncoderFormat] = {
    name: family.encoder
    for name, family in FAMILIES.items()
    if family.encoder is not None
}
# The reason, as the end of a sentence that names the model type.
REFUSED: dict[str, str] = {}
for _names, _reason in _DATA["refused"].items():
    REFUSED |= dict.fromkeys(_names.split(), _reason)
# Parts of models, without such positions.
WITHOUT: tuple[str, ...] = tuple(_DATA["without"])
# Names in the first configs of a family.
FIRST_NAMES = {"new": "gte"}


def current_name(model_type: str, config: Config) -> str:
    """Return the name of a family as transformers has it, for that in its first configs."""
    if model_type == "bert" and config.get("use_relative_position"):
        return "nezha"
    return FIRST_NAMES.get(model_type, model_type)
