"""Errors in hooks of one's own, and encodings that are not called."""

import jax
import jax.numpy as jnp
import pytest

from pe_jax import encodings
from pe_jax.attention import attention
from pe_jax.encodings import LogitTerms, OffsetTerms, Part, define_encoding
from pe_jax.encodings.encoding import check_key, checked_encoding
from pe_jax.encodings.rotary.rope import rotate_heads

Q = jnp.ones((1, 3, 2, 4))


def broken(*args):
    del args
    return jnp.ones((3, 5)) @ jnp.ones((4, 2))


PARTS = {
    "hook 'logits' of mine": Part(logits=broken),
    "hook 'map_qkv' of mine": Part(map_qkv=broken),
    "hook 'map_logits' of mine": Part(map_logits=broken),
    "OffsetTerms(bias=...) of mine": Part(offsets=OffsetTerms(bias=broken)),
    "LogitTerms, hook 'logits' of mine": Part(
        logits=lambda params, q, k, context: LogitTerms(
            function=broken, query_arrays=(q,), key_arrays=(k,)
        )
    ),
}


@pytest.mark.parametrize("where", PARTS)
def test_errors_name_the_hook(where):
    mine = define_encoding(lambda: PARTS[where])
    mine.__name__ = "mine"
    with pytest.raises(TypeError, match="contracting") as caught:
        attention(Q, Q, Q, mine())
    (note,) = [note for note in caught.value.__notes__ if note.startswith("In ")]
    assert note.startswith(f"In {where}, {__file__}:") and note.endswith(
        "jnp.ones((4, 2))"
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            Part(offsets=OffsetTerms(bias=lambda *_: jnp.ones((3, 2)))),
            r"OffsetTerms\(bias=.*\[5, H\]",
        ),
        (
            Part(offsets=OffsetTerms(key_vectors=lambda _, x, __: x)),
            r"must return \[3, 3, d\] or \[3, 3, H, d\]",
        ),
        (
            Part(sink=lambda *_: jnp.ones(7)),
            r"'sink' of mine must return a number or \[H\]",
        ),
        (
            Part(logits=lambda *_: jnp.ones((3, 4))),
            r"here \[1, 2, 3, 3\], got \[3, 4\]",
        ),
    ],
)
def test_results_of_a_wrong_shape(part, message):
    mine = define_encoding(lambda: part)
    mine.__name__ = "mine"
    with pytest.raises(ValueError, match=message):
        attention(Q, Q, Q, mine())


def test_functions_that_are_not_called():
    rope = encodings.rope(head_size=4)
    with pytest.raises(
        TypeError, match=r"rope\(\) takes keyword arguments only, got 64: .*head_s"
    ):
        encodings.rope(64)
    for join in (lambda: rope + encodings.causal, lambda: encodings.causal + rope):
        with pytest.raises(TypeError, match=r"Call it: causal\(...\)"):
            join()
    with pytest.raises(ValueError, match=r"got function. Call it: rope\(...\)"):
        checked_encoding(encodings.rope)
    with pytest.raises(ValueError, match=r"rng must be a key, such as .*, got 0"):
        check_key(0)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_no_rows_and_no_tokens(shape):
    """As encodings map heads and as attention has them."""
    encoding = encodings.rope(head_size=4) + encodings.alibi(num_heads=2)
    q = jnp.ones((*shape, 2, 4))
    out, grads = jax.value_and_grad(lambda q: attention(q, q, q, encoding).sum())(q)
    assert out == 0 and grads.shape == q.shape
    turned = rotate_heads(q, jnp.arange(shape[1]), jnp.ones((1, 2)))
    assert turned.shape == q.shape
    no_keys = jnp.ones((2, 0, 2, 4))
    context = encodings.Context(positions_q=range(3), positions_k=range(0))
    assert not attention(
        jnp.ones((2, 3, 2, 4)), no_keys, no_keys, encoding, {}, context
    ).any()
