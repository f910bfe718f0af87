"""Folders of sentence-transformers: what follows the encoder, and its copy for an exported one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pe_jax.files import parse_json
from pe_jax.interop.export_folder import save_json

MODULES = "modules.json"
_ENCODER = Path(__file__).with_name("onnx_encoder.py")


def modules_after_encoder(source: Path) -> list[dict[str, Any]]:
    """Return the entries of `modules.json` after the first one, a transformer: pooling and others.

    Raises:
      ValueError: for other files, and modules whose code is in the folder.
    """
    entries = _json(source / MODULES)
    types = [entry["type"] for entry in entries]
    others = [name for name in types if not name.startswith("sentence_transformers.")]
    if others or not types or not types[0].endswith("Transformer"):
        raise ValueError(
            f"{source / MODULES} must begin with a Transformer and have modules of "
            f"sentence-transformers alone, got {', '.join(types) or 'none'}."
        )
    return entries[1:]


def max_tokens(source: Path) -> int | None:
    """Return the number of tokens to which sentence-transformers cuts a text, if a file says."""
    return _json(source / "sentence_bert_config.json").get("max_seq_length")


def pooling(source: Path) -> dict[str, Any]:
    """Return the settings of the modules after the encoder, by class."""
    return {
        module["type"].rpartition(".")[2]: _json(source / module["path"] / "config.json")
        if module["path"]
        else {}
        for module in modules_after_encoder(source)
    }


def _json(file: Path) -> Any:
    return parse_json(file.read_text(encoding="utf-8")) if file.exists() else {}


def save_modules(folder: Path, source: Path) -> None:
    """Write `modules.json` with `onnx_encoder.py` first, and copy what the other modules read."""
    encoder = {"idx": 0, "name": "0", "path": "", "type": "onnx_encoder.OnnxEncoder"}
    modules = modules_after_encoder(source)
    save_json(folder / MODULES, [encoder, *modules])
    shutil.copyfile(_ENCODER, folder / _ENCODER.name)
    for module in modules:
        if module["path"] and (source / module["path"]).is_dir():
            shutil.copytree(source / module["path"], folder / module["path"])
    settings = source / "config_sentence_transformers.json"
    if settings.exists():  # Prompts and the similarity.
        shutil.copyfile(settings, folder / settings.name)
