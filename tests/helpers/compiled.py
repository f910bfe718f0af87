"""Attention compiled as one program: outside of jit each of its dozens of operations is one."""

import jax

import pe_jax.attention


def attention(q, k, v, encoding=None, params=None, context=None, *, mask=None, **how):
    """`pe_jax.attention.attention`; positions stay as known as the context has them."""

    def run(q, k, v, params, mask):
        return pe_jax.attention.attention(
            q, k, v, encoding, params, context, mask=mask, **how
        )

    return jax.jit(run)(q, k, v, params, mask)


def attention_logits(q, k, encoding, params, context=None):
    """`pe_jax.attention.attention_logits`."""
    run = lambda q, k, params: pe_jax.attention.attention_logits(
        q, k, encoding, params, context
    )
    return jax.jit(run)(q, k, params)


def attention_weights(q, k, encoding, params, context=None):
    """`pe_jax.attention.attention_weights`."""
    run = lambda q, k, params: pe_jax.attention.attention_weights(
        q, k, encoding, params, context
    )
    return jax.jit(run)(q, k, params)


def value_and_pullback(function, args, to):
    """`function(*args)`, and the gradients of its product with `to` by every argument."""

    @jax.jit
    def run(args, to):
        value, pull_back = jax.vjp(function, *args)
        return value, pull_back(to)

    return run(args, to)
