"""Vectors and scores of texts: pooling of hidden states, and batches of few compiled shapes.

Shapes: B batch, L length, D hidden size, C classes.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from pe_jax.common.shapes import Array, Bool, Float
from pe_jax.encodings import Params
from pe_jax.interop.sentence_files import Step
from pe_jax.models import Bert, BertConfig, BertForClassification

# A text, or two that belong together.
Text: TypeAlias = str | tuple[str, str]
ACTIVATIONS: dict[str, Callable[[Array], jax.Array]] = {
    "identity": lambda x: x,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
}
_LEAST_NORM = 1e-12  # As in torch's normalize.
_LEAST_WEIGHT = 1e-9  # As in sentence-transformers, of the sum of a mean's weights.
_LAYER_NORM_EPSILON = 1e-5  # As in torch's LayerNorm.
_FULL_BATCH_LENGTH = 64  # Longer rows make batches of fewer.
_TEXTS_AT_ONCE = 4_096  # To tokenize: its results take more memory than ids.
_BATCHES_IN_FLIGHT = 2  # Enough that the device need not wait for the next batch.
_MANY_TEXTS = 1_000  # From here on there is a progress bar.


class Inputs(NamedTuple):
    """Inputs of the model: int32 [B, L]; `lengths` is int32 [B], the number of tokens in a row."""

    tokens: Array
    token_types: Array
    lengths: Array

    @property
    def mask(self) -> Bool[jax.Array, "B L"]:
        """True at tokens, and False at padding, which follows them."""
        return jnp.arange(self.tokens.shape[1]) < self.lengths[:, None]


class Pipeline(NamedTuple):
    """How hidden states become a vector. Hashable: a static argument under `jax.jit`.

    Attributes:
      pooling: modes of `pe_jax.interop.sentence_files.POOLINGS`.
      skipped: the number of tokens at the beginning of each row that are not pooled.
      steps: the modules after the pooling.
      dimensions: the number of dimensions that are kept; None for all.
      normalize: whether the result is scaled to a length of 1.
    """

    pooling: tuple[str, ...]
    skipped: int
    steps: tuple[Step, ...]
    dimensions: int | None
    normalize: bool


@functools.partial(jax.jit, static_argnames=("config", "pipeline"))
def vectors(
    params: Params,
    weights: tuple[Params, ...],
    inputs: Inputs,
    *,
    config: BertConfig,
    pipeline: Pipeline,
) -> Float[jax.Array, "B D"]:
    """Return a vector for each row, float32.

    Args:
      params: of `Bert`.
      weights: the parameters of each of `pipeline.steps`.
    """
    mask = inputs.mask
    arguments = (inputs.tokens, inputs.token_types, mask)
    states: Any = Bert(config).apply({"params": params}, *arguments)
    hidden = states.astype(jnp.float32)
    pooled = [pool(hidden, mask, mode, pipeline.skipped) for mode in pipeline.pooling]
    x = jnp.concatenate(pooled, axis=-1)
    for step, step_weights in zip(pipeline.steps, weights, strict=True):
        x = _apply_step(x, step, step_weights)
    x = x[:, : pipeline.dimensions]
    return _normalize(x) if pipeline.normalize else x


@functools.partial(jax.jit, static_argnames=("config", "activation"))
def scores(
    params: Params, inputs: Inputs, *, config: BertConfig, activation: str
) -> Float[jax.Array, "B C"]:
    """Return the scores of each row, float32.

    Args:
      params: of `BertForClassification`.
      activation: applied to the logits, a name in `ACTIVATIONS`.
    """
    model = BertForClassification(config, len(params["classifier"]["bias"]))
    logits = model.apply(
        {"params": params}, inputs.tokens, inputs.token_types, inputs.mask
    )
    return ACTIVATIONS[activation](logits)


def pool(
    hidden: Float[Array, "B L D"], mask: Bool[Array, "B L"], mode: str, skipped: int = 0
) -> Float[jax.Array, "B D"]:
    """Return one vector for each row of hidden states, as `Pooling` of sentence-transformers.

    Args:
      mask: True at tokens, False at padding, which follows them.
      mode: one of `pe_jax.interop.sentence_files.POOLINGS`.
      skipped: the number of tokens at the beginning of a row that are not pooled.
    """
    positions = jnp.arange(hidden.shape[1])
    pooled = mask & (positions >= skipped)
    if mode == "cls":
        return _at(hidden, jnp.argmax(pooled, axis=1))
    if mode == "lasttoken":
        return _at(hidden, jnp.max(jnp.where(pooled, positions, 0), axis=1))
    if mode == "max":
        return jnp.max(jnp.where(pooled[:, :, None], hidden, -jnp.inf), axis=1)
    weights = pooled.astype(jnp.float32)
    if mode == "weightedmean":
        weights = weights * (positions + 1)
    total = jnp.einsum("bl,bld->bd", weights, hidden, precision="highest")
    weight = jnp.maximum(weights.sum(axis=1, keepdims=True), _LEAST_WEIGHT)
    return total / (jnp.sqrt(weight) if mode == "mean_sqrt_len_tokens" else weight)


def _at(hidden: Float[Array, "B L D"], index: Array) -> Float[jax.Array, "B D"]:
    return jnp.take_along_axis(hidden, index[:, None, None], axis=1).squeeze(1)


def _apply_step(
    x: Float[Array, "B D"], step: Step, weights: Params
) -> Float[jax.Array, "B E"]:
    if step.kind == "normalize":
        return _normalize(x)
    if step.kind == "layer_norm":
        centered = x - x.mean(axis=-1, keepdims=True)
        variance = (centered**2).mean(axis=-1, keepdims=True)
        scaled = centered / jnp.sqrt(variance + _LAYER_NORM_EPSILON)
        return scaled * weights["norm.weight"] + weights["norm.bias"]
    y = _linear(x, weights["linear.weight"])
    if "linear.bias" in weights:
        y = y + weights["linear.bias"]
    y = ACTIVATIONS[step.activation](y)
    if not step.has_residual:
        return y
    if "residual.weight" in weights:
        return y + _linear(x, weights["residual.weight"])
    return y + x


def _linear(
    x: Float[Array, "B D"], weight: Float[Array, "E D"]
) -> Float[jax.Array, "B E"]:
    return jnp.einsum("bd,ed->be", x, weight, precision="highest")


def _normalize(x: Float[Array, "B D"]) -> Float[jax.Array, "B D"]:
    norm = jnp.linalg.norm(x, axis=-1, keepdims=True)
    return x / jnp.maximum(norm, _LEAST_NORM)


# --- batches --------------------------------------------------------------------------------------


class TokenizedTexts(NamedTuple):
    """The ids and token types of every text, int32, without padding."""

    ids: list[np.ndarray]
    types: list[np.ndarray]


def tokenize(
    tokenizer: Tokenizer, texts: Sequence[Text], *, has_types: bool
) -> TokenizedTexts:
    """Return the tokens of texts, with special tokens around them.

    Args:
      tokenizer: one that puts special tokens around a text and cuts long ones.
      has_types: whether the second text of a pair has the token types of the tokenizer; else all
        types are 0.
    """
    result = TokenizedTexts([], [])
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        part = list(texts[start : start + _TEXTS_AT_ONCE])
        for encoding in tokenizer.encode_batch_fast(part):
            ids = np.array(encoding.ids, np.int32)
            result.ids.append(ids)
            types = encoding.type_ids if has_types else np.zeros_like(ids)
            result.types.append(np.array(types, np.int32))
    return result


def padded_length(length: int, longest: int | None = None) -> int:
    """Return the length to which a row is padded: a multiple of 8, above 64 four in each octave.

    Each length is a compiled shape: 20 of them up to 512.

    Args:
      length: tokens in the row.
      longest: the result is at most this, if `length` is.
    """
    step = 8
    if length > 64:
        octave = 1 << (length - 1).bit_length()  # The next power of two.
        step = octave // 8
    padded = max(step, -(-length // step) * step)
    return padded if longest is None else max(length, min(padded, longest))


def rows_of_length(length: int, batch_size: int) -> int:
    """Return how many rows of a length a batch has: fewer than `batch_size` above 64 tokens.

    So a batch of long rows needs no more memory, and has rows of more similar lengths.
    """
    return min(batch_size, max(1, batch_size * _FULL_BATCH_LENGTH // length))


class Batch(NamedTuple):
    """Rows of some texts, whose numbers are in `order`; further rows are copies of the first."""

    order: np.ndarray
    inputs: Inputs


def batches(
    texts: TokenizedTexts, batch_size: int, *, pad: int, longest: int | None
) -> Iterator[Batch]:
    """Yield batches of texts, the longest first, in few shapes.

    Only the last batch may have fewer rows than `rows_of_length`, a power of two.

    Args:
      pad: the id of padding.
      longest: the length that rows are padded to at most.
    """
    lengths = np.array([len(ids) for ids in texts.ids])
    by_length = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(by_length):
        length = padded_length(int(lengths[by_length[start]]), longest)
        most = rows_of_length(length, batch_size)
        order = by_length[start : start + most]
        start += most
        rows = min(most, 1 << (len(order) - 1).bit_length())
        tokens = np.full((rows, length), pad, np.int32)
        types = np.zeros((rows, length), np.int32)
        row_lengths = np.full(rows, lengths[order[0]], np.int32)
        for row, number in enumerate(order):
            ids = texts.ids[number]
            tokens[row, : len(ids)] = ids
            types[row, : len(ids)] = texts.types[number]
            row_lengths[row] = len(ids)
        # A row without a token would give NaN.
        tokens[len(order) :] = tokens[0]
        types[len(order) :] = types[0]
        yield Batch(order, Inputs(tokens, types, row_lengths))


def run(
    function: Callable[[Inputs], jax.Array],
    all_batches: Iterator[Batch],
    *,
    texts: int,
    progress: bool | None,
) -> Float[np.ndarray, "N E"]:
    """Return the outputs of a function for all texts, in their order, float32.

    Args:
      function: of a batch to `[B, E]`.
      texts: N, at least 1.
      progress: whether to show a progress bar; None shows one on a terminal, for many texts.
    """
    hidden: bool | None = not progress
    if progress is None and texts >= _MANY_TEXTS:
        hidden = None  # Which hides it where no terminal is.
    outputs: np.ndarray | None = None
    in_flight: collections.deque[tuple[np.ndarray, jax.Array]] = collections.deque()
    with tqdm(total=texts, desc="Encode", unit="text", disable=hidden) as bar:
        for batch in itertools.chain(all_batches, [None] * _BATCHES_IN_FLIGHT):
            if batch is not None:
                in_flight.append((batch.order, function(batch.inputs)))
            is_full = len(in_flight) > _BATCHES_IN_FLIGHT
            if in_flight and (batch is None or is_full):
                order, output = in_flight.popleft()
                values = np.asarray(output, np.float32)[: len(order)]
                if outputs is None:
                    outputs = np.empty((texts, values.shape[1]), np.float32)
                outputs[order] = values
                bar.update(len(order))
    assert outputs is not None
    return outputs


def output_size(
    params: Params, weights: tuple[Params, ...], config: BertConfig, pipeline: Pipeline
) -> int:
    """Return the size of the vectors, without computing one."""
    row = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    inputs = Inputs(row, row, jax.ShapeDtypeStruct((1,), jnp.int32))
    shape = jax.eval_shape(
        functools.partial(vectors, config=config, pipeline=pipeline),
        params,
        weights,
        inputs,
    )
    return int(shape.shape[1])


def prompt_length(tokenizer: Tokenizer, prompt: str) -> int:
    """Return the number of tokens of a prompt, without special tokens that follow it."""
    encoding = tokenizer.encode(prompt)
    last = encoding.special_tokens_mask[-1:]
    return len(encoding.ids) - sum(last)
