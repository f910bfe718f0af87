"""Tokenized text in shards: their reader. docs/corpora.md describes the files.

Shard n is part n of the source, in its order. What a worker writes depends on its part and the
tokenizer alone, so a retry, on any machine, writes the same bytes. Each process that trains reads
only the blocks that its rows need, also where several hosts share a folder.

Not a tfds builder, which would write the tokens but neither index nor facts; not `.npy` files,
which would need checksums of our own to find damage without reading all of a file.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import json
from pathlib import Path
from typing import NamedTuple

import grain
import numpy as np
from tokenizers import Tokenizer

from pe_jax.data.tokenized import TokenizedCorpus, stored_dtype
from pe_jax.data.tokenizer import load_tokenizer
from pe_jax.files import read_json, sha256

FORMAT = 3  # Increment it when the files or the sentence rule change.
# Tokens per record: 6 kB, read in about the time of a far smaller one. Records are blocks and not
# documents: reading a chunk of 128 tokens costs the same in a tweet and in a book.
BLOCK = 2048
_WAY_OUT = "Copy the folder again, or prepare the corpus again."


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
    """The content of `about.json`: facts about all shards, in order.

    Attributes:
      block: tokens per record.
      dtype: of the token ids, by its NumPy name.
      tokenizer: SHA-256 of `tokenizer.json`.
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


def shard_name(number: int, count: int) -> str:
    """Return the name of shard `number` of `count`; sorting by name keeps the order."""
    width = max(5, len(str(count)))
    return f"{number:0{width}d}-of-{count:0{width}d}"


def tokens_file(name: str) -> str:
    return f"tokens-{name}.array_record"


def sizes_file(name: str) -> str:
    return f"sizes-{name}.npz"


class ShardedCorpus(TokenizedCorpus):
    """A folder of shards; slicing `tokens` reads from disk."""

    tokens = functools.cached_property(lambda self: ShardedTokens(self.folder))  # type: ignore

    @property
    def digest(self) -> str:
        """The digest of the tokenizer and of the sizes of all shards."""
        info = read_about(self.folder)
        facts = [info.tokenizer, [shard[2:] for shard in info.shards]]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class _File(NamedTuple):
    """All records of a file, as array_record takes them. It does not open a file to count them."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


class ShardedTokens:
    """`[T]` tokens of all shards, see `TokenizedCorpus`; read by slices: `tokens[a:b]`."""

    def __init__(self, folder: Path):
        info = read_about(folder)
        shards = [shard for shard in info.shards if shard.tokens]
        self._block, self._dtype = info.block, stored_dtype(info.dtype)
        blocks = [-(-shard.tokens // self._block) for shard in shards]
        # Indices of the first token and the first block of each shard. Lists: indexing one entry is
        # ten times as fast as in an array.
        self._starts = [0, *itertools.accumulate(shard.tokens for shard in shards)]
        self._first = [0, *itertools.accumulate(blocks)]
        self._paths = [str(folder / tokens_file(shard.name)) for shard in shards]
        self._records = grain.sources.ArrayRecordDataSource(
            [_File(path, 0, n, n) for path, n in zip(self._paths, blocks, strict=True)]
        )

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, part: slice) -> np.ndarray:
        begin, stop, _ = part.indices(len(self))
        pieces = [np.zeros(0, self._dtype)]
        while begin < stop:
            pieces.append(self._from(begin)[: stop - begin])
            begin += len(pieces[-1])
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def _from(self, index: int) -> np.ndarray:
        """Return the tokens from `index` to the end of its block."""
        shard = bisect.bisect_right(self._starts, index) - 1
        block, within = divmod(index - self._starts[shard], self._block)
        size = min(self._block, self._starts[shard + 1] - (index - within))
        try:
            tokens = np.frombuffer(self._records[self._first[shard] + block], self._dtype)
        except (RuntimeError, ValueError, IndexError) as error:
            raise _damaged(self._paths[shard], str(error)) from error
        if len(tokens) != size:
            raise _damaged(self._paths[shard], f"block {block} holds {len(tokens)} tokens")
        return tokens[within:]


def open_shards(folder: Path, tokenizer: Tokenizer | None = None) -> ShardedCorpus:
    """Open the corpus in `folder`, after comparing its files with those that `about.json` lists.

    Compares sizes, not contents: damage within a file is an error when its block is read.

    Args:
      tokenizer: if given, the one that the shards must have been made with.

    Raises:
      ValueError: if the folder is not finished, its format or tokenizer another one, or a file
        differs.
    """
    info = read_about(folder)
    if tokenizer is not None and (saved := shards_tokenizer(folder)).to_str() != tokenizer.to_str():
        raise ValueError(
            f"The shards in {folder} were made with another tokenizer ({saved.get_vocab_size():,} "
            f"tokens) than the run's ({tokenizer.get_vocab_size():,} tokens). Leave "
            "--config.data.vocab empty to use theirs, or prepare the corpus with the run's."
        )
    expected = {tokens_file(shard.name): shard.bytes for shard in info.shards}
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.array_record")}
    if sizes != expected:
        errors = [
            f"  {name}: {_size(sizes.get(name))}, should be {_size(expected.get(name))}"
            for name in sorted(sizes.keys() | expected.keys())
            if sizes.get(name) != expected.get(name)
        ]
        shown = "\n".join(errors[:10] + ["  ..."] * (len(errors) > 10))
        raise ValueError(
            f"The shards in {folder} differ from those that about.json lists:\n{shown}\n{_WAY_OUT}"
        )
    corpus = ShardedCorpus(folder)
    for name, count, end in (
        ("sentences", info.sentences, info.tokens),
        ("documents", info.documents, info.sentences),
    ):
        path = folder / f"{name}.npy"
        try:
            starts = getattr(corpus, name)
        except (OSError, ValueError) as error:
            raise _damaged(path, str(error)) from error
        if (len(starts), starts[-1]) != (count + 1, end):
            raise _damaged(path, f"{len(starts)} entries up to {starts[-1]}")
    return corpus


def shards_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer that the shards in `folder` were made with.

    Raises:
      ValueError: if the file is missing, or holds another tokenizer.
    """
    digest, path = read_about(folder).tokenizer, folder / "tokenizer.json"
    tokenizer = load_tokenizer(path)
    if sha256(path) != digest:
        raise ValueError(
            f"{path} is not the tokenizer that these shards were made with. {_WAY_OUT}"
        )
    return tokenizer


def read_about(folder: Path) -> ShardsInfo:
    """Return the content of `about.json`.

    Raises:
      ValueError: if there is none, or one of another format.
    """
    path = folder / "about.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no complete corpus: {path} is missing. Prepare it with python -m "
            "pe_jax.data.prepare, and wait until that has finished."
        )
    facts = read_json(path, _WAY_OUT)
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {facts.get('format')!r}, but this version reads format {FORMAT}. "
            "Prepare the corpus again."
        )
    try:
        return ShardsInfo(**{**facts, "shards": [Shard(**shard) for shard in facts["shards"]]})
    except (TypeError, KeyError) as error:
        raise _damaged(path, str(error)) from error


def _size(count: int | None) -> str:
    return "not there" if count is None else f"{count:,} bytes"


def _damaged(path: str | Path, fault: str) -> ValueError:
    return ValueError(f"{path} is damaged: {fault}. {_WAY_OUT}")
