"""Attention with position encodings as the paper writes it: loops, float64, nothing clever."""

import jax
import jax.numpy as jnp
import numpy as np


def vector(name, params, x, dim):
    """P(x) of a single encoding, x an int."""
    if name.startswith("learned"):
        return params["table"][x]
    w = params.get("frequencies", np.array([10_000.0 ** (-2 * i / dim) for i in range(dim // 2)]))
    return jnp.stack([f(w[i] * x) for i in range(dim // 2) for f in (jnp.sin, jnp.cos)])


def relative_vector(name, params, offset, clip, dim):
    offset = max(-clip, min(clip, offset))
    if name.startswith("learned_"):
        return params["table"][offset + clip]
    return vector(name, params, offset, dim)


def attention(names, params, q, k, v, positions_q, positions_k, mask, clip):
    """Equation 4 for each batch row, head and query in turn.

    `names` are the relative encodings in use, `params` maps each to its own. Shapes:
    q [B, Lq, H, d], k and v [B, Lk, H, d], positions [B, L], mask [B, Lq, Lk] bool.
    """
    rows, lq, heads, dim = q.shape
    out = []
    for b in range(rows):
        for i in range(lq):
            offsets = [int(j) - int(positions_q[b, i]) for j in positions_k[b]]
            p = sum(
                jnp.stack([relative_vector(n, params[n], m, clip, dim) for m in offsets])
                for n in names
            ) + jnp.zeros((len(offsets), dim))
            for h in range(heads):
                allowed = [j for j in range(len(offsets)) if mask[b, i, j]]
                if not allowed:
                    out.append(jnp.zeros(dim))
                    continue
                at = np.array(allowed)
                logits = (k[b, at, h] + p[at]) @ q[b, i, h] / np.sqrt(dim)
                weights = jnp.exp(logits - logits.max())
                out.append((weights / weights.sum()) @ (v[b, at, h] + p[at]))
    return jnp.stack(out).reshape(rows, lq, heads, dim)


def in_float64(function, *args):
    """Value and gradients (with respect to all args) of a scalar function, in float64."""
    with jax.enable_x64(True):
        args = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), args)
        value, grads = jax.value_and_grad(function, argnums=tuple(range(len(args))))(*args)
        return np.asarray(value), jax.tree.map(np.asarray, grads)
