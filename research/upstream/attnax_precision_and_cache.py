"""attnax 0.2.0: angles in the query's dtype, and a cached step without positions."""

import attnax
import jax
import jax.numpy as jnp
import numpy as np
from attnax import init_kv_layer_cache
from flax import nnx

print("attnax", attnax.__version__, "jax", jax.__version__)
for dtype in (jnp.float32, jnp.bfloat16):
    cos, sin = attnax.rope_cos_sin_table(8192, 64, 10_000.0, dtype)
    table = np.concatenate([cos, sin], axis=1).astype(np.float32)
    print(np.dtype(dtype), "different rows of 8192:", len(np.unique(table, axis=0)))

layer = attnax.MultiHeadAttention(
    num_heads=2, in_features=16, use_rope=True, decode=False, rngs=nnx.Rngs(0)
)
x = jax.random.normal(jax.random.key(1), (1, 6, 16))
full = layer(x, mask=jnp.tril(jnp.ones((1, 1, 6, 6), bool)), deterministic=True)
cache = init_kv_layer_cache(1, 2, 8, 6, jnp.float32)
steps = []
for t in range(6):
    step, cache = layer(x[:, t : t + 1], kv_cache=cache, deterministic=True)
    steps.append(step)
decoded = jnp.concatenate(steps, axis=1)
print("difference by token:", jnp.abs(decoded - full).max((0, 2)).round(3))
