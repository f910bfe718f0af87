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

from pe_jax.data.special_tokens import special_tokens
from pe_jax.files import is_remote, writing

PROGRAM_FORMAT = 1  # Of the folders of `save_program`.


def check_folder(folder: str | Path) -> Path:
    """Return a local folder that is new or empty.

    Raises:
      ValueError: for any other.
    """
    if is_remote(folder):
        raise ValueError(f"{folder} is not a local folder. Export to one, then copy it there.")
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
    """Return a copy whose post-processor puts special tokens around texts, BERT's where it has none
    of its own, and which does not truncate or pad."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    names, ids = special_tokens(tokenizer), tokenizer.get_vocab()
    if names["cls"] and names["sep"] and not copy.num_special_tokens_to_add(False):
        cls, sep = ((names[role], ids[names[role]]) for role in ("cls", "sep"))
        copy.post_processor = processors.BertProcessing(sep, cls)
    return copy


def with_batches(tokenizer: Tokenizer, longest: int | None) -> Tokenizer:
    """Return a copy with special tokens that pads a batch, and truncates to `longest` tokens."""
    copy = with_special_tokens(tokenizer)
    pad = special_tokens(tokenizer)["pad"]
    if pad:
        copy.enable_padding(pad_id=copy.token_to_id(pad), pad_token=pad)
    if longest:
        copy.enable_truncation(longest)
    return copy


def save_program(
    folder: Path, file: str, program: bytes | bytearray, about: dict[str, Any], tokenizer: Tokenizer
) -> None:
    """Write a model as a program: the program itself, `model.json`, the tokenizer and a README.

    Args:
      file: name of the program; its suffix says which README it gets.
      about: content of `model.json` besides its format and the checksum; "max_length" is where the
        tokenizer truncates.
    """
    (folder / file).write_bytes(program)
    checksum = hashlib.sha256(program).hexdigest()
    save_json(folder / "model.json", {"format": PROGRAM_FORMAT, **about, "sha256": checksum})
    with_batches(tokenizer, about["max_length"]).save(str(folder / "tokenizer.json"))
    readme = Path(__file__).with_name(f"readme_{file.rpartition('.')[2]}.md")
    shutil.copyfile(readme, folder / "README.md")


def save_json(file: Path, values: dict[str, Any] | list[Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
