"""Conformance checks for third-party attention: Flax's, Equinox's or yours; jax and NumPy only.

>>> import jax
>>> from pe_jax.testing import foreign
>>> def attend(x, positions, mask):
...     heads = x.reshape(*x.shape[:2], 2, 4)
...     return jax.nn.dot_product_attention(heads, heads, heads, mask=mask)
>>> attention = foreign.Attention("jax.nn", attend)
>>> foreign.CHECKS["packing"](attention)  # All of them: foreign.check(attention)
'ok'
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pe_jax.common.shapes import Array, Float, Int
from pe_jax.testing.problems import (
    Checks,
    NotApplicable,
    Problems,
    add_check,
    check_all,
    check_table,
    differences,
)
from pe_jax.testing.rows import ALONE, document_differences, packed, padded
from pe_jax.testing.subject import LENGTH, ROWS, Mask

__all__ = ["CHECKS", "Attention", "check", "table"]

# Takes x `[B, L, D]`, positions `[B, L]` and a mask `[B, 1, L, L]`; returns `[B, L, *E]`.
Attend = Callable[
    [Float[Array, "B L D"], Int[Array, "B L"], Mask], Float[Array, "B L *E"]
]
# The same for new tokens `[B, T, D]`, with a mask over the whole cache, `[B, 1, T, length]`.
Step = Attend

POSITIONS = np.tile(np.arange(LENGTH), (ROWS, 1))
CAUSAL = np.tril(np.ones((ROWS, 1, LENGTH, LENGTH), bool))
FAR = 1000  # Angles of this position in bfloat16 are wrong by whole turns.


@dataclasses.dataclass(frozen=True)
class Attention:
    """Self-attention, or a module around it without a residual connection.

    Its properties serve the checks and may change.

    Attributes:
      name: for tables and messages.
      attend: `(x [B, L, D], positions [B, L], mask [B, 1, L, L]) -> [B, L, ...]`, a pure function
        that `jax.jit` takes. The mask is bool, True where a query may attend to a key. It never
        allows a later key, so attention that is always causal fits. Attention that does not use
        positions or masks may ignore them.
      decode: `(rows, length) -> step`, an empty cache for so many tokens. `step(x [B, T, D],
        positions [B, T], mask [B, 1, T, length]) -> [B, T, ...]` appends T tokens to it.
      with_dtype: `(dtype) -> attend` that computes in this dtype, with the same weights.
      width: Size D of the inputs `x`.
      window: the most keys that a query of `attend` attends to, its own among them; below 8.
      with_sink: `(logit) -> attend` with a sink of this logit in the softmax of every head;
        `attend` itself has none.
      with_cap: `(cap) -> attend` with logits capped, cap · tanh(logit / cap); `attend` itself has
        no cap.
    """

    name: str
    attend: Attend
    decode: Callable[[int, int], Step] | None = None
    with_dtype: Callable[[DTypeLike], Attend] | None = None
    width: int = 8
    window: int | None = None
    with_sink: Callable[[float], Attend] | None = None
    with_cap: Callable[[float], Attend] | None = None

    @functools.cached_property
    def run(self) -> Attend:
        """`attend`, compiled once for all checks."""
        return jax.jit(self.attend)

    @functools.cached_property
    def gradient(self) -> Callable[[Array, Array, Array, Mask], Array]:
        """`(to, x, positions, mask) -> [B, L, D]`, the gradient of <out, to>."""

        def loss(x: Array, to: Array, positions: Array, mask: Mask) -> Array:
            return (self.attend(x, positions, mask) * to).sum()

        grad = jax.jit(jax.grad(loss))
        return lambda to, x, positions, mask: np.asarray(grad(x, to, positions, mask))

    @functools.cached_property
    def x(self) -> Float[Array, "B L D"]:
        return _normal(0, ROWS, LENGTH, self.width)

    @functools.cached_property
    def out(self) -> Float[Array, "B L *E"]:
        """Outputs for `x` at consecutive positions."""
        return np.asarray(self.run(self.x, POSITIONS, CAUSAL))

    @functools.cached_property
    def to(self) -> Float[Array, "B L *E"]:
        """A cotangent of the output."""
        return _normal(1, *self.out.shape)


CHECKS: Checks = {}
_check = functools.partial(add_check, CHECKS)


def check(
    attention: Attention, excused: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Run every check in `CHECKS` on attention, as `pe_jax.testing.check` does on an encoding.

    Args:
      excused: reasons of checks that cannot hold, by name. They must fail.

    Returns:
      By the name of the check, `"ok"` or the reason why it does not apply.

    Raises:
      AssertionError: lists all faults with their numbers.
      ValueError: if `excused` names an unknown check.
    """
    return check_all(attention, CHECKS, excused or {})


