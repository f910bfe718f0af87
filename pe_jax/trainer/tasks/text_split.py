"""The text of a run, split for training and evaluation, from `config.data`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pe_jax.common.files import cache_folder
from pe_jax.interop.special_tokens import special_tokens
from pe_jax.trainer import data
from pe_jax.trainer.configs.pretraining import TextConfig
from pe_jax.trainer.console.terminal import counted, log

_MUCH_UNKNOWN = 0.03  # Of English by a vocabulary for it, 0.1 % is [UNK].


@dataclasses.dataclass(frozen=True)
class TextSplit:
    """Tokenized corpora, and which of their documents are for training and which are held out."""

    tokenizer: Tokenizer
    train: data.TokenizedCorpus
    train_documents: np.ndarray
    held_out: data.TokenizedCorpus  # The same object as `train`, if that is split.
    held_out_documents: np.ndarray
    pairs: bool  # Of sentences; a document of one sentence makes none.

    def summary(self) -> str:
        """Return how many documents there are, how many are used, and why the others are not."""
        single = int(self.train.single_sentences.sum()) if self.pairs else 0
        empty = self.train.empty
        read = len(self.train.documents) - 1 + empty
        text = f"{read:,} read, {read - single - empty:,} used"
        if self.train is self.held_out:
            held_out = len(self.held_out_documents)
            share = held_out / (len(self.train_documents) + held_out)
            text += f" ({share:.1%} held out)"
        if single:
            text += f"; dropped {single:,}, of a single sentence, which makes no pair"
        if empty:
            text += f"; dropped {empty:,}, empty"
        return text

    def checksums(self) -> dict[str, str]:
        """Return the checksums of the texts, by the key of the config."""
        checksums = {"config.data.source": self.train.checksum}
        if self.held_out is not self.train:
            checksums["config.data.validation"] = self.held_out.checksum
        return checksums

    @functools.cached_property
    def vocabulary(self) -> data.Vocabulary:
        return data.vocabulary(self.tokenizer)


def load_text(config: TextConfig, vocab: str, *, pairs: bool = True) -> TextSplit:
    """Read, split and tokenize the text of `config`, or take it from the cache or a folder.

    Args:
      vocab: path of the tokenizer; empty trains one on the text, or uses that of a tokenized text.
      pairs: whether examples are sentence pairs.

    Raises:
      ValueError: for a source, feature or tokenizer that does not exist, a text most of which is
        [UNK] to the tokenizer, or, for pairs, one whose documents are mostly of one sentence.
    """
    open_source = functools.partial(
        _open_source,
        feature=config.feature,
        data_dir=config.data_dir,
        cache_dir=cache_folder(config.cache_dir),
    )
    train, tokenizer = open_source(
        "source",
        config.source,
        vocab=vocab,
        vocab_size=config.vocab_size,
        strip_accents=config.strip_accents,
    )
    _check(config.source, train, tokenizer, pairs)
    if config.validation:
        held_out, _ = open_source("validation", config.validation, tokenizer=tokenizer)
        _check(config.validation, held_out, tokenizer, pairs)
        train_documents = train.all_documents()
        held_out_documents = held_out.all_documents()
    else:
        held_out = train
        train_documents, held_out_documents = train.split(config.held_out)
    return TextSplit(
        tokenizer=tokenizer,
        train=train,
        train_documents=train_documents,
        held_out=held_out,
        held_out_documents=held_out_documents,
        pairs=pairs,
    )


def _open_source(
    key: str, source: str, **options: Any
) -> tuple[data.TokenizedCorpus, Tokenizer]:
    """Return `data.open_source(source)`, whose errors name the key of the config."""
    try:
        return data.open_source(source, **options)
    except ValueError as error:
        message = str(error)
        if not message.startswith("source="):
            raise
        raise ValueError(
            f"config.data.{key}{message.removeprefix('source')}"
        ) from error


def _check(
    source: str, corpus: data.TokenizedCorpus, tokenizer: Tokenizer, pairs: bool
) -> None:
    """Raise ValueError for a text of [UNK], or without pairs if needed; warn of much [UNK]."""
    tokens = np.diff(corpus.sentences[corpus.documents])
    single = corpus.single_sentences
    lost = tokens[single].sum() / tokens.sum()
    if pairs and lost > 0.5:
        raise ValueError(
            f"{source}: {single.sum():,} of {counted(len(single), 'document')}, {lost:.0%} of the "
            "text, are a single sentence, of which no sentence pair can be made. Put more "
            "sentences into a document: a blank line ends one in .txt, a line in .jsonl."
        )
    name = special_tokens(tokenizer)["unk"]
    unknown = _unknown_rate(corpus, tokenizer.token_to_id(name))
    fault = (
        f"{source}: {unknown:.1%} of the tokens are {name or '[UNK]'}, words that the vocabulary "
        f"of {counted(tokenizer.get_vocab_size(), 'token')} cannot write. "
        "Give one for this text with --config.data.vocab, or leave it empty to train one."
    )
    if unknown > 0.5:
        raise ValueError(fault)
    if unknown > _MUCH_UNKNOWN:
        log(f"warning: {fault}")


def _unknown_rate(corpus: data.TokenizedCorpus, unknown: int | None) -> float:
    """Return the fraction of [UNK], of at most a million tokens all over the corpus."""
    total = len(corpus.tokens)
    size = 10_000
    count = min(100, -(-total // size))
    parts = []
    for start in np.linspace(0, max(0, total - size), count, dtype=int).tolist():
        part = corpus.tokens[start : start + size]
        parts.append(part["id"] == unknown)
    return float(np.concatenate(parts).mean())
