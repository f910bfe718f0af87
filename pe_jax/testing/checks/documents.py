"""Documents in rows, padding, and tokens that come one at a time."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import Cache, cached_attention, init_cache, segment_mask
from pe_jax.shapes import Array, Float, Int
from pe_jax.testing.checks.check import NotApplicable, Problems, check, differences
from pe_jax.testing.subject import LENGTH, ROWS, Mask, Subject, apply, described, hidden, projected

# Documents of each row, counted from 1; 0 is padding.
DOCUMENTS = np.array([[1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 2, 2, 2, 3, 3, 3]])


def restarted(segments: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Index of each token in its own document."""
    first = segments[:, :, None] == segments[:, None, :]
    return np.arange(LENGTH) - np.argmax(first, axis=-1)


def packed(segments: Int[Array, "B L"]) -> Mask:
    return np.asarray(segment_mask(jnp.asarray(segments), jnp.asarray(segments)))


ALONE = 3  # Tokens of the documents that are compared with the same ones by themselves.


def alone(s: Subject, first: int) -> Float[Array, "B l H d"]:
    """Outputs of `ALONE` tokens of the subject from `first` on, with nothing around them."""
    part = slice(first, first + ALONE)
    layer = s.taken(lambda x: x[:, part])
    run = functools.partial(apply, s.encoding, form="naive")
    return s.memo("alone", run)(layer, s.tokens[:, part], s.positions[:, :ALONE])


@check("documents in a row, positions reset, give what each gives alone")
def packing(s: Subject) -> Problems:
    out = s.run(s.at(restarted(DOCUMENTS)), packed(DOCUMENTS))
    for row, segments in enumerate(DOCUMENTS):
        for document in range(1, segments.max() + 1):
            inside = segments == document
            if inside.sum() == ALONE:
                expected = alone(s, int(np.argmax(inside)))[row]
                name = f"row {row}, document {document}"
                yield from differences(name, out[row, inside], expected, 1e-4)
    nowhere = np.abs(out[DOCUMENTS == 0]).max()
    if nowhere != 0:
        yield f"padding, which attends to nothing, has outputs up to {nowhere:.2g} instead of 0"


@check("padding on either side changes nothing")
def padding(s: Subject) -> Problems:
    for side, first in (("right", 0), ("left", LENGTH - ALONE)):
        index = np.arange(LENGTH) - first
        valid = (index >= 0) & (index < ALONE)
        positions = s.at(np.tile(np.where(valid, index, 0), (ROWS, 1)))
        mask = np.broadcast_to(valid, s.everything.shape)
        to = s.to * valid[:, None, None]
        result = s.naive(s.layer, s.tokens, positions, mask, to)
        yield from differences(f"{side} padding", result.out[:, valid], alone(s, first), 1e-4)
        stray = np.abs(result.grads.x[:, ~valid]).max()
        if not stray < 1e-4:
            yield f"{side} padding: a gradient of {stray:.2g} flows to padding"


@check("token by token with a cache gives what a causal mask gives")
def decoding(s: Subject) -> Problems:
    if not all(part.traits.cacheable for part in s.encoding.parts):
        raise NotApplicable("keys do not stay right when the sequence grows (Traits.cacheable)")
    empty = init_cache(
        s.encoding, ROWS, LENGTH, num_heads=s.heads, head_size=s.head_size, hidden_size=s.width
    )

    @jax.jit
    def step(cache: Cache, t: Array) -> tuple[Array, Cache]:
        """The token at index t."""

        def slice_of(x: Array, axis: int = 1) -> Array:
            return jax.lax.dynamic_slice_in_dim(x, t, 1, axis)

        layer = s.taken(slice_of)
        position = slice_of(jnp.asarray(s.positions[0]), axis=0)
        x = hidden(s.encoding, layer, slice_of(s.tokens), position)
        context = described(layer, x, x, position, position)._replace(positions_k=None, x_k=None)
        q, k, v = projected(layer, x)
        return cached_attention(q, k, v, cache, s.encoding, layer.params, context)

    cache, outputs = empty, []
    for t in range(LENGTH):
        out, cache = step(cache, jnp.asarray(t))
        outputs.append(out)
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    expected = s.run(mask=np.broadcast_to(causal, s.everything.shape))
    yield from differences("token by token", np.concatenate(outputs, axis=1), expected, 1e-4)
