"""Folders of exported models: new ones that appear whole or not at all, and what all contain."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from pe_jax.common.files import is_remote, writing
from pe_jax.interop.special_tokens import special_tokens


def check_folder(folder: str | Path) -> Path:
    """Return a local folder that is new or empty.

    Raises:
      ValueError: for any other.
    """
    if is_remote(folder):
        raise ValueError(
            f"{folder} is not a local folder. Export to one, then copy it there."
        )
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty. Export to a new folder.")
    return folder


@contextlib.contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """Give a temporary folder, which is renamed to `folder` once everything is in it.

    Files get the modes of the user's umask, whatever the package that writes them sets.
    """
    folder = Path(folder)
    with writing(folder), contextlib.ExitStack() as stack:
        folder.parent.mkdir(parents=True, exist_ok=True)
        private = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
        stack.callback(shutil.rmtree, private, ignore_errors=True)
        temporary = private / "new"
        temporary.mkdir()
        yield temporary
        mode = stat.S_IMODE(temporary.stat().st_mode)
        for file in temporary.rglob("*"):
            file.chmod(mode if file.is_dir() else mode & 0o666)
        os.replace(temporary, folder)  # Also replaces an empty folder.


def with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy with special tokens around texts, by default BERT's, and no cuts or padding."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    names = special_tokens(tokenizer)
    cls, sep = names["cls"], names["sep"]
    if cls and sep and not copy.num_special_tokens_to_add(False):
        ids = tokenizer.get_vocab()
        copy.post_processor = processors.BertProcessing(
            (sep, ids[sep]), (cls, ids[cls])
        )
    return copy


def save_program(
    folder: Path,
    file: str,
    program: bytes | bytearray,
    about: dict[str, Any],
    tokenizer: Tokenizer,
) -> str:
    """Write a model as a program: the program itself, `model.json`, the tokenizer and a README.

    Args:
      file: name of the program; its suffix says which README it gets.
      about: content of `model.json` besides its format and the checksum; "max_length" is where the
        tokenizer, which pads batches, truncates.

    Returns:
      The names of the outputs, with their shapes.
    """
    (folder / file).write_bytes(program)
    checksum = hashlib.sha256(program).hexdigest()
    save_json(folder / "model.json", {"format": 1, **about, "sha256": checksum})
    tokenizer = with_special_tokens(tokenizer)
    if pad := special_tokens(tokenizer)["pad"]:
        tokenizer.enable_padding(pad_id=tokenizer.token_to_id(pad), pad_token=pad)
    if about["max_length"]:
        tokenizer.enable_truncation(about["max_length"])
    tokenizer.save(str(folder / "tokenizer.json"))
    shutil.copyfile(
        Path(__file__).with_name(f"readme_{Path(file).suffix[1:]}.md"),
        folder / "README.md",
    )
    return ", ".join(f"{name} {shape}" for name, shape in about["outputs"].items())


def save_json(file: Path, values: dict[str, Any] | list[Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
