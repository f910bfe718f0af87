"""Texts that models are measured on, their hidden states, and their masked-LM losses.

Shapes: N texts, B of them in a batch, L tokens each, C changes inside of a model.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from tokenizers import Tokenizer

from pe_jax import properties
from pe_jax.common.files import cache_folder
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings import Positions
from pe_jax.models import BertConfig, BertForMaskedLM, hidden_states, with_constants
from pe_jax.properties import Estimate
from pe_jax.trainer import data
from pe_jax.trainer.configs.all_tasks import ENCODERS
from pe_jax.trainer.configs.pretraining import (
    EncoderTrainingConfig,
    PretrainingDataConfig,
)
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.console.terminal import log
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel, once
from pe_jax.trainer.tasks.losses import cross_entropy
from pe_jax.trainer.tasks.run import saved_tokenizer
from pe_jax.trainer.tasks.text_split import load_text
from pe_jax.trainer.training.pytrees import Params
from pe_jax.trainer.training.workdir import load_config

_MASKED = 0.15  # The share of tokens that are masked, BERT's.
_BATCH = 16  # Texts whose hidden states are computed together.
_TOKENS = 1024  # Of a batch of `by_text`.

# `loss(params, change, tokens [B, L], targets [B, L]) -> [B, L]`, nats.
ChangedLoss = Callable[
    [Params, PyTree, Int[Array, "B L"], Int[Array, "B L"]], jax.Array
]


class Texts(NamedTuple):
    """Texts as a model reads them, none padded: [CLS], L - 2 consecutive tokens of a document, and
    [SEP]; or random words, without what follows `tokens`, where the model has no tokenizer.

    Attributes:
      source: what they are, for the report.
      masked: with 15 % of the tokens between the ends as [MASK].
      where: True at those.
      begins: where words and where sentences begin, without [CLS] and [SEP].
    """

    source: str
    tokens: Int[np.ndarray, "N L"]
    masked: Int[np.ndarray, "N L"] | None = None
    where: Bool[np.ndarray, "N L"] | None = None
    begins: Bool[np.ndarray, "2 N L-2"] | None = None


@once
def texts(subject: MeasuredModel, config: PropertiesConfig, length: int = 0) -> Texts:
    """Return at most `config.texts` texts for a model: those that its run held out, else of
    `config.text`, and random words for a model without a tokenizer.

    Args:
      length: L, by default the longest length that is measured.

    Raises:
      ValueError: if no document has so many tokens.
    """
    length = length or min(config.length, subject.length)
    if subject.tokenizer is None:
        # Independent of each other, which rotations of a text would not be.
        rng = np.random.default_rng(config.seed)
        drawn = rng.choice(subject.words, (config.texts, length)).astype(np.int32)
        return Texts("random words", drawn)
    corpus, documents, source = _corpus(subject, subject.tokenizer, config.text)
    vocabulary = data.vocabulary(subject.tokenizer)
    template = vocabulary.single
    size = length - template.size
    inside, begins = data.pieces(corpus, documents, config.texts, size)
    if not len(inside):
        raise ValueError(
            f"No document has {size} tokens. Lower config.length, or give other text with "
            "--config.text."
        )
    if len(inside) < config.texts:
        log(
            f"The text has only {len(inside):,} pieces of {size} tokens, fewer than "
            f"config.texts={config.texts}. All are used."
        )
    tokens = np.stack([template.join(text) for text in inside])
    # Equally many in all texts, at least one.
    places = np.tile(np.arange(length - 2), (len(tokens), 1))
    order = np.random.default_rng(config.seed).permuted(places, axis=1)
    count = max(1, round(_MASKED * (length - 2)))
    where = np.pad(order < count, ((0, 0), (1, 1)))
    masked = np.where(where, vocabulary.mask, tokens)
    return Texts(source, tokens, masked, where, begins)


def _corpus(
    subject: MeasuredModel, tokenizer: Tokenizer, source: str
) -> tuple[data.TokenizedCorpus, np.ndarray, str]:
    """Return a corpus, the documents of it to read, and its description."""
    if subject.folder is not None and not source:
        config: EncoderTrainingConfig = load_config(subject.folder, ENCODERS).config
        pairs = (
            isinstance(config.data, PretrainingDataConfig) and not config.data.packed
        )
        split = load_text(
            config.data, str(saved_tokenizer(subject.folder)), pairs=pairs
        )
        return split.held_out, split.held_out_documents, "held-out text"
    source = source or "pydoc"
    corpus, _ = data.open_source(source, tokenizer=tokenizer, cache_dir=cache_folder())
    return corpus, corpus.all_documents(), source


def masked_lm(subject: MeasuredModel) -> Params | None:
    """Return the parameters of a model with its masked-LM head; None for one without it."""
    return subject.heads if "masked_lm" in subject.heads else None


def token_scores(
    config: BertConfig,
    params: Params,
    tokens: Int[Array, "B L"],
    targets: Int[Array, "B L"],
    positions: Positions | None = None,
) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
    """Return the masked-LM loss of every token, nats, and whether its target is the most likely.

    Args:
      params: of `BertForMaskedLM`, or of a model with more heads.
    """
    everywhere = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    model = BertForMaskedLM(config)
    logits = model.apply(
        {"params": params}, tokens, masked_positions=everywhere, positions=positions
    )
    assert isinstance(logits, jax.Array)
    return cross_entropy(logits, targets)


def scores_with_constants(
    config: BertConfig,
    params: Params,
    which: Bool[Array, "2 N H d"],
    values: Float[Array, "2 N H d"],
    tokens: Int[Array, "B L"],
    targets: Int[Array, "B L"],
) -> Float[Array, "B L"]:
    """Return the loss of every token with some dimensions of queries and keys constant."""
    changed = dataclasses.replace(
        config, attention_bias=True, num_key_heads=None, shared_layers=False
    )
    params = {**params, "bert": with_constants(params["bert"], which, values)}
    return token_scores(changed, params, tokens, targets)[0]


def batch_size(numbers: int, most: int = 16) -> int:
    """Return how many texts at a time bound the memory of their arrays, of so many numbers each."""
    return max(1, min(most, 2**25 // numbers))


@once
def states_of_texts(
    subject: MeasuredModel, config: PropertiesConfig
) -> tuple[Float[np.ndarray, "M N T D"], Int[np.ndarray, " T"]]:
    """Return the input of the first layer and the output of each, of `texts`, in an unnamed file
    that ends with the array; and the positions of the T tokens.

    The ends of real texts are left out: [CLS] and [SEP] are at the same position in all texts, so
    the effect of the token and that of the position cannot be told apart.
    """
    model = subject.bert
    tokens = texts(subject, config).tokens
    count, length = tokens.shape
    ends = 0 if subject.tokenizer is None else 1
    positions = np.arange(ends, length - ends)
    shape = (model.num_layers + 1, count, len(positions), model.hidden_size)
    with tempfile.TemporaryFile() as file:  # It stays until the array is dropped.
        states = np.memmap(file, np.float32, "w+", shape=shape)
    size = min(_BATCH, count)
    for first in range(0, count, size):
        # The last batch repeats a text to fill up: one shape, one program.
        rows = np.arange(first, first + size).clip(max=count - 1)
        batch = _hidden_states(model, subject.params, tokens[rows])
        states[:, rows] = np.asarray(batch, np.float32)[:, :, positions]
    return states, positions


_hidden_states = jax.jit(hidden_states, static_argnums=0)


@functools.partial(jax.jit, static_argnames=("f", "batch"))
def by_text(
    f: Callable[..., PyTree], inputs: PyTree, *args: PyTree, batch: int = 0
) -> PyTree:
    """Return `f(*args, inputs [B, L]) -> [B, ...]` of all texts `[N, L]`, in memory of one batch.

    Args:
      f: pure; the same object compiles once.
      inputs: a tree of arrays `[N, L]`.
      args: what `f` gets before its inputs, such as parameters.
      batch: B; by default 1,024 tokens, for logits over the vocabulary.
    """
    length = jax.tree.leaves(inputs)[0].shape[1]
    batch = batch or max(1, _TOKENS // length)
    return properties.in_batches(functools.partial(f, *args), inputs, batch)


def changed_losses(
    loss: ChangedLoss, params: Params, changes: PyTree, read: Texts
) -> Float[np.ndarray, "C N"]:
    """Return the mean loss of the masked tokens of each text, under each change of the model.

    Args:
      loss: pure.
      params: of the model with its masked-LM head.
      changes: a tree of arrays `[C, ...]`.
      read: texts with masked tokens.
    """

    def under_all(
        params: Params, changes: PyTree, inputs: PyTree
    ) -> Float[Array, "B C"]:
        tokens, targets, where = inputs

        def under(change: PyTree) -> jax.Array:
            losses = loss(params, change, tokens, targets)
            return jnp.where(where, losses, 0).sum(1) / where.sum(1)

        return jax.lax.map(under, changes).T

    inputs = read.masked, read.tokens, read.where
    return np.asarray(by_text(under_all, inputs, params, changes)).T


def loss_changes(losses: Float[np.ndarray, "C N"]) -> Estimate:
    """Return what each change but the first, which is none, adds to the loss, `[C - 1]`. All have
    the same texts with the same masks, so the difficulty of the texts cancels."""
    return properties.mean_over_texts((losses[1:] - losses[:1]).T)
