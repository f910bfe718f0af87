"""The text of a pretraining run, split for training and evaluation, from `config.data`."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from tokenizers import Tokenizer

from pe_jax import data
from pe_jax.configs.pretraining import PretrainingDataConfig
from pe_jax.files import cache_folder, to_path


@dataclasses.dataclass(frozen=True)
class TextSplit:
    """Tokenized corpora, and which of their documents are for training and which are held out."""

    tokenizer: Tokenizer
    train: data.TokenizedCorpus
    train_documents: np.ndarray
    held_out: data.TokenizedCorpus
    held_out_documents: np.ndarray

    @functools.cached_property
    def vocabulary(self) -> data.Vocabulary:
        return data.vocabulary(self.tokenizer)


def load_text(config: PretrainingDataConfig, vocab: str) -> TextSplit:
    """Reads, splits and tokenizes the text of `config`.

    Tokenized text is cached (`pe_jax.data.tokenized`); shards (`pe_jax.data.shards`) are only
    opened.

    Args:
      config: the `data` part of a run's config.
      vocab: path of the tokenizer; empty trains one on the text, or uses that of the shards.

    Raises:
      ValueError: for a source, feature or tokenizer that does not exist.
    """
    cache = to_path(config.cache_dir) if config.cache_dir else cache_folder()
    open_source = functools.partial(
        data.open_source, feature=config.feature, data_dir=config.data_dir, cache_dir=cache
    )
    train, tokenizer = open_source(config.source, vocab=vocab, vocab_size=config.vocab_size)
    if not config.validation:
        train_documents, held_out_documents = train.split(config.held_out)
        return TextSplit(tokenizer, train, train_documents, train, held_out_documents)
    held_out, _ = open_source(config.validation, tokenizer=tokenizer)
    return TextSplit(tokenizer, train, train.all_documents(), held_out, held_out.all_documents())
