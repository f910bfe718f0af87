"""The Apache Beam pipeline that writes a folder of shards (see `pe_jax.data.shards`).

One worker reads one part of the source (a file, a range of a tfds split) and writes its shard; when
all shards are written, one worker writes the index, then `about.json`. Files go through Beam's file
systems, so sources and folders may be in a bucket. The code that splits text into documents,
sentences and tokens is the one that training uses on text, so the results are equal.
"""

from __future__ import annotations

import glob
import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from tokenizers import Tokenizer

from pe_jax.data import corpora, shard_writer, shards
from pe_jax.data.tokenizer import tokenizer_files
from pe_jax.files import is_remote

_UNFINISHED = ".unfinished-"  # In the names of files that are still being written.


def prepare(
    source: str,
    tokenizer: Tokenizer,
    out: str,
    options: PipelineOptions | None = None,
    *,
    feature: str = "text",
    data_dir: str = "",
    examples: int = 20_000,
) -> None:
    """Write the text of `source` as shards into the folder `out`; return when all are written.

    Args:
      source: as `config.data.source` writes it; paths may also be in a bucket (`gs://...`).
      out: a new folder, local or in a bucket, where all workers can write; or one that the same
        command was stopped in.
      options: Beam's.
      feature, data_dir: as for `pe_jax.data.open_corpus`.
      examples: the number of examples of a tfds dataset in one shard.

    Raises:
      ValueError: for a source that does not exist or holds no text, or a folder with other files.
    """
    if not is_remote(out):
        out = os.path.abspath(out)
    is_local = not is_remote(source)
    parts = corpora.parts(source, data_dir, examples) if is_local else _list(source)
    if not parts:
        raise ValueError(f"source={source!r} matches no file.")
    named = [(shards.shard_name(n, len(parts)), part) for n, part in enumerate(parts)]
    files = {name: text.encode() for name, text in tokenizer_files(tokenizer).items()}
    present = {file.rpartition("/")[2] for file in _list(FileSystems.join(out, "*"))}
    # Every file that the same command has written before it was stopped is written again.
    same = (
        "tokenizer.json" not in present or _read(out, "tokenizer.json") == files["tokenizer.json"]
    )
    if not same or present - _unfinished_files(present, [name for name, _ in named]):
        raise ValueError(f"{out} is not empty. Give another --out, or delete its contents.")
    for name, content in files.items():
        _publish(io.BytesIO(content), out, name)
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | "parts" >> beam.Create(named)
            | "spread" >> beam.Reshuffle()  # Otherwise one worker might get all parts.
            | "write shards" >> beam.ParDo(_WriteShard(out, feature, data_dir))
            | "wait for all" >> beam.combiners.ToList()
            | "write index" >> beam.Map(_write_index, source=source, out=out)
        )


def _unfinished_files(present: set[str], names: list[str]) -> set[str]:
    """Return the files that a command with shards of these names has left before it was done."""
    files = {"tokenizer.json", "tokenizer_config.json", "sentences.npy", "documents.npy"}
    files |= {file(name) for name in names for file in (shards.sizes_file, shards.tokens_file)}
    return {name for name in present if name.partition(_UNFINISHED)[0] in files}


class _WriteShard(beam.DoFn):
    """Write the shard of each part, given as its name and source; yield what the index needs."""

    def __init__(self, out: str, feature: str, data_dir: str):
        self._out, self._feature, self._data_dir = out, feature, data_dir

    def setup(self) -> None:
        # Read from the folder, not pickled with the pipeline: runners limit the pipeline's size.
        self._tokenizer = Tokenizer.from_buffer(_read(self._out, "tokenizer.json"))

    def process(self, named: tuple[str, str]) -> Iterator[shards.Shard]:
        name, part = named
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            source = _download(part, folder) if is_remote(part) else part
            corpus = corpora.open_corpus(source, feature=self._feature, data_dir=self._data_dir)
            shard = shard_writer.write_shard(corpus, self._tokenizer, folder, name)
            for file in (shards.sizes_file(name), shards.tokens_file(name)):
                _publish_file(folder / file, self._out)
        yield shard._replace(part=part)


def _write_index(written: list[shards.Shard], source: str, out: str) -> None:
    """Write the files that cover all shards."""
    written = sorted(written)  # By name, that is in the order of the source.
    sizes = (
        shard_writer.read_sizes(io.BytesIO(_read(out, shards.sizes_file(shard.name))))
        for shard in written
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shard_writer.write_index(source, written, sizes, _read(out, "tokenizer.json"), folder)
        # Files that failed workers left behind.
        if left := _list(FileSystems.join(out, f"*{_UNFINISHED}*")):
            FileSystems.delete(left)
        for file in ("sentences.npy", "documents.npy", "about.json"):
            _publish_file(folder / file, out)


# --- files, local or in a bucket ------------------------------------------------------------------


def _download(path: str, folder: Path) -> str:
    """Copy the remote file `path` into `folder`; return the source that names the copy."""
    copy = folder / path.rpartition("/")[2]
    with _open(path) as original, open(copy, "wb") as file:
        shutil.copyfileobj(original, file)
    return glob.escape(str(copy))


def _publish_file(path: Path, out: str) -> None:
    with open(path, "rb") as file:
        _publish(file, out, path.name)


def _publish(file: BinaryIO, out: str, name: str) -> None:
    """Copy a file into the folder `out` atomically: write under another name, then rename."""
    target = FileSystems.join(out, name)
    unfinished = f"{target}{_UNFINISHED}{uuid.uuid4().hex}"
    # Uncompressed, as Beam would otherwise compress and decompress by file suffix.
    with FileSystems.create(unfinished, compression_type=CompressionTypes.UNCOMPRESSED) as copy:
        shutil.copyfileobj(file, copy)
    FileSystems.rename([unfinished], [target])


def _list(pattern: str) -> list[str]:
    return sorted(found.path for found in FileSystems.match([pattern])[0].metadata_list)


def _read(out: str, name: str) -> bytes:
    with _open(FileSystems.join(out, name)) as file:
        return file.read()


def _open(path: str) -> BinaryIO:
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
