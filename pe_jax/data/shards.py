"""Tokenized text in shards: the format on disk, and its writer; each worker writes its own shard.

A folder of shards holds, for N of them,

- `tokens-00000-of-0000N.array_record`: concatenated token ids, in records of BLOCK ids, the last
  one shorter. A record is the bytes of little-endian uint16, or uint32 if the vocabulary needs it.
  Blocks, not documents: reading a chunk of 128 tokens costs the same in a tweet and in a book;
- `sizes-00000-of-0000N.npz`: the tokens of each sentence, the sentences of each document, as uint32
  counts;
- `sentences.npy`, `documents.npy`: the starts of the sentences and documents of all shards, as in
  `pe_jax.data.tokenized`, so that training maps two files, however many shards there are;
- `tokenizer.json`;
- `about.json`, written last: the expected content. A folder without it is not finished.

Shard n is part n of the source, in its order. What a worker writes depends on its part and the
tokenizer alone, so a retry, on any machine, writes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from tokenizers import Tokenizer

from pe_jax.data.corpora import Corpus
from pe_jax.data.tokenized import token_dtype, tokenize_documents

FORMAT = 1  # Increment it when the files or the sentence rule change.
BLOCK = 2048  # Token ids per record: 4 kB, read in about the time of a far smaller one.


class Shard(NamedTuple):
    """Facts about a shard, from the worker that wrote it.

    Attributes:
      name: `00000-of-00004`.
      part: the part of the source that it holds.
      tokens, sentences, documents: their numbers.
      bytes: size of the tokens' file.
    """

    name: str
    part: str
    tokens: int
    sentences: int
    documents: int
    bytes: int


class ShardsInfo(NamedTuple):
    """The content of `about.json`.

    Attributes:
      format: FORMAT of the version that wrote the folder.
      source: the whole source.
      tokens, sentences, documents: their numbers over all shards.
      block: token ids per record.
      dtype: of the token ids, by its NumPy name.
      tokenizer: SHA-256 of `tokenizer.json`.
      shards: one entry per shard, in order.
    """

    format: int
    source: str
    tokens: int
    sentences: int
    documents: int
    block: int
    dtype: str
    tokenizer: str
    shards: list[Shard]


class ShardSizes(NamedTuple):
    """uint32 counts: tokens of each sentence, `[s]`, and sentences of each document, `[n]`."""

    sentences: np.ndarray
    documents: np.ndarray


def shard_name(number: int, count: int) -> str:
    """The name of shard `number` of `count`; sorting by name keeps the order."""
    width = max(5, len(str(count)))
    return f"{number:0{width}d}-of-{count:0{width}d}"


def tokens_file(name: str) -> str:
    return f"tokens-{name}.array_record"


def sizes_file(name: str) -> str:
    return f"sizes-{name}.npz"


def write_shard(corpus: Corpus, tokenizer: Tokenizer, folder: Path, name: str) -> Shard:
    """Writes the two files of a shard into `folder`, with one batch of documents in memory."""
    blocks = _Blocks(folder / tokens_file(name), token_dtype(tokenizer))
    sentences, documents = [np.zeros(0, np.uint32)], []
    for document in tokenize_documents(corpus.documents(), tokenizer):
        blocks.add(document.tokens)
        sentences.append(document.sizes)
        documents.append(len(document.sizes))
    tokens = blocks.close()
    sizes = ShardSizes(np.concatenate(sentences), np.array(documents, np.uint32))
    np.savez(folder / sizes_file(name), **sizes._asdict())
    return Shard(
        name=name,
        part=corpus.source,
        tokens=tokens,
        sentences=len(sizes.sentences),
        documents=len(sizes.documents),
        bytes=(folder / tokens_file(name)).stat().st_size,
    )


class _Blocks:
    """Writes a stream of token ids in records of BLOCK."""

    def __init__(self, path: Path, dtype: np.dtype):
        # One record per group, for random access: a group is read as a whole. Compression would
        # save a quarter of the size, and double the time to read.
        self._writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        self._dtype = dtype.newbyteorder("<")
        self._remainder = np.zeros(0, self._dtype)
        self._tokens = 0

    def add(self, tokens: np.ndarray) -> None:
        self._tokens += len(tokens)
        waiting = np.concatenate([self._remainder, tokens.astype(self._dtype)])
        whole = len(waiting) - len(waiting) % BLOCK
        for first in range(0, whole, BLOCK):
            self._writer.write(waiting[first : first + BLOCK].tobytes())
        self._remainder = waiting[whole:]

    def close(self) -> int:
        """Writes the remainder; returns the number of tokens written."""
        if len(self._remainder):
            self._writer.write(self._remainder.tobytes())
        self._writer.close()
        return self._tokens


def read_sizes(file: Path | BinaryIO) -> ShardSizes:
    """The sizes from a path or an open file."""
    with np.load(file, allow_pickle=False) as arrays:
        return ShardSizes(arrays["sentences"], arrays["documents"])


def write_index(shards: list[Shard], sizes: Iterable[ShardSizes], folder: Path) -> None:
    """Writes `sentences.npy` and `documents.npy` of all shards.

    Args:
      sizes: those of each shard, in the same order; one at a time is in memory.

    Raises:
      ValueError: if no shard holds a sentence, or a shard's sizes contradict its other file.
    """
    if not any(shard.tokens for shard in shards):
        raise ValueError(f"The {len(shards)} part(s) of the source hold no text.")
    sentences = _starts_file(folder / "sentences.npy", sum(s.sentences for s in shards))
    documents = _starts_file(folder / "documents.npy", sum(s.documents for s in shards))
    s = d = 0
    for shard, (in_tokens, in_sentences) in zip(shards, sizes, strict=True):
        found = (int(in_tokens.sum(dtype=np.int64)), len(in_tokens), len(in_sentences))
        if found != (shard.tokens, shard.sentences, shard.documents):
            raise ValueError(
                f"{sizes_file(shard.name)} counts {found} tokens, sentences and documents, its "
                f"shard {shard[2:5]}: prepare the corpus again."
            )
        # Written in place, continuing from the last start of the previous shard.
        for starts, at, of in ((sentences, s, in_tokens), (documents, d, in_sentences)):
            starts[at + 1 : at + 1 + len(of)] = starts[at] + np.cumsum(of, dtype=np.int64)
        s, d = s + len(in_tokens), d + len(in_sentences)
    sentences.flush()
    documents.flush()


def _starts_file(path: Path, count: int) -> np.memmap:
    starts = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(count + 1,))
    starts[0] = 0
    return starts


def about(source: str, shards: list[Shard], tokenizer_json: bytes) -> str:
    """The text of `about.json`."""
    facts = ShardsInfo(
        format=FORMAT,
        source=source,
        tokens=sum(shard.tokens for shard in shards),
        sentences=sum(shard.sentences for shard in shards),
        documents=sum(shard.documents for shard in shards),
        block=BLOCK,
        dtype=token_dtype(Tokenizer.from_buffer(tokenizer_json)).name,
        tokenizer=hashlib.sha256(tokenizer_json).hexdigest(),
        shards=shards,
    )
    listed = [shard._asdict() for shard in shards]
    return json.dumps(facts._asdict() | {"shards": listed}, indent=1) + "\n"
