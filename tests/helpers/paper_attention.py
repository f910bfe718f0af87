"""Attention with position encodings as the paper writes it: query by query, float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax.attention
from pe_jax import encodings


def vector(name, params, x, dim):
    """P(x) of a single encoding, x an int."""
    if name.startswith("learned"):
        return params["table"][x]
    w = params.get(
        "frequencies", np.array([10_000.0 ** (-2 * i / dim) for i in range(dim // 2)])
    )
    return jnp.stack([f(w[i] * x) for i in range(dim // 2) for f in (jnp.sin, jnp.cos)])


def relative_vector(name, params, offset, clip, dim):
    offset = jnp.clip(offset, -clip, clip)
    if name.startswith("learned_"):
        return params["table"][offset + clip]
    return vector(name, params, offset, dim)


def attention(names, params, q, k, v, positions_q, positions_k, mask, clip):
    """Equation 4 for each batch row, head and query by itself.

    `names` are the relative encodings in use, `params` maps each to its own. Shapes:
    q [B, Lq, H, d], k and v [B, Lk, H, d], positions [B, L], mask [B, Lq, Lk] bool.
    """
    dim = q.shape[-1]

    def one(q, k, v, position, positions, allowed):
        """A query q [d], the keys and values k and v [Lk, d] of its head."""
        p = jnp.zeros_like(k)
        for name in names:
            offsets = positions - position
            vectors = functools.partial(
                relative_vector, name, params[name], clip=clip, dim=dim
            )
            p += jax.vmap(vectors)(offsets)
        logits = jnp.where(allowed, (k + p) @ q / np.sqrt(dim), -1e300)
        weights = jnp.where(allowed, jnp.exp(logits - logits.max()), 0.0)
        return weights @ (v + p) / jnp.where(allowed.any(), weights.sum(), 1.0)

    of_heads = jax.vmap(one, (0, 1, 1, None, None, None))
    of_queries = jax.vmap(of_heads, (0, None, None, 0, None, 0))
    return jax.vmap(of_queries)(q, k, v, positions_q, positions_k, mask)


def in_float64(function, *args):
    """Value and gradients (with respect to all args) of a scalar function, in float64."""
    with jax.enable_x64(True):
        args = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), args)
        both = jax.jit(jax.value_and_grad(function, argnums=tuple(range(len(args)))))
        value, grads = both(*args)
        return np.asarray(value), jax.tree.map(np.asarray, grads)


def clipped(name, clip):
    """The name with this clip of its relative parts."""
    parts = (
        f"{p}(max_distance={clip})" if p.endswith("relative") else p
        for p in name.split("+")
    )
    return "+".join(parts)


@functools.cache
def build(name, clip, heads, dim):
    """An encoding of that clip, and parameters that are large enough to be seen."""
    sizes = dict(hidden_size=heads * dim, head_size=dim, num_heads=heads, max_length=16)
    encoding = encodings.from_name(clipped(name, clip), **sizes)
    drawn = jax.jit(encoding.init)(jax.random.key(3))
    return encoding, jax.tree.map(lambda x: 4 * x if x.ndim == 2 else x, drawn)


def _range(positions):
    """Positions as a range, where they are one."""
    one = (
        range(int(positions[0]), int(positions[0]) + len(positions))
        if positions.ndim == 1
        else ()
    )
    return one if positions.ndim == 1 and positions.tolist() == list(one) else positions


def draw(rows, lq, lk, heads, dim):
    rng = np.random.default_rng(0)
    return [
        rng.normal(size=(rows, n, heads, dim)).astype(np.float32) for n in (lq, lk, lk)
    ]


# Values and gradients of `attention` by what they were given: the same for every implementation.
_EXPECTED: dict[tuple, tuple] = {}


def check_attention(
    name, qkv, positions_q, positions_k, mask, clip, implementation="auto"
):
    """`pe_jax.attention.attention` against `attention` above: the value and all gradients of a
    random projection of the output. mask [B, Lq, Lk]; positions `[L]` or `[B, L]`."""
    rows, _, heads, dim = qkv[0].shape
    encoding, params = build(name, clip, heads, dim)
    to = np.random.default_rng(9).normal(size=qkv[0].shape)
    spread = lambda p: np.broadcast_to(p, (rows, np.shape(p)[-1]))
    relative = [part for part in name.split("+") if part.endswith("relative")]
    # One row for all queries where it is the same, as padding masks have it.
    short = mask[:, :1] if (mask == mask[:, :1]).all() else mask

    context = encodings.Context(
        positions_q=_range(positions_q), positions_k=_range(positions_k)
    )

    def ours(q, k, v, params):
        mask = jnp.asarray(short)[:, None]
        out = pe_jax.attention.attention(
            q, k, v, encoding, params, context, mask=mask, implementation=implementation
        )
        return (out * to).sum()

    def formula(q, k, v, params):
        nested = {n: params.get(n, {}) for n in relative}
        out = attention(
            relative,
            nested,
            q,
            k,
            v,
            spread(positions_q),
            spread(positions_k),
            mask,
            clip,
        )
        return (out * to).sum()

    value, grads = jax.jit(jax.value_and_grad(ours, argnums=(0, 1, 2, 3)))(*qkv, params)
    given = (*qkv, positions_q, positions_k, mask)
    key = (name, clip, *((np.shape(x), np.asarray(x).tobytes()) for x in given))
    if key not in _EXPECTED:
        _EXPECTED[key] = in_float64(formula, *qkv, params)
    expected, expected_grads = _EXPECTED[key]
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-4, atol=3e-5),
        grads,
        expected_grads,
    )
