"""jaxgarden 0.2.0: the pairs that ModernBERT rotates, its window's positions, its global layers."""

import jax.numpy as jnp
import jaxgarden
from flax import nnx
from jaxgarden.models.modernbert import ModernBertAttention

print("jaxgarden", jaxgarden.__version__)
# As ModernBERT-base: every third layer is global, windows of 128.
settings = dict(
    hidden_size=64,
    num_attention_heads=1,
    local_attention=(128, 128),
    local_rope_theta=10_000.0,
    global_rope_theta=160_000.0,
    global_attn_every_n_layers=3,
)
layers = [ModernBertAttention(nnx.Rngs(0), layer_id=i, **settings) for i in (0, 1)]
x = jnp.zeros((1, 300, 1, 64)).at[..., 0].set(1.0)
rotated = layers[1].rotary_emb(x)[0, :, 0]
print("dimensions that e_0 rotates into:", jnp.flatnonzero(rotated[1]))
print("rows of the table:", layers[1].rotary_emb.cache.shape[0])
print("position 130 rotates as position 2:", bool((rotated[130] == rotated[2]).all()))
print("global layer 0:", layers[0].local_attention, layers[0].rotary_emb.base)
