"""A BERT that answers with symbols, and its training task."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from pe_jax.models import Bert, BertConfig
from pe_jax.models.layers import BertModule
from pe_jax.shapes import Array, Bool, Float, Int
from pe_jax.tasks.losses import cross_entropy
from pe_jax.tasks.train import reused
from pe_jax.training.pytrees import Batch, Params, Sums
from pe_jax.training.step import Task


class BertForSymbols(BertModule):
    """A symbol of the vocabulary for every token."""

    def setup(self):
        self.bert = Bert(self.config)
        self.symbols = self.dense(self.config.vocab_size, "symbols")

    def __call__(
        self,
        tokens: Int[Array, "B L"],
        valid: Bool[Array, "B L"],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "B L V"]:
        hidden = self.bert(tokens, None, valid, deterministic=deterministic)
        return self.symbols(hidden).astype(jnp.float32)


Outputs = Callable[..., dict[str, jax.Array]]


@reused
def answers(config: BertConfig) -> Outputs:
    """`(params, batch, key) -> {name: [B]}` of each example: the `loss` of all symbols asked for,
    in nats, how many are `right`, and `exact`, 1 if all are."""
    model = BertForSymbols(config)

    def outputs(params: Params, batch: Batch, key: jax.Array | None = None) -> dict[str, jax.Array]:
        logits: jax.Array = model.apply(  # type: ignore[assignment]
            {"params": params},
            batch["tokens"],
            batch["valid"],
            deterministic=key is None,
            rngs=None if key is None else {"dropout": key},
        )
        loss, right = cross_entropy(logits, batch["targets"])
        asked = batch["asked"]
        return {
            "loss": jnp.where(asked, loss, 0).sum(-1),
            "right": jnp.where(asked, right, 0).sum(-1),
            "exact": jnp.where(asked, right, 1).min(-1),
        }

    return outputs


@reused
def symbols_task(config: BertConfig) -> Task:
    """Training on the mean loss of all symbols asked for."""
    outputs = answers(config)

    def init(key: jax.Array) -> Params:
        one = jnp.zeros((1, 8), jnp.int32)
        return BertForSymbols(config).init(key, one, one == 0)["params"]

    def counts(batch: Batch) -> Sums:
        asked = batch["asked"].sum().astype(jnp.float32)
        return {"loss": asked, "accuracy": asked}

    def sums(params: Params, batch: Batch, key: jax.Array | None) -> Sums:
        found = outputs(params, batch, key)
        return {"loss": found["loss"].sum(), "accuracy": found["right"].sum()}

    return Task(init, counts, sums, losses=("loss",))
