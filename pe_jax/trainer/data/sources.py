"""The values of `config.data.source`: text, tokenized into a cache, or a folder of tokenized text.

Folders of the cache are named after a hash of their inputs (the text's checksum, the tokenizer,
the format): a second start finds them, and a changed input never finds an old copy.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from pe_jax.common.files import is_remote, read_json, to_path
from pe_jax.interop.tokenizer import load_tokenizer, tokenizer_files, train_tokenizer
from pe_jax.trainer.data.corpora import Corpus, checksum_of, open_corpus
from pe_jax.trainer.data.tokenized import (
    TokenizedCorpus,
    token_dtype,
    tokenize_documents,
)
from pe_jax.trainer.disk_cache import damaged_file, make_once, write_folder

_FORMAT = "5"  # Increment it when the arrays or the sentence rule change.
TOKENIZED = "tokenized:"
_WAY_OUT = "Copy the folder again, or prepare the text again."


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
    """Return `tokenized:FOLDER`, or any source of `open_corpus`, as token ids; and the tokenizer.

    Args:
      tokenizer: if there is none, that at path `vocab`; if this is empty, the source's: trained on
        the text, `vocab_size` tokens at most, or that of the folder.
      feature, data_dir: as for `open_corpus`; a folder of tokenized text ignores them.
      cache_dir: where tokenized text is cached.

    Raises:
      ValueError: for a source or tokenizer that does not exist, or that do not fit each other.
    """
    if source.startswith(TOKENIZED):
        if tokenizer is None and vocab:
            tokenizer = load_tokenizer(vocab)
        return _open_prepared(to_path(source.removeprefix(TOKENIZED)), tokenizer)
    corpus = open_corpus(source, feature=feature, data_dir=data_dir)
    if tokenizer is None:
        tokenizer = prepare_tokenizer(
            corpus, vocab, vocab_size, cache_dir, strip_accents=strip_accents
        )
    return tokenize(corpus, tokenizer, cache_dir), tokenizer


def prepare_tokenizer(
    corpus: Corpus,
    vocab: str,
    vocab_size: int,
    cache_dir: Path,
    *,
    strip_accents: bool = False,
) -> Tokenizer:
    """Return the tokenizer at path `vocab`; if that is empty, train one on the corpus (cached).

    Raises:
      ValueError: for a file that is no tokenizer, or a `vocab_size` below the number of characters
        and special tokens.
    """
    if vocab:
        return load_tokenizer(vocab)

    def write(folder: Path) -> None:
        texts = _Texts(corpus, "vocabulary")
        tokenizer = train_tokenizer(texts, vocab_size, strip_accents=strip_accents)
        size = tokenizer.get_vocab_size()
        if size > vocab_size:
            raise ValueError(
                f"--config.data.vocab_size={vocab_size} is too small for {corpus.source}: its "
                f"characters and the special tokens alone are {size:,} tokens. Set at least that."
            )
        text = tokenizer.to_str(pretty=True)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")

    options = (str(vocab_size), str(strip_accents))
    inputs = checksum_of(_FORMAT, corpus.checksum(), *options)[:20]
    folder = make_once(cache_dir / f"tokenizer-{inputs}", write)
    return load_tokenizer(folder / "tokenizer.json")


def tokenize(corpus: Corpus, tokenizer: Tokenizer, cache_dir: Path) -> TokenizedCorpus:
    """Return the corpus as token ids, from the cache if it is there.

    Raises:
      ValueError: if the corpus holds no text.
    """
    # The names of special tokens are among its files: a text has none of them.
    files = tokenizer_files(tokenizer).values()
    inputs = checksum_of(_FORMAT, corpus.checksum(), *files)[:20]
    write = functools.partial(_write, corpus, tokenizer)
    return TokenizedCorpus(make_once(cache_dir / f"corpus-{inputs}", write))


def prepare(corpus: Corpus, tokenizer: Tokenizer, folder: Path) -> TokenizedCorpus:
    """Write the corpus as token ids into a new folder, for the source `tokenized:FOLDER`.

    Raises:
      ValueError: if the folder exists or is in an object store, or the corpus holds no sentence.
    """
    if is_remote(folder) or folder.exists():
        raise ValueError(
            f"{folder} must be a new folder on this machine. Give another."
        )

    def write(new: Path) -> None:
        _write(corpus, tokenizer, new)
        for name, content in tokenizer_files(tokenizer).items():
            (new / name).write_text(content, encoding="utf-8")

    write_folder(folder, write)
    return TokenizedCorpus(folder)


def _open_prepared(
    folder: Path, tokenizer: Tokenizer | None
) -> tuple[TokenizedCorpus, Tokenizer]:
    """Return what `prepare` has written, once its files are verified, and its tokenizer."""
    about = folder / "about.json"
    if is_remote(folder) or not about.is_file():
        raise ValueError(
            f"{folder} holds no tokenized text: there is no local file {about}. Write it with "
            "pe-jax prepare, or copy all of the folder to this machine."
        )
    file = damaged_file(folder)
    if file is not None:
        raise ValueError(f"{folder / file} is missing or damaged. {_WAY_OUT}")
    version = read_json(about, _WAY_OUT).get("format")
    if version != _FORMAT:
        raise ValueError(
            f"{about} has format {version!r}, but this version reads {_FORMAT!r}. Prepare the text "
            "again."
        )
    saved = load_tokenizer(folder / "tokenizer.json")
    if tokenizer is not None and saved.to_str() != tokenizer.to_str():
        raise ValueError(
            f"The text in {folder} has the ids of another tokenizer ({saved.get_vocab_size():,} "
            f"tokens) than the run's ({tokenizer.get_vocab_size():,} tokens). Leave "
            "--config.data.vocab empty to use its own, or prepare the text with the run's."
        )
    return TokenizedCorpus(folder), saved


def _write(corpus: Corpus, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files of a `TokenizedCorpus`, with the sizes of sentences alone in memory."""
    documents = _Texts(corpus, "tokenizing")
    header = {
        "descr": np.lib.format.dtype_to_descr(token_dtype(tokenizer)),
        "fortran_order": False,
    }
    count = 0
    sizes = []
    with (folder / "tokens.npy").open("wb") as file:
        # NumPy pads the header, so that the final count fits into the place of 0.
        np.lib.format.write_array_header_1_0(file, header | {"shape": (0,)})
        for tokens, tokens_of_sentences in tokenize_documents(documents, tokenizer):
            file.write(tokens.tobytes())
            count += len(tokens)
            sizes.append(tokens_of_sentences)
        if not sizes:
            raise ValueError(f"The corpus {corpus.source!r} contains no text.")
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, header | {"shape": (count,)})
    np.save(folder / "sentences.npy", _starts(np.concatenate(sizes)))
    np.save(folder / "documents.npy", _starts([len(size) for size in sizes]))
    about = {
        "format": _FORMAT,
        "source": corpus.source,
        "tokens": count,
        "documents": len(sizes),
        "empty": documents.count - len(sizes),
    }
    (folder / "about.json").write_text(json.dumps(about, indent=2), encoding="utf-8")


def _starts(sizes: np.ndarray | list[int]) -> np.ndarray:
    """Return `[n + 1]`: the start of each part of these sizes, then the end of the last one."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


class _Texts:
    """The documents of a corpus as an iterable that can be read several times, and their number."""

    def __init__(self, corpus: Corpus, purpose: str):
        self._corpus = corpus
        self._purpose = purpose
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        self.count = 0
        documents = tqdm(
            self._corpus.documents(),
            desc=self._purpose,
            unit=" documents",
            disable=not sys.stderr.isatty(),
        )
        for text in documents:
            self.count += 1
            yield text
