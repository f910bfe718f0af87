"""Text as token ids: a tokenized corpus is three flat arrays on disk, memory-mapped."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import operator
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding, Tokenizer

from pe_jax.common.shapes import Bool, Int
from pe_jax.interop.special_tokens import is_word_piece, text_tokenizer
from pe_jax.interop.words import word_rule
from pe_jax.trainer.disk_cache import DIGESTS

# Characters per call of the tokenizer: enough for its threads, at some 100 bytes a token.
_BATCH = 2_000_000

# English: a sentence ends after . ! or ? (and one closing quote or bracket) before a space and an
# opening capital, digit, quote or bracket. Pretraining needs no more (Devlin et al., A.2).
_ENGLISH_END = re.compile(
    r"""(?:(?<=[.!?])|(?<=[.!?]["'”’)\]]))\s+(?=["'“‘(\[]?[A-Z0-9])|\n+"""
)

# Any script: after a full-width stop, or another before a space. The group is the next letter.
_STOPS, _WIDE_STOPS, _CLOSING = ".!?…؟۔।॥։።܀", "。！？｡", "\"'”’)\\]»」』）】"
_END = re.compile(
    rf"(?:(?<=[{_STOPS}])|(?<=[{_STOPS}][{_CLOSING}]))\s+(?=[\"'“‘(\[«„¿¡]?([^\W_]))"
    rf"|(?:(?<=[{_WIDE_STOPS}])(?![{_WIDE_STOPS}{_CLOSING}])|(?<=[{_WIDE_STOPS}][{_CLOSING}]))\s*(?=\S)"
    r"|\n+"
)
_ENDS = f"\n{_STOPS}{_WIDE_STOPS}"
# The most characters of a sentence, on average over a document with stops, and one without: above,
# it is cut into windows, at spaces if it has any.
_LONGEST_SENTENCE, _LONGEST_LINE = 1_000, 400
_MOST_CHARACTERS = 100_000  # Of any sentence; a longer one is cut into windows.
_STOP = re.compile(f"[{_STOPS}{_WIDE_STOPS}]")
_WINDOW = re.compile(r"\S.{0,98}\S(?!\S)|\S.{0,99}", re.DOTALL)


class TokenizedCorpus:
    """Token ids of a corpus, and the starts of its sentences and documents.

    Attributes:
      tokens: `[T]`, a structured array of `id`, and of `begins`, True where a word begins.
      sentences: `[S + 1]` index of each sentence's first token, then T.
      documents: `[N + 1]` index of each document's first sentence, then S.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def _load(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)

    @functools.cached_property
    def tokens(self) -> np.ndarray:
        return self._load("tokens")

    # Indexing a memmap makes a memmap, which is slow for the small pieces of these.
    @functools.cached_property
    def sentences(self) -> np.ndarray:
        return np.asarray(self._load("sentences"))

    @functools.cached_property
    def documents(self) -> np.ndarray:
        return np.asarray(self._load("documents"))

    def __reduce__(self):
        return type(self), (self.folder,)  # Worker processes map the files themselves.

    @property
    def empty(self) -> int:
        """The number of documents that were read and have no token."""
        return json.loads((self.folder / "about.json").read_text("utf-8"))["empty"]

    @property
    def checksum(self) -> str:
        """The checksum of the arrays, wherever their text was read from."""
        checksums = json.loads((self.folder / DIGESTS).read_text("utf-8"))
        files = ("tokens.npy", "sentences.npy", "documents.npy")
        arrays = [checksums[file] for file in files]
        return hashlib.sha256(json.dumps(arrays).encode()).hexdigest()[:16]

    @property
    def single_sentences(self) -> np.ndarray:
        """`[N]` bool: the documents of one sentence, of which no pair can be made."""
        return np.diff(self.documents) < 2

    def all_documents(self) -> np.ndarray:
        return np.arange(len(self.documents) - 1)

    def split(self, held_out: float) -> tuple[np.ndarray, np.ndarray]:
        """Return documents for training and, a fraction in (0, 0.5], for validation: evenly spread.

        Raises:
          ValueError: if no document would be held out.
        """
        numbers = self.all_documents()
        # Rounded, so that 0.1 · 30 is 3.
        ends = np.round(held_out * np.arange(len(numbers) + 1), 6)
        is_held_out = np.diff(np.floor(ends)) > 0
        if not is_held_out.any():
            raise ValueError(
                f"held_out={held_out} holds out none of {len(numbers)} document(s). Raise it, or "
                "give a validation source with --config.data.validation=..."
            )
        return numbers[~is_held_out], numbers[is_held_out]


def pieces(
    corpus: TokenizedCorpus, documents: np.ndarray, count: int, size: int
) -> tuple[Int[np.ndarray, "N S"], Bool[np.ndarray, "2 N S"]]:
    """Return evenly spread pieces of `size` tokens, each within a document: all that there are, or
    `count` of them. Their ids, without special tokens, and where words and where sentences begin.
    """
    starts = corpus.sentences[corpus.documents]
    first = starts[documents]
    whole = (starts[documents + 1] - first) // size
    number = np.concatenate([np.arange(n) for n in whole])
    begin = np.repeat(first, whole) + size * number
    chosen = np.linspace(0, len(begin) - 1, min(count, len(begin))).round().astype(int)
    places = begin[chosen][:, None] + np.arange(size)
    tokens = corpus.tokens[places]
    begins_sentence = np.isin(places, corpus.sentences)
    return tokens["id"], np.stack([tokens["begins"], begins_sentence])


def sentences(document: str) -> list[str]:
    """Return the sentences of a document in any script; line breaks end a sentence too.

    The English rule applies where it finds at least half of the ends that the general one finds.
    The general one takes a stop for an end unless a lower-case letter follows, and in a document
    without capitals even then. Where that leaves more than 1,000 characters a sentence, or 400 in a
    document without stops, the sentences are windows of at most 100 characters.
    """
    parts = _strip(_ENGLISH_END.split(document))
    # Looking for the general ends takes most of the time, and each has a stop or a line break.
    if 2 * (len(parts) - 1) < sum(map(document.count, _ENDS)):
        general = _strip(_split(document))
        if 2 * (len(parts) - 1) < len(general) - 1:
            parts = general
    longest = _LONGEST_SENTENCE if _STOP.search(document) else _LONGEST_LINE
    if len(document) > longest * max(1, len(parts)):
        return _strip(_WINDOW.findall(document))
    limited = []
    for part in parts:
        is_short = len(part) <= _MOST_CHARACTERS
        limited += [part] if is_short else _strip(_WINDOW.findall(part))
    return limited


def _split(document: str) -> Iterator[str]:
    has_capitals = document != document.lower()
    begin = 0
    for end in _END.finditer(document):
        next_letter = "" if "\n" in end[0] else end[1] or ""
        if not (has_capitals and next_letter.islower()):
            yield document[begin : end.start()]
            begin = end.end()
    yield document[begin:]


def _strip(parts: Iterable[str]) -> list[str]:
    return [text for text in map(str.strip, parts) if text]


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
    """Return the type of stored tokens, see `TokenizedCorpus`."""
    ids = "<u2" if tokenizer.get_vocab_size() <= 2**16 else "<u4"
    return np.dtype([("id", ids), ("begins", np.bool_)])


class _Part(NamedTuple):
    """A part of a document that one call of the tokenizer takes."""

    document: int  # Its number.
    text: str
    starts: list[int]  # Of its sentences.


def tokenize_documents(
    documents: Iterable[str], tokenizer: Tokenizer
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the tokens `[n]` of each document, and uint32 `[s]`, how many each sentence has.

    The ids are those of the whole document, without special tokens. A token belongs to the sentence
    of its last character. Sentences and documents without a token are dropped.
    """
    encoder = text_tokenizer(tokenizer)
    tokenized = _tokenize(documents, encoder, token_dtype(tokenizer))
    for _, parts in itertools.groupby(tokenized, operator.itemgetter(0)):
        _, tokens, sizes = zip(*parts, strict=True)
        counts = np.concatenate(sizes)
        if counts.any():
            yield np.concatenate(tokens), counts[counts > 0]


def _tokenize(
    documents: Iterable[str], encoder: Tokenizer, dtype: np.dtype
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the number of the document of each part, its tokens, and how many sentences have."""
    find_words = word_rule(encoder)
    for batch in _batches(_parts(documents, is_word_piece(encoder))):
        texts = [part.text for part in batch]
        encodings = encoder.encode_batch(texts, add_special_tokens=False)
        for part, encoding in zip(batch, encodings, strict=True):
            tokens = np.empty(len(encoding), dtype)
            tokens["id"] = encoding.ids
            tokens["begins"] = find_words(encoding, part.text)
            yield part.document, tokens, _sentence_sizes(encoding, part.starts)


def _parts(documents: Iterable[str], only_at_spaces: bool) -> Iterator[_Part]:
    """Yield documents in parts of whole sentences, of at most `_BATCH` characters if they allow it.

    With `only_at_spaces` documents are also cut before sentences that no space precedes: WordPiece
    takes words of 100 characters at most.
    """
    for number, document in enumerate(documents):
        begin = 0
        end = 0
        starts: list[int] = []
        for sentence in sentences(document):
            start = document.find(sentence, end)
            glued = only_at_spaces and start == end
            too_long = start + len(sentence) - begin > _BATCH
            if starts and (glued or too_long):
                yield _Part(number, document[begin:end], starts)
                begin = end
                starts = []
            starts.append(start - begin)
            end = start + len(sentence)
        if starts:
            yield _Part(number, document[begin:], starts)


def _batches(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """Yield parts for one call of the tokenizer each, of about `_BATCH` characters together."""
    batch: list[_Part] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part.text)
        if size >= _BATCH:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _sentence_sizes(encoding: Encoding, starts: list[int]) -> np.ndarray:
    """Return `[s]` uint32, how many tokens each sentence of a part has."""
    if len(starts) == 1:
        return np.array([len(encoding)], np.uint32)
    ends = np.array([end for _, end in encoding.offsets], np.int64)
    # Ends never decrease, but where a normalizer reorders characters.
    ends = np.maximum.accumulate(ends)
    firsts = np.searchsorted(ends, starts[1:], side="right")
    return np.diff(firsts, prepend=0, append=len(encoding)).astype(np.uint32)
