"""A tokenized corpus on disk: three flat arrays, memory-mapped, written once and keyed by content.

The folder's name is a hash of the inputs (the text's fingerprint, the tokenizer, the format), so a
second start finds it in the time of hashing the input files and the arrays, and a changed input
never finds an old copy (see `make_once`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from pe_jax.data.corpora import Corpus
from pe_jax.data.tokenizer import load_tokenizer, train_tokenizer
from pe_jax.disk_cache import make_once

_FORMAT = 2  # Increment it when the arrays or the sentence rule change.
_BATCH = 20_000  # Sentences per call of the tokenizer: enough for its threads.

# A sentence ends after . ! or ? (and one closing quote or bracket) before a space and an opening
# capital, digit, quote or bracket. "Sentences" of pretraining need no more (Devlin et al., A.2).
_SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]["'”’)\]]))\s+(?=["'“‘(\[]?[A-Z0-9])|\n+""")


class TokenizedCorpus:
    """Token ids of a corpus, and the starts of its sentences and documents.

    Attributes:
      tokens: `[T]` ids of all sentences, concatenated.
      sentences: `[S + 1]` index of each sentence's first token, then T.
      documents: `[N + 1]` index of each document's first sentence, then S.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def _load(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)

    tokens = functools.cached_property(lambda self: self._load("tokens"))
    sentences = functools.cached_property(lambda self: np.asarray(self._load("sentences")))
    documents = functools.cached_property(lambda self: np.asarray(self._load("documents")))

    def __reduce__(self):
        return type(self), (self.folder,)  # Worker processes map the files themselves.

    def all_documents(self) -> np.ndarray:
        return np.arange(len(self.documents) - 1)

    def split(self, held_out: float) -> tuple[np.ndarray, np.ndarray]:
        """Documents for training and for validation: every n-th one is held out, n = 1 / held_out.

        Raises:
          ValueError: if the fraction is not in (0, 0.5], or no document would be held out.
        """
        if not 0 < held_out <= 0.5:
            raise ValueError(f"held_out is a fraction of documents in (0, 0.5], got {held_out}.")
        every, numbers = round(1 / held_out), self.all_documents()
        if len(numbers) < every:
            raise ValueError(
                f"{len(numbers)} document(s) cannot be split with held_out={held_out}: name a "
                "validation source with --config.data.validation=..., or hold out more."
            )
        is_held_out = numbers % every == every - 1
        return numbers[~is_held_out], numbers[is_held_out]


def sentences(document: str) -> Iterator[str]:
    """Sentences of a document; line breaks end a sentence too."""
    return (s for s in (part.strip() for part in _SENTENCE_END.split(document)) if s)


class TokenizedDocument(NamedTuple):
    """tokens `[n]` of its concatenated sentences; sizes `[s]` uint32, tokens of each sentence."""

    tokens: np.ndarray
    sizes: np.ndarray


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
    """uint16 if it holds every id, else uint32."""
    return np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32)


def tokenize_documents(
    documents: Iterable[str], tokenizer: Tokenizer
) -> Iterator[TokenizedDocument]:
    """The documents in order; sentences and documents without a token are dropped."""
    pending: list[list[str]] = []
    waiting = 0
    for document in documents:
        pending.append(list(sentences(document)))
        waiting += len(pending[-1])
        if waiting >= _BATCH:
            yield from _tokenize_batch(pending, tokenizer)
            pending, waiting = [], 0
    yield from _tokenize_batch(pending, tokenizer)


def _tokenize_batch(
    documents: list[list[str]], tokenizer: Tokenizer
) -> Iterator[TokenizedDocument]:
    """Tokenizes documents, each a list of sentences, in one call."""
    dtype = token_dtype(tokenizer)
    encoded = iter(
        tokenizer.encode_batch_fast(
            [s for document in documents for s in document], add_special_tokens=False
        )
    )
    for document in documents:
        ids = [e for e in (next(encoded).ids for _ in document) if e]
        if ids:
            tokens = np.concatenate([np.asarray(i, dtype) for i in ids])
            yield TokenizedDocument(tokens, np.array([len(i) for i in ids], np.uint32))


def prepare_tokenizer(corpus: Corpus, vocab: str, vocab_size: int, cache_dir: Path) -> Tokenizer:
    """The tokenizer at path `vocab`; if that is empty, one trained on the corpus (cached)."""
    if vocab:
        return load_tokenizer(vocab)
    key = _key("tokenizer", corpus.fingerprint(), str(vocab_size))
    train = lambda: train_tokenizer(_Texts(corpus), vocab_size)
    folder = make_once(
        cache_dir / f"tokenizer-{key}", lambda at: train().save(str(at / "tokenizer.json"))
    )
    return load_tokenizer(folder / "tokenizer.json")


def tokenize(corpus: Corpus, tokenizer: Tokenizer, cache_dir: Path) -> TokenizedCorpus:
    """The corpus as token ids, from the cache if it is there.

    Raises:
      ValueError: if the corpus holds no sentence.
    """
    key = _key("corpus", corpus.fingerprint(), tokenizer.to_str())
    write = functools.partial(_write, corpus, tokenizer)
    return TokenizedCorpus(make_once(cache_dir / f"corpus-{key}", write))


def _write(corpus: Corpus, tokenizer: Tokenizer, folder: Path) -> None:
    documents = _with_progress(corpus.documents(), "tokenizing")
    done = list(tokenize_documents(documents, tokenizer))
    if not done:
        raise ValueError(f"The corpus {corpus.source!r} holds no text.")
    tokens = np.concatenate([document.tokens for document in done])
    np.save(folder / "tokens.npy", tokens)
    np.save(folder / "sentences.npy", _starts(np.concatenate([d.sizes for d in done])))
    np.save(folder / "documents.npy", _starts([len(d.sizes) for d in done]))
    about = {"source": corpus.source, "tokens": len(tokens), "documents": len(done)}
    (folder / "about.json").write_text(json.dumps(about, indent=2))


def _starts(sizes: np.ndarray | list[int]) -> np.ndarray:
    """`[n + 1]`: the start of each segment of the given sizes, then the end of the last one."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _key(*parts: str) -> str:
    text = json.dumps([_FORMAT, *parts])
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class _Texts:
    """The documents of a corpus as an iterable that can be read several times."""

    def __init__(self, corpus: Corpus):
        self._corpus = corpus

    def __iter__(self) -> Iterator[str]:
        yield from _with_progress(self._corpus.documents(), "vocabulary")


def _with_progress(documents: Iterator[str], what: str) -> Iterator[str]:
    return tqdm(documents, desc=what, unit=" documents", disable=not sys.stderr.isatty())
