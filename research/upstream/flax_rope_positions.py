"""flax 0.12.12: positions of `dot_product_attention_with_rope`, and decoding without them."""

import functools

import flax
import jax
import jax.numpy as jnp
from flax import nnx

print("flax", flax.__version__, "jax", jax.__version__)
q = k = v = jax.random.normal(jax.random.key(0), (1, 6, 2, 8))  # [B, L, H, d]
rope = nnx.RoPE()
try:
    nnx.dot_product_attention_with_rope(
        q, k, v, rope=rope, input_positions=jnp.arange(6)
    )
except ValueError as error:
    print("ValueError:", str(error).splitlines()[0])

attention = functools.partial(nnx.dot_product_attention_with_rope, rope=rope)
layer = nnx.MultiHeadAttention(
    4, 32, 32, attention_fn=attention, decode=False, rngs=nnx.Rngs(0)
)
x = jax.random.normal(jax.random.key(1), (1, 8, 32))
full = layer(x, mask=nnx.make_causal_mask(jnp.ones((1, 8))))
layer.init_cache(x.shape)
steps = [layer(x[:, t : t + 1], decode=True) for t in range(8)]
decoded = jnp.concatenate(steps, axis=1)
print("difference by token:", jnp.abs(decoded - full).max((0, 2)).round(3))
