"""Writer of shards of tokenized text, see `pe_jax.data.shards`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from tokenizers import Tokenizer

from pe_jax.data import shards
from pe_jax.data.corpora import Corpus
from pe_jax.data.tokenized import token_dtype, tokenize_documents


def write_shard(corpus: Corpus, tokenizer: Tokenizer, folder: Path, name: str) -> shards.Shard:
    """Write the two files of a shard into `folder`, with one batch of documents in memory."""
    path, dtype = folder / shards.tokens_file(name), token_dtype(tokenizer)
    # One record per group, for random access: a group is read as a whole. Compression would save a
    # quarter of the size, and double the time to read.
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    remainder, sentences, documents = np.zeros(0, dtype), [np.zeros(0, np.uint32)], []
    for tokens, sizes in tokenize_documents(corpus.documents(), tokenizer):
        remainder = np.concatenate([remainder, tokens])
        while len(remainder) >= shards.BLOCK:
            writer.write(remainder[: shards.BLOCK].tobytes())
            remainder = remainder[shards.BLOCK :]
        sentences.append(sizes)
        documents.append(len(sizes))
    if len(remainder):
        writer.write(remainder.tobytes())
    writer.close()
    in_tokens, in_sentences = np.concatenate(sentences), np.array(documents, np.uint32)
    np.savez(folder / shards.sizes_file(name), sentences=in_tokens, documents=in_sentences)
    return shards.Shard(
        name=name,
        part=corpus.source,
        tokens=int(in_tokens.sum(dtype=np.int64)),
        sentences=len(in_tokens),
        documents=len(in_sentences),
        bytes=path.stat().st_size,
    )


def read_sizes(file: Path | BinaryIO) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of each sentence and the sentences of each document of a shard."""
    with np.load(file, allow_pickle=False) as arrays:
        return arrays["sentences"], arrays["documents"]


def write_index(
    source: str,
    written: list[shards.Shard],
    sizes: Iterable[tuple[np.ndarray, np.ndarray]],
    tokenizer_json: bytes,
    folder: Path,
) -> None:
    """Write the files that cover all shards, `about.json` last.

    Args:
      sizes: from `read_sizes` for each shard, in the same order; one at a time is in memory.

    Raises:
      ValueError: if no shard holds a sentence, or a shard's sizes contradict its other file.
    """
    info = shards.ShardsInfo(
        format=shards.FORMAT,
        source=source,
        tokens=sum(shard.tokens for shard in written),
        sentences=sum(shard.sentences for shard in written),
        documents=sum(shard.documents for shard in written),
        block=shards.BLOCK,
        dtype=token_dtype(Tokenizer.from_buffer(tokenizer_json))["id"].name,
        tokenizer=hashlib.sha256(tokenizer_json).hexdigest(),
        shards=written,
    )
    if not info.tokens:
        raise ValueError(f"The source has {len(written)} part(s) and none holds text.")
    # Zeros, and written in place, continuing from the last start of the previous shard.
    sentences, documents = (
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.int64, shape=(count + 1,))
        for name, count in (("sentences", info.sentences), ("documents", info.documents))
    )
    s = d = 0
    for shard, (in_tokens, in_sentences) in zip(written, sizes, strict=True):
        counts = (int(in_tokens.sum(dtype=np.int64)), len(in_tokens), len(in_sentences))
        if counts != (shard.tokens, shard.sentences, shard.documents):
            raise ValueError(
                f"{shards.sizes_file(shard.name)} lists {counts} tokens, sentences and documents, "
                f"but its shard has {shard[2:5]}. Prepare the corpus again."
            )
        for starts, n, counted in ((sentences, s, in_tokens), (documents, d, in_sentences)):
            starts[n + 1 : n + 1 + len(counted)] = starts[n] + np.cumsum(counted, dtype=np.int64)
        s, d = s + len(in_tokens), d + len(in_sentences)
    sentences.flush()
    documents.flush()
    facts = info._asdict() | {"shards": [shard._asdict() for shard in written]}
    (folder / "about.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
