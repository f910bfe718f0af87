"""What every module of BERT is made of."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from pe_jax.models.config import BertConfig
from pe_jax.models.linear import Dense


class BertModule(nn.Module):
    """What every BERT module shares: the sizes, and layers made the same way."""

    config: BertConfig

    def dense(
        self,
        features: int | tuple[int, ...],
        name: str,
        axes: int = 1,
        kind: type[Dense] = Dense,
    ):
        return kind(
            features if isinstance(features, tuple) else (features,),
            dtype=jnp.dtype(self.config.dtype),
            stddev=self.config.initializer_stddev,
            axes=axes,
            name=name,
        )

    def layer_norm(self, name: str):
        return nn.LayerNorm(
            epsilon=self.config.layer_norm_epsilon, dtype=jnp.dtype(self.config.dtype), name=name
        )

    def embedding(self, rows: int, name: str):
        return nn.Embed(
            rows,
            self.config.hidden_size,
            embedding_init=nn.initializers.normal(self.config.initializer_stddev),
            name=name,
        )
