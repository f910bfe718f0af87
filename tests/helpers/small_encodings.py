"""Small encodings by name, and inputs of their size."""

import jax
import numpy as np

from helpers import paper_attention
from helpers.compiled import attention_logits
from pe_jax import encodings
from pe_jax.encodings import Context, HookContext

SIZES = {"hidden_size": 16, "head_size": 8, "num_heads": 2, "max_length": 12}
SMALL = {"hidden_size": 8, "head_size": 4, "num_heads": 2, "max_length": 16}
NARROW = {**SMALL, "max_length": 4}


def build(name, **sizes):
    return encodings.from_name(name, **{**SIZES, **sizes})


def build_clipped(name):
    """One of the paper's, with offsets clipped at 3."""
    return encodings.from_name(paper_attention.clipped(name, 3), **SMALL)


def made(name, **sizes):
    encoding = build(name, **sizes)
    return encoding, encoding.init(jax.random.key(0))


def made_narrow(name, **sizes):
    return made(name, **{**NARROW, **sizes})


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def qk(length=6):
    return draw(2, length, 2, 8), draw(2, length, 2, 8, seed=1)


def queries_keys(shape=(2, 6, 2, 8), dtype=np.float32, seed=0):
    q, k = np.random.default_rng(seed).normal(size=(2, *shape))
    return q.astype(dtype), k.astype(dtype)


def grid(rows, columns):
    """The positions of patches on two axes."""
    index = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    return np.stack(index, -1).reshape(-1, 2)


def embedded(encoding, params, positions):
    """What `encoding` adds to an input of zeros."""
    zeros = np.zeros((1, len(positions), 8), np.float32)
    return encodings.embed(zeros, encoding, params, Context(positions_q=positions))[0]


def bias_between(encoding, params, positions_q, positions_k=None):
    """What an encoding adds between queries and keys of zeros, [H, Lq, Lk]."""
    positions_k = positions_q if positions_k is None else positions_k
    zeros = (
        np.zeros((1, len(at), 2, 4), np.float32) for at in (positions_q, positions_k)
    )
    return attention_logits(
        *zeros,
        encoding,
        params,
        Context(positions_q=positions_q, positions_k=positions_k),
    )[0]


def bias_at(name, own, offsets, **sizes):
    """What a bias adds at these offsets, [..., H]."""
    (part,) = made_narrow(name, **sizes)[0].parts
    return np.asarray(
        part.offsets.bias(
            own,
            np.array(offsets),
            HookContext(positions_q=range(0), positions_k=range(0)),
        )
    )


def logits_at(name, at, head_size=8, params=None):
    encoding = build(name, head_size=head_size)
    length = np.shape(at)[-1 if encoding.axes == 1 else -2]
    q, k = draw(1, length, 2, head_size), draw(1, length, 2, head_size, seed=1)
    params = jax.jit(encoding.init)(jax.random.key(0)) if params is None else params
    return attention_logits(q, k, encoding, params, Context(positions_q=at))


def mapped_queries(part, params, q, at):
    """Queries as the part maps them at positions `at`."""
    return np.asarray(
        jax.jit(
            lambda q: part.map_qkv(
                params, q, q, q, HookContext(positions_q=at, positions_k=at)
            )[0]
        )(q)
    )


def rotated(part, x, positions_q, positions_k=None):
    """What a part makes of queries and keys that are both `x`."""
    positions_k = positions_q if positions_k is None else positions_k
    context = HookContext(positions_q=positions_q, positions_k=positions_k)
    q, k, _ = jax.jit(lambda x: part.map_qkv({}, x, x, x, context))(x)
    return q, k


def frequencies_of(encoding):
    """The frequencies that reports see."""
    (part,) = encoding.parts
    return np.asarray(part.metadata.frequencies(part.init(jax.random.key(0)))).ravel()
