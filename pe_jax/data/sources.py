"""The values of `config.data.source`: text, tokenized into a cache, or shards, tokenized already.

Folders of the cache are written once and named after a hash of their inputs (the text's
fingerprint, the tokenizer, the format), so a second start finds them in the time of hashing the
input files and the arrays, and a changed input never finds an old copy (see `make_once`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from pe_jax.data.corpora import Corpus, digest, open_corpus
from pe_jax.data.tokenized import TokenizedCorpus, tokenize_documents
from pe_jax.data.tokenizer import load_tokenizer, train_tokenizer
from pe_jax.disk_cache import make_once
from pe_jax.files import to_path

_FORMAT = "4"  # Increment it when the arrays or the sentence rule change.
_SHARDS = "shards:"


def open_source(
    source: str,
    *,
    tokenizer: Tokenizer | None = None,
    vocab: str = "",
    vocab_size: int = 0,
    strip_accents: bool = False,
    feature: str = "text",
    data_dir: str = "",
    cache_dir: Path,
) -> tuple[TokenizedCorpus, Tokenizer]:
    """Return `shards:FOLDER`, or any source of `open_corpus`, as token ids; and the tokenizer.

    Args:
      tokenizer: if there is none, that at path `vocab`; if this is empty, the source's: trained on
        the text, `vocab_size` tokens at most, or the one that the shards were made with.
      feature, data_dir: as for `open_corpus`; shards ignore them.
      cache_dir: where tokenized text is cached.

    Raises:
      ValueError: for a source or tokenizer that does not exist, or that do not fit each other.
    """
    if source.startswith(_SHARDS):
        from pe_jax.data import shards  # Only here: a run on text does without array_record.

        folder = to_path(source.removeprefix(_SHARDS))
        if tokenizer is None:
            tokenizer = load_tokenizer(vocab) if vocab else shards.shards_tokenizer(folder)
        return shards.open_shards(folder, tokenizer), tokenizer
    corpus = open_corpus(source, feature=feature, data_dir=data_dir)
    if tokenizer is None:
        tokenizer = prepare_tokenizer(
            corpus, vocab, vocab_size, cache_dir, strip_accents=strip_accents
        )
    return tokenize(corpus, tokenizer, cache_dir), tokenizer


def prepare_tokenizer(
    corpus: Corpus, vocab: str, vocab_size: int, cache_dir: Path, *, strip_accents: bool = False
) -> Tokenizer:
    """Return the tokenizer at path `vocab`; if that is empty, train one on the corpus (cached).

    Args:
      strip_accents: see `train_tokenizer`.
    """
    if vocab:
        return load_tokenizer(vocab)

    def write(folder: Path) -> None:
        texts = _Texts(corpus, "vocabulary")
        tokenizer = train_tokenizer(texts, vocab_size, strip_accents=strip_accents)
        if (size := tokenizer.get_vocab_size()) > vocab_size:
            raise ValueError(
                f"--config.data.vocab_size={vocab_size} is too small for {corpus.source}: its "
                f"characters and the special tokens alone are {size:,} tokens. Set at least that."
            )
        (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")

    inputs = digest(_FORMAT, corpus.fingerprint(), str(vocab_size), str(strip_accents))[:20]
    return load_tokenizer(make_once(cache_dir / f"tokenizer-{inputs}", write) / "tokenizer.json")


def tokenize(corpus: Corpus, tokenizer: Tokenizer, cache_dir: Path) -> TokenizedCorpus:
    """Return the corpus as token ids, from the cache if it is there.

    Raises:
      ValueError: if the corpus holds no sentence.
    """

    def write(folder: Path) -> None:
        documents = _Texts(corpus, "tokenizing")
        tokenized = list(tokenize_documents(documents, tokenizer))
        if not tokenized:
            raise ValueError(f"The corpus {corpus.source!r} contains no text.")
        tokens, sizes = zip(*tokenized)
        np.save(folder / "tokens.npy", np.concatenate(tokens))
        np.save(folder / "sentences.npy", _starts(np.concatenate(sizes)))
        np.save(folder / "documents.npy", _starts([len(size) for size in sizes]))
        about = {
            "source": corpus.source,
            "tokens": sum(map(len, tokens)),
            "documents": len(sizes),
            "empty": documents.count - len(sizes),
        }
        (folder / "about.json").write_text(json.dumps(about, indent=2), encoding="utf-8")

    inputs = digest(_FORMAT, corpus.fingerprint(), tokenizer.to_str())[:20]
    return TokenizedCorpus(make_once(cache_dir / f"corpus-{inputs}", write))


def _starts(sizes: np.ndarray | list[int]) -> np.ndarray:
    """Return `[n + 1]`: the start of each part of these sizes, then the end of the last one."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


class _Texts:
    """The documents of a corpus as an iterable that can be read several times, and their number."""

    def __init__(self, corpus: Corpus, purpose: str):
        self._corpus, self._purpose, self.count = corpus, purpose, 0

    def __iter__(self) -> Iterator[str]:
        show = {"desc": self._purpose, "unit": " documents", "disable": not sys.stderr.isatty()}
        self.count = 0
        for text in tqdm(self._corpus.documents(), **show):
            self.count += 1
            yield text
