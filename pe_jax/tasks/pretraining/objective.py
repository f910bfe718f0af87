"""The objective of BERT's pretraining: masked tokens, and whether a sentence is the next one."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pe_jax.models import BertConfig, BertForPretraining
from pe_jax.tasks.losses import cross_entropy
from pe_jax.training.pytrees import Batch, Params, Sums
from pe_jax.training.step import Task


def pretraining_task(config: BertConfig) -> Task:
    """The two losses of BERT, and the accuracy of each."""
    model = BertForPretraining(config)

    def init(key: jax.Array) -> Params:
        one = jnp.zeros((1, 8), jnp.int32)
        return model.init(key, one, one[:, :1])["params"]

    def counts(batch: Batch) -> Sums:
        masked, pairs = batch["masked_weights"].sum(), jnp.float32(len(batch["next_sentence"]))
        return {
            "masked_lm_loss": masked,
            "masked_lm_accuracy": masked,
            "next_sentence_loss": pairs,
            "next_sentence_accuracy": pairs,
        }

    def sums(params: Params, batch: Batch, key: jax.Array | None) -> Sums:
        logits = model.apply(
            {"params": params},
            batch["tokens"],
            batch["masked_positions"],
            batch["segments"],
            batch["valid"],
            deterministic=key is None,
            rngs=None if key is None else {"dropout": key},
        )
        weights = batch["masked_weights"]
        mlm_loss, mlm_right = cross_entropy(logits.masked_lm, batch["masked_tokens"])  # type: ignore[union-attr]
        nsp_loss, nsp_right = cross_entropy(logits.next_sentence, batch["next_sentence"])  # type: ignore[union-attr]
        return {
            "masked_lm_loss": (weights * mlm_loss).sum(),
            "masked_lm_accuracy": (weights * mlm_right).sum(),
            "next_sentence_loss": nsp_loss.sum(),
            "next_sentence_accuracy": nsp_right.sum(),
        }

    return Task(init, counts, sums, losses=("masked_lm_loss", "next_sentence_loss"))
