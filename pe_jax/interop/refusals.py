"""Published folders that are no plain weights: adapters, quantised weights, code of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pe_jax.common.files import read_json
from pe_jax.common.values import shown

ADAPTER = "adapter_config.json"
# Parts of the names of tensors that a layer of an adapter, or a quantised one, has.
_ADAPTER_PARTS = ("lora_", "base_layer", "modules_to_save", "adapters")
_QUANTISED_PARTS = ("absmax", "quant_map", "quant_state", "qweight", "qzeros", "SCB")


def check_no_adapter(folder: Path) -> None:
    """Raise a ValueError for the folder of an adapter, which names its base model."""
    file = folder / ADAPTER
    if not file.is_file():
        return
    adapter = read_json(file, "Download it again.")
    kind = adapter.get("peft_type") or "an unknown kind"
    base = adapter.get("base_model_name_or_path")
    raise ValueError(
        f"{folder} holds an adapter ({ADAPTER}: {shown(kind)}) for the model {shown(base)}, not "
        "a whole model. Merge it into that model with peft, which needs torch, and load the "
        "result:\n"
        f"  from peft import AutoPeftModelForFeatureExtraction as Model\n"
        f"  Model.from_pretrained({str(folder)!r}).merge_and_unload().save_pretrained('MERGED')\n"
        "Copy the tokenizer and the files of sentence-transformers there. If the weights in "
        f"{folder} are whole already, move {ADAPTER} away."
    )


def check_plain_weights(
    path: Path, config: Mapping[str, Any], names: Iterable[str], known: Collection[str]
) -> None:
    """Raise a ValueError for a checkpoint that is quantised, an adapter's, or needs its own code.

    Args:
      path: of the checkpoint, for messages.
      config: the content of config.json.
      names: the names of the tensors.
      known: the model types that can be loaded.
    """
    parts: dict[str, str] = {}  # The first tensor with each part of a name.
    for name in names:
        for part in name.split("."):
            parts.setdefault(part, name)
    for part, name in parts.items():
        if part.startswith(_ADAPTER_PARTS):
            raise ValueError(
                f"{path} has the tensor {name!r} of an adapter beside the weights of its layer. "
                "Merge the adapter into the model with peft (merge_and_unload), save it, and load "
                "the result."
            )
        if part in _QUANTISED_PARTS:
            raise ValueError(
                f"{path} has the tensor {name!r} of quantised weights, which are not read. Load "
                "the model that was quantised, in floats."
            )
    kind = config.get("model_type")
    if config.get("auto_map") and kind is not None and kind not in known:
        raise ValueError(
            f"{path} needs code that comes with the model (auto_map of config.json: "
            f"{shown(config['auto_map'])}). Such code is never run, and model_type {shown(kind)} "
            f"is none of those that are built in: {', '.join(sorted(known))}. If one of these "
            "computes the same from the same tensors, write it as model_type and remove auto_map."
        )
