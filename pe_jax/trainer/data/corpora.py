"""Sources of text: the embedded default, local files, or a tfds dataset.

A corpus is a stream of documents (strings) and a checksum of its content. Sources, as
`config.data.source` writes them:

- `pydoc`: the prose of Python 3.11's language reference, shipped with this package (PSF license);
- `tfds:NAME:SPLIT`, e.g. `tfds:wiki40b/en:train[:1%]`: any prepared tfds text dataset, read without
  TensorFlow;
- anything else is a path or glob of `.txt` or `.jsonl` files, each also as `.gz` or `.xz`. Files of
  an object store such as `gs://` are read whole at every start, for the checksum.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import hashlib
import itertools
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from pe_jax.common.files import is_remote, parse_json, reachable_path, sha256
from pe_jax.common.values import shown
from pe_jax.trainer.data.tfds import decode, examples, open_dataset


class Corpus(NamedTuple):
    """A stream of documents; `checksum()` changes whenever their content may have."""

    source: str
    documents: Callable[[], Iterator[str]]
    checksum: Callable[[], str]


def open_corpus(source: str, *, feature: str = "text", data_dir: str = "") -> Corpus:
    """Open the corpus that `source` names (see above).

    Args:
      source: as `config.data.source` writes it.
      feature: the key of the text in JSON lines and tfds examples.
      data_dir: the folder of tfds datasets; empty means tfds's own default.

    Raises:
      ValueError: for a source that does not exist or has no such feature; while its documents are
        read, for a file that is damaged or not UTF-8.
    """
    if source.startswith("tfds:"):
        return _tfds_corpus(source, feature, data_dir)
    return _file_corpus(source, feature)


# --- local files ----------------------------------------------------------------------------------

_PYDOC = Path(__file__).with_name("python_reference.txt")
_KINDS = (".txt", ".jsonl")
_OPENERS: dict[str, Callable[..., IO]] = {".gz": gzip.open, ".xz": lzma.open}
_LONGEST_LINE = 2**28  # Bytes; a line takes ten times as much memory.


def matching_paths(pattern: str) -> list[Path]:
    """Return the local files, or those in an object store, that a pattern matches."""
    if not is_remote(pattern):
        local = map(Path, sorted(glob.glob(pattern, recursive=True)))
        return [path for path in local if path.is_file()]
    path = reachable_path(pattern)
    if "**" in pattern:
        raise ValueError(
            f"source={pattern!r}: ** works for local files only. In an object store, write a * for "
            "each level."
        )
    folder = next(parent for parent in path.parents if not {*"*?["} & {*str(parent)})
    paths = sorted(folder.glob(str(path.relative_to(folder))))
    return [path for path in paths if path.is_file()]


def _file_corpus(pattern: str, feature: str) -> Corpus:
    paths = [_PYDOC] if pattern == "pydoc" else matching_paths(pattern)
    if not paths:
        raise ValueError(
            f"source={pattern!r} matches no file. Give a path or glob of .txt or .jsonl "
            "files (also .gz, .xz), 'pydoc', or 'tfds:NAME:SPLIT'."
        )
    kinds = [_kind(path) for path in paths]

    def documents() -> Iterator[str]:
        for path, kind in zip(paths, kinds, strict=True):
            if kind == ".txt":
                yield from _read_text(path)
            else:
                yield from _read_json_lines(path, feature)

    def checksum() -> str:
        # Of the compressed files: hashing takes a fraction of the time of decompressing.
        # With their types, by which the same bytes are other documents.
        return checksum_of(feature, *map(sha256, paths), *kinds)

    return Corpus(pattern, documents, checksum)


def _kind(path: Path) -> str:
    """Return the suffix without that of a compression: `.txt` or `.jsonl`."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in _OPENERS]
    kind = suffixes[-1] if suffixes else ""
    if kind not in _KINDS:
        raise ValueError(
            f"Unknown file type: {path}. Its name must end in {', '.join(_KINDS)}, optionally "
            f"followed by {', '.join(_OPENERS)}."
        )
    return kind


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield lines and their numbers, from 1."""
    number = 0
    try:
        # Decoded line by line: text files are decoded in blocks, so their errors name no line.
        opener = _OPENERS.get(path.suffix, contextlib.nullcontext)
        with path.open("rb") as stored, opener(stored) as file:
            while line := file.readline(_LONGEST_LINE + 1):
                number += 1
                if len(line) > _LONGEST_LINE:
                    raise ValueError(
                        f"{path}, line {number}: longer than {_LONGEST_LINE:,} bytes, the most "
                        "that is read into memory at once. Split it, for example with fold -s -w "
                        "100000."
                    )
                text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
                for part in text.split("\r"):
                    yield number, part
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number}: not UTF-8 ({error.reason}). Convert the file, for example "
            "with iconv."
        ) from error
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}, after line {number}: the compressed file is damaged or truncated ({error}). "
            "Download it or compress it again."
        ) from error


def _read_text(path: Path) -> Iterator[str]:
    """Read documents separated by blank lines, as in the data format of the original BERT."""
    lines = (line.strip() for _, line in _lines(path))
    for has_text, block in itertools.groupby(lines, bool):
        if has_text:
            yield "\n".join(block)


def _read_json_lines(path: Path, feature: str) -> Iterator[str]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: not valid JSON ({error})."
            ) from error
        is_object = isinstance(record, dict)
        if not is_object or not isinstance(record.get(feature), str):
            keys = sorted(record) if is_object else type(record).__name__
            raise ValueError(
                f"{path}, line {number}: no text under the key {feature!r}; it has {shown(keys)}. "
                "Set the key with --config.data.feature=..."
            )
        yield record[feature]


# --- tfds -----------------------------------------------------------------------------------------

_WIKI40B_MARKUP = re.compile(r"_START_(?:ARTICLE|SECTION|PARAGRAPH)_|_NEWLINE_")


def _tfds_corpus(source: str, feature: str, data_dir: str) -> Corpus:
    name, _, split = source.removeprefix("tfds:").partition(":")
    if not name or not split:
        raise ValueError(f"source={source!r} must be tfds:NAME:SPLIT, for tfds.")
    builder = open_dataset(name, split, data_dir)
    if feature not in builder.info.features:
        raise ValueError(
            f"{source!r} has no feature {feature!r}; it has {sorted(builder.info.features)}. Set "
            "the one that holds the text: --config.data.feature=..."
        )
    described = builder.info.features[feature]
    if described.shape != () or np.dtype(described.np_dtype).kind not in "OSU":
        raise ValueError(
            f"{source!r}: the feature {feature!r} is {described}, not text. Set the one that holds "
            "the text: --config.data.feature=..."
        )
    has_markup = name.partition("/")[0] == "wiki40b"

    def documents() -> Iterator[str]:
        for place, example in examples(builder, name, split):
            text = decode(example, feature, place)
            yield _WIKI40B_MARKUP.sub("\n", text) if has_markup else text

    def checksum() -> str:
        info = builder.info
        count = str(info.splits[split].num_examples)
        size = str(info.dataset_size)  # A slice of a split has no size in bytes.
        return checksum_of(info.full_name, split, feature, count, size)

    return Corpus(source, documents, checksum)


def checksum_of(*facts: str) -> str:
    """Return the SHA-256 of some texts, in hexadecimal."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
