"""BERT with a head: for pretraining, for classes or values of whole inputs or of each token, for
spans.

Shapes: B batch, L length, D hidden size, P predictions, V vocabulary, C classes.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from pe_jax.attention import dropout
from pe_jax.common.records import Record
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings import Positions
from pe_jax.models.bert import Bert
from pe_jax.models.layers import BertModule, activate, check_ids, linear


def _transform(
    head: BertModule, x: Float[Array, "*B D"], size: int | None = None
) -> Float[Array, "*B E"]:
    """Apply the layers of a head before its output layer, see `config.head_...`.

    Args:
      size: E; None means D.
    """
    c = head.config
    dense = head.dense(size or c.hidden_size, "dense", has_bias=c.head_bias)
    x = activate(dense(x), c.head_activation)
    return head.norm("norm")(x) if c.head_norm else x


class Pooler(BertModule):
    """One vector of a whole input, see `pooler` and `classifier_pooling` of the config."""

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B L D"], mask: Bool[Array, "B L"] | None = None
    ) -> Float[jax.Array, "B D"]:
        """Pool hidden states; `mask` is that of `Bert`."""
        c = self.config
        if c.classifier_pooling == "cls":
            return self._layers(hidden[:, 0])
        if c.classifier_pooling == "mean":
            return self._layers(_mean(hidden, mask))
        return _mean(self._layers(hidden), mask)

    @nn.nowrap
    def _layers(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        c = self.config
        if c.pooler == "head":
            return _transform(self, x)
        x = self.dense(c.hidden_size, "dense")(x)
        # tanh is computed in the dtype of the model, the other activations in float32.
        if c.pooler_activation == "tanh":
            return jnp.tanh(x)
        return activate(x, c.pooler_activation)


def _mean(
    hidden: Float[Array, "B L D"], mask: Bool[Array, "B L"] | None
) -> Float[Array, "B D"]:
    """Return the mean over tokens that are not padding; zeros where all are."""
    if mask is None:
        mask = jnp.ones(hidden.shape[:2], bool)
    weights = mask.astype(jnp.float32)[:, :, None]
    total = (weights * hidden).sum(1) / jnp.maximum(weights.sum(1), 1)
    return total.astype(hidden.dtype)


class TokenwiseHead(BertModule):
    """The layers before the logits of each token in a model with `pooler="head"`."""

    @nn.compact
    def __call__(self, hidden: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        return _transform(self, hidden)


class MaskedLanguageHead(BertModule):
    """Vocabulary logits at chosen positions only, by the token embedding or a `decoder`."""

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "B L D"],
        at: Int[Array, "B P"],
        embedding: Float[Array, "V E"],
    ) -> Float[Array, "B P V"]:
        c = self.config
        if not self.is_initializing():  # There any positions do.
            check_ids("masked_positions", at, hidden.shape[1])
        x = jnp.take_along_axis(hidden, at[:, :, None], axis=1)  # [B, P, D]
        x = _transform(self, x, c.embedding_size) if c.head_dense else x
        if not c.tied_decoder:
            draw = nn.initializers.normal(c.initializer_stddev)
            embedding = self.param("decoder", draw, embedding.shape)
        bias = None
        if c.decoder_bias:
            bias = self.param("bias", nn.initializers.zeros, (len(embedding),))[
                : c.vocab_size
            ]
        embedding = embedding[: c.vocab_size].astype(x.dtype)
        rows = linear(x.reshape(-1, x.shape[-1]), embedding, bias, tied=True)
        return rows.reshape(*x.shape[:-1], -1)


class PretrainingLogits(Record, pytree=True):
    """masked_lm `[B, P, V]`, next_sentence `[B, 2]`, both float32."""

    masked_lm: jax.Array
    next_sentence: jax.Array


class BertForPretraining(BertModule):
    """BERT with its two pretraining heads: masked language model and next sentence."""

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"] | None = None,
        mask: Bool[Array, "B L"] | None = None,
        positions: Positions | None = None,
        *,
        masked_positions: Int[Array, "B P"],
        document_ids: Int[Array, "B L"] | None = None,
        deterministic: bool = True,
    ) -> PretrainingLogits:
        """Predict tokens at `masked_positions`, P per row; other arguments as for `Bert`.

        Raises:
          ValueError: as `Bert`, and for positions outside of the row, outside of `jax.jit`.
        """
        bert = Bert(self.config, name="bert")
        hidden = bert(
            tokens,
            token_type_ids,
            mask,
            positions,
            document_ids=document_ids,
            deterministic=deterministic,
        )
        masked_lm = _masked_lm(bert, hidden, masked_positions)
        pooled = Pooler(self.config, name="pooler")(hidden, mask)
        next_sentence = self.dense(2, "next_sentence")(pooled).astype(jnp.float32)
        return PretrainingLogits(masked_lm=masked_lm, next_sentence=next_sentence)


class BertForMaskedLM(BertModule):
    """BERT with the head of a masked language model alone."""

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"] | None = None,
        mask: Bool[Array, "B L"] | None = None,
        positions: Positions | None = None,
        *,
        masked_positions: Int[Array, "B P"],
        document_ids: Int[Array, "B L"] | None = None,
        deterministic: bool = True,
    ) -> Float[jax.Array, "B P V"]:
        """Logits in float32; arguments as of `BertForPretraining`."""
        bert = Bert(self.config, name="bert")
        hidden = bert(
            tokens,
            token_type_ids,
            mask,
            positions,
            document_ids=document_ids,
            deterministic=deterministic,
        )
        return _masked_lm(bert, hidden, masked_positions)


def _masked_lm(
    bert: Bert, hidden: Float[Array, "B L D"], at: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    """Logits of the head `masked_lm`, a submodule of the module that calls it."""
    head = MaskedLanguageHead(bert.config, name="masked_lm")
    return head(hidden, at, bert.variables["params"]["token"]["embedding"])


def _class_logits(
    module: BertModule,
    states: Float[Array, "*B D"],
    name: str,
    outputs: int,
    deterministic: bool,
) -> Float[jax.Array, "*B C"]:
    """Return logits in float32 by dropout and an output layer, a submodule of the caller."""
    rng = None if deterministic else module.make_rng("dropout")
    states = dropout(states, module.config.dropout_rate, rng)
    return module.dense(outputs, name)(states).astype(jnp.float32)


class BertForClassification(BertModule):
    """One output for a whole input, read off its pooled state (Devlin et al., section 4.1).

    Attributes:
      outputs: C, how many classes; 1 for a regression.
    """

    outputs: int

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"] | None = None,
        mask: Bool[Array, "B L"] | None = None,
        positions: Positions | None = None,
        *,
        document_ids: Int[Array, "B L"] | None = None,
        deterministic: bool = True,
    ) -> Float[jax.Array, "B C"]:
        """Logits of the classes, or the value, float32; arguments as of `Bert.__call__`."""
        bert = Bert(self.config, name="bert")
        hidden = bert(
            tokens,
            token_type_ids,
            mask,
            positions,
            document_ids=document_ids,
            deterministic=deterministic,
        )
        pooled = Pooler(self.config, name="pooler")(hidden, mask)
        return _class_logits(self, pooled, "classifier", self.outputs, deterministic)


class BertForSpans(BertModule):
    """Logits of an answer's first and last token in the input (Devlin et al., section 4.2)."""

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"] | None = None,
        mask: Bool[Array, "B L"] | None = None,
        positions: Positions | None = None,
        *,
        document_ids: Int[Array, "B L"] | None = None,
        deterministic: bool = True,
    ) -> tuple[Float[jax.Array, "B L"], Float[jax.Array, "B L"]]:
        """Logits of the first and of the last token, float32, least at padding.

        Arguments as of `Bert.__call__`.
        """
        bert = Bert(self.config, name="bert")
        hidden = bert(
            tokens,
            token_type_ids,
            mask,
            positions,
            document_ids=document_ids,
            deterministic=deterministic,
        )
        if self.config.pooler == "head":
            hidden = TokenwiseHead(self.config, name="span_head")(hidden)
        logits = self.dense(2, "spans")(hidden).astype(jnp.float32)  # [B, L, 2]
        if mask is not None:  # Else the loss would depend on how far a batch is padded.
            logits = jnp.where(mask[:, :, None], logits, jnp.finfo(jnp.float32).min)
        return logits[..., 0], logits[..., 1]


class BertForTokens(BertModule):
    """Logits of the classes of each token, as for named entities (Devlin et al., section 5.3).

    A model with `pooler="head"` has the layers of its masked-LM head before the output layer.

    Attributes:
      outputs: C, how many classes; 1 for a value of each token.
    """

    outputs: int

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "B L"],
        token_type_ids: Int[Array, "B L"] | None = None,
        mask: Bool[Array, "B L"] | None = None,
        positions: Positions | None = None,
        *,
        document_ids: Int[Array, "B L"] | None = None,
        deterministic: bool = True,
    ) -> Float[jax.Array, "B L C"]:
        """Logits of the classes of each token, or its value, float32; those at padding say nothing.

        Arguments as of `Bert.__call__`.

        Raises:
          ValueError: as `Bert.__call__`.
        """
        bert = Bert(self.config, name="bert")
        hidden = bert(
            tokens,
            token_type_ids,
            mask,
            positions,
            document_ids=document_ids,
            deterministic=deterministic,
        )
        if self.config.pooler == "head":
            hidden = TokenwiseHead(self.config, name="token_head")(hidden)
        return _class_logits(self, hidden, "tokens", self.outputs, deterministic)