def table(
    attentions: Iterable[Attention],
    excused: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Return attentions × checks as Markdown, with notes on failures, as `pe_jax.testing.table`."""
    return check_table("attention", attentions, CHECKS, excused or {})


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _alone(a: Attention, first: int) -> Float[Array, "B l *E"]:
    """Outputs of `ALONE` tokens from `first` on, with nothing around them."""
    x = a.x[:, first : first + ALONE]
    return a.run(x, POSITIONS[:, :ALONE], CAUSAL[..., :ALONE, :ALONE])


@_check
def shift(a: Attention) -> Problems:
    """A shift of all positions changes nothing."""
    if np.array_equal(a.run(a.x, 2 * POSITIONS, CAUSAL), a.out):
        raise NotApplicable("positions make no difference")
    values = a.run(a.x, POSITIONS + FAR, CAUSAL)
    yield from differences(f"shifted by {FAR}", values, a.out, 1e-3)


@_check
def packing(a: Attention) -> Problems:
    """Packed documents whose positions restart give the same outputs as separate ones."""
    positions, mask = packed()
    out = np.asarray(a.run(a.x, positions, mask & CAUSAL))
    yield from document_differences(out, functools.partial(_alone, a))


def _padding(a: Attention, first: int) -> Problems:
    """Yield what padding around `ALONE` tokens changes."""
    valid, kinds = padded(first)
    positions = kinds["at 0"]
    mask = CAUSAL & valid
    out = np.asarray(a.run(a.x, positions, mask))
    yield from differences("outputs", out[:, valid], _alone(a, first), 1e-4)
    to = np.where(valid.reshape(-1, *[1] * (out.ndim - 2)), a.to, 0)
    grads = a.gradient(to, a.x, positions, mask)
    stray = np.abs(grads[:, ~valid]).max()
    if not stray < 1e-4:
        yield f"a gradient of {stray:.2g} flows to padding"
    if not np.isfinite(grads[:, valid]).all():
        yield "gradients of tokens are not finite"


@_check
def right_padding(a: Attention) -> Problems:
    """Padding on the right, masked, changes nothing."""
    return _padding(a, 0)


@_check
def left_padding(a: Attention) -> Problems:
    """Padding on the left, masked, changes nothing; positions count from the first token."""
    return _padding(a, LENGTH - ALONE)


@_check
def masked_queries(a: Attention) -> Problems:
    """A query without any allowed key has no gradient to other tokens."""
    query = 4
    mask = CAUSAL.copy()
    mask[:, :, query] = False
    to = np.zeros_like(a.to)
    to[:, query] = a.to[:, query]
    grads = np.delete(a.gradient(to, a.x, POSITIONS, mask), query, axis=1)
    largest = np.abs(grads).max()
    if not largest < 1e-5:
        yield f"its output has a gradient of {largest:.2g} to other tokens"


def _decoded(
    a: Attention, prompt: int, positions: Array, mask: Mask
) -> Float[Array, "B L *E"]:
    """Outputs of a prompt that comes at once, and of the tokens after it one at a time."""
    if a.decode is None:
        raise NotApplicable("no decode was given")
    step = a.decode(ROWS, LENGTH)
    outputs = []
    start = 0
    for stop in range(prompt, LENGTH + 1):
        part = slice(start, stop)
        out = step(a.x[:, part], positions[:, part], mask[:, :, part])
        outputs.append(np.asarray(out))
        start = stop
    return np.concatenate(outputs, axis=1)


@_check
def decoding(a: Attention) -> Problems:
    """A prompt and then token by token with a cache gives what the full pass gives."""
    out = _decoded(a, 3, POSITIONS, CAUSAL)
    yield from differences("outputs", out, a.out, 1e-4)


@_check
def padded_decoding(a: Attention) -> Problems:
    """Decoding after a prompt that is padded on the left matches the full pass."""
    pads = np.array([2, 0])
    positions = np.maximum(POSITIONS - pads[:, None], 0)
    valid = np.arange(LENGTH) >= pads[:, None]
    out = _decoded(a, 4, positions, CAUSAL & valid[:, None, None])
    # Tokens moved to the front, where later ones are not seen.
    rows = [np.roll(row, -pad, axis=0) for row, pad in zip(a.x, pads, strict=True)]
    expected = a.run(np.stack(rows), POSITIONS, CAUSAL)
    for row, pad in enumerate(pads):
        name = f"row {row}, {pad} of padding"
        values = out[row, pad:]
        yield from differences(name, values, expected[row, : LENGTH - pad], 1e-4)


@_check
def precision(a: Attention) -> Problems:
    """Bfloat16 keeps its dtype and stays near float32."""
    if a.with_dtype is None:
        raise NotApplicable("no with_dtype was given")
    positions = POSITIONS + FAR
    expected = a.run(a.x, positions, CAUSAL)
    run = jax.jit(a.with_dtype(jnp.bfloat16))
    values = run(jnp.asarray(a.x, jnp.bfloat16), positions, CAUSAL)
    if values.dtype != jnp.bfloat16:
        yield f"bfloat16 in, {values.dtype} out"
    yield from differences("bfloat16", values, expected, 0.05)


@_check
def derivatives(a: Attention) -> Problems:
    """Forward mode equals reverse mode; second derivatives are the slopes of first ones."""
    along = _normal(2, *a.x.shape)

    def loss(x: Array) -> Array:
        return (a.attend(x, POSITIONS, CAUSAL) * a.to).sum()

    def push(function: Callable[[Array], Array], x: Array) -> Array:
        return jax.jvp(function, (x,), (along,))[1]

    def gradient(move: float) -> Array:
        return a.gradient(a.to, a.x + move * along, POSITIONS, CAUSAL)

    slope, curvature = jax.jit(lambda x: (push(loss, x), push(jax.grad(loss), x)))(a.x)
    expected = (gradient(0.0) * along).sum()
    yield from differences("forward mode", slope, expected, 1e-3)
    step = 1e-2
    expected = (gradient(step) - gradient(-step)) / (2 * step)
    yield from differences("second derivative", curvature, expected, 0.02)


@_check
def window(a: Attention) -> Problems:
    """A query sees the last key of its window and none before it."""
    if a.window is None:
        raise NotApplicable("no window was given")
    if not 1 <= a.window < LENGTH:
        raise ValueError(f"window must be from 1 to {LENGTH - 1} keys, got {a.window}.")
    other = a.x.copy()
    other[:, 0] += 1
    before = a.out
    after = np.asarray(a.run(other, POSITIONS, CAUSAL))
    beyond = slice(a.window, None)
    yield from differences(
        "beyond the window", after[:, beyond], before[:, beyond], 1e-5
    )
    last = a.window - 1
    if np.abs(after[:, last] - before[:, last]).max() < 1e-5:
        yield f"query {last} does not see key 0, the last of {a.window} keys"


@_check
def sinks(a: Attention) -> Problems:
    """A sink of -1e9 or -inf changes nothing; one of 1e4 takes all the weight."""
    if a.with_sink is None:
        raise NotApplicable("no with_sink was given")
    for logit in (-1e9, -np.inf):
        values = jax.jit(a.with_sink(logit))(a.x, POSITIONS, CAUSAL)
        yield from differences(f"a sink of {logit:g}", values, a.out, 1e-5)
    # Without weight, all tokens have the same output.
    out = np.asarray(jax.jit(a.with_sink(1e4))(a.x, POSITIONS, CAUSAL))
    first = np.broadcast_to(out[:1, :1], out.shape)
    yield from differences("a sink of 1e4", out, first, 1e-5)
    half = np.asarray(jax.jit(a.with_sink(0.0))(a.x, POSITIONS, CAUSAL))
    if np.abs(half - a.out).max() < 1e-3 or np.abs(half - out).max() < 1e-3:
        yield "a sink of 0 takes no part of the weight"


@_check
def capping(a: Attention) -> Problems:
    """A large cap changes nothing, a tiny one weighs all keys alike; masked keys stay masked."""
    if a.with_cap is None:
        raise NotApplicable("no with_cap was given")
    values = jax.jit(a.with_cap(1e6))(a.x, POSITIONS, CAUSAL)
    yield from differences("a cap of 1e6", values, a.out, 1e-3)
    capped = jax.jit(a.with_cap(1e-6))

    def changed(token: int) -> Array:
        """Outputs after a change of one token."""
        other = a.x.copy()
        other[:, token] += 1
        return np.asarray(capped(other, POSITIONS, CAUSAL))

    before = np.asarray(capped(a.x, POSITIONS, CAUSAL))
    after = changed(-1)
    yield from differences(
        "before a changed token", after[:, :-1], before[:, :-1], 1e-5
    )
    # Of the mean over n tokens, n times: a change of the first is the same in all later outputs.
    count = np.arange(1, LENGTH + 1).reshape(-1, *[1] * (before.ndim - 2))
    moved = count * (changed(0) - before)
    if a.window is None:
        first = np.broadcast_to(moved[:, :1], moved.shape)
        yield from differences("means", moved, first, 1e-3)
