"""The values of `config.data.source`: text to tokenize, or shards that are tokenized already."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from pe_jax.data.corpora import open_corpus
from pe_jax.data.sharded import check_tokenizer, open_shards, shards_tokenizer
from pe_jax.data.tokenized import TokenizedCorpus, prepare_tokenizer, tokenize
from pe_jax.data.tokenizer import load_tokenizer
from pe_jax.files import to_path

_SHARDS = "shards:"


class Source(NamedTuple):
    """A source of token ids.

    Attributes:
      tokenizer: `tokenizer(vocab, vocab_size)` is the tokenizer at path `vocab`; if that is empty,
        the source's own: trained on the text, or the one that the shards were made with.
      tokenized: `tokenized(tokenizer)` is the corpus as token ids.
    """

    tokenizer: Callable[[str, int], Tokenizer]
    tokenized: Callable[[Tokenizer], TokenizedCorpus]


def open_source(source: str, *, feature: str, data_dir: str, cache_dir: Path) -> Source:
    """Opens `shards:FOLDER`, or any source of `open_corpus`.

    Args:
      feature, data_dir: as for `open_corpus`; shards ignore them.
      cache_dir: where tokenized text is cached.

    Raises:
      ValueError: for a source that does not exist.
    """
    if source.startswith(_SHARDS):
        folder = to_path(source.removeprefix(_SHARDS))
        return Source(
            functools.partial(_shards_tokenizer, folder), functools.partial(_shards, folder)
        )
    corpus = open_corpus(source, feature=feature, data_dir=data_dir)
    return Source(
        functools.partial(prepare_tokenizer, corpus, cache_dir=cache_dir),
        functools.partial(tokenize, corpus, cache_dir=cache_dir),
    )


def _shards_tokenizer(folder: Path, vocab: str, vocab_size: int) -> Tokenizer:
    del vocab_size  # Applies to training a vocabulary only.
    return load_tokenizer(vocab) if vocab else shards_tokenizer(folder)


def _shards(folder: Path, tokenizer: Tokenizer) -> TokenizedCorpus:
    check_tokenizer(folder, tokenizer)
    return open_shards(folder)
