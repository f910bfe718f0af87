"""Text as token ids: a tokenized corpus is three flat arrays on disk, memory-mapped."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

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
        """Return documents for training and for validation: every n-th, n = 1 / held_out.

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
    """Yield the sentences of a document; line breaks end a sentence too."""
    return (s for s in (part.strip() for part in _SENTENCE_END.split(document)) if s)


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
    """Return uint16 if it holds every id, else uint32."""
    return np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32)


def tokenize_documents(
    documents: Iterable[str], tokenizer: Tokenizer
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the tokens `[n]` of each document, and uint32 `[s]`, how many each sentence has.

    Sentences and documents without a token are dropped.
    """
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
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tokenize documents, each a list of sentences, in one call."""
    dtype = token_dtype(tokenizer)
    flat = [sentence for document in documents for sentence in document]
    encoded = iter(tokenizer.encode_batch_fast(flat, add_special_tokens=False))
    for document in documents:
        ids = [e for e in (next(encoded).ids for _ in document) if e]
        if ids:
            tokens = np.concatenate([np.asarray(i, dtype) for i in ids])
            yield tokens, np.array([len(i) for i in ids], np.uint32)
