"""Folders of sentence-transformers: what follows the encoder, and its copy for an exported one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pe_jax.files import parse_json
from pe_jax.interop.export_folder import save_json

MODULES = "modules.json"
_ENCODER = Path(__file__).with_name("onnx_encoder.py")
_OWN = "sentence_transformers."  # Classes of the library, not code of a folder.


def modules_after_encoder(source: Path) -> list[dict[str, Any]]:
    """Return the entries of `modules.json` after the first one, a transformer: pooling and others.

    Raises:
      ValueError: for other files, and modules whose code is in the folder.
    """
    entries = parse_json((source / MODULES).read_text(encoding="utf-8"))
    types = [entry["type"] for entry in entries]
    if (
        not types
        or not types[0].endswith("Transformer")
        or not all(x.startswith(_OWN) for x in types)
    ):
        raise ValueError(
            f"{source / MODULES} must begin with a Transformer and have modules of "
            f"sentence-transformers alone, got {', '.join(types) or 'none'}."
        )
    return entries[1:]


def max_tokens(source: Path) -> int | None:
    """Return the number of tokens to which sentence-transformers cuts a text, if a file says."""
    file = source / "sentence_bert_config.json"
    return (
        parse_json(file.read_text(encoding="utf-8")).get("max_seq_length")
        if file.exists()
        else None
    )


def pooling(source: Path) -> dict[str, Any]:
    """Return the settings of the modules after the encoder, by class."""

    def settings(path: str) -> Any:
        file = source / path / "config.json"
        return parse_json(file.read_text(encoding="utf-8")) if path and file.exists() else {}

    modules = modules_after_encoder(source)
    return {module["type"].rpartition(".")[2]: settings(module["path"]) for module in modules}


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
