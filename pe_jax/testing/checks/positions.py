"""What positions do: shifts, orders, limits."""

from __future__ import annotations

import functools

import jax
import numpy as np

from pe_jax.shapes import Array
from pe_jax.testing.checks.check import NotApplicable, Problems, check, differences
from pe_jax.testing.subject import LENGTH, Layer, Subject, apply, half


@check("a shift of all positions moves outputs exactly if its card says so")
def shift(s: Subject) -> Problems:
    """Of all positions by 2^17, on both sides of a multiple of 4,096, where sums of angles could
    break; or by as many as there are."""
    if any(part.card is None for part in s.encoding.parts):
        raise NotApplicable("the encoding has no card")
    by = 2**17 - LENGTH // 2
    if s.encoding.longest is not None:
        by = min(by, s.encoding.longest - LENGTH)
    if by < 1:
        raise NotApplicable(f"there are {s.encoding.longest} positions only")
    claimed = all(part.card.invariant for part in s.encoding.parts if part.card)
    here, there = s.run(), s.run(s.positions + by)
    if not claimed:
        apart = np.abs(here - there).max()
        if not apart > 1e-3:
            yield f"Card.invariant is False, but a shift by {by} moves outputs by {apart:.2g} only"
        return
    yield from differences(f"shifted by {by}", there, here, 1e-3)
    low = s.memo("bfloat16", functools.partial(apply, s.encoding))
    here, there = (low(half(s.layer), s.tokens, p) for p in (s.positions, s.positions + by))
    yield from differences(f"bfloat16, shifted by {by}", there, here, 0.03)
    if s.encoding.axes == 1:
        far = range(by, by + LENGTH)
        values = jax.jit(lambda layer: apply(s.encoding, layer, s.tokens, far))(s.layer)
        yield from differences(f"range from {by}", values, s.run(), 1e-3)


@check("the order of tokens in memory does not matter")
def permutation(s: Subject) -> Problems:
    order = np.random.default_rng(1).permutation(LENGTH)
    moved, tokens = s.taken(lambda x: x[:, order]), s.tokens[:, order]
    expected = s.run()[:, order]

    def run(positions: Array) -> Array:
        return s.naive(moved, tokens, positions, s.everything, s.to).out

    values = run(s.positions[:, order])
    yield from differences("tokens permuted with their positions", values, expected, 1e-4)
    if not s.encoding.parts:
        yield from differences("tokens permuted", run(s.positions), expected, 1e-4)


@check("a position past a limit is an error, and NaN where traced")
def limit(s: Subject) -> Problems:
    longest = s.encoding.longest
    if longest is None:
        out = s.run(s.positions + 2**20)
        if not np.isfinite(out).all():
            yield "there is no limit (longest is None), but position 2^20 gives NaN"
        return

    def run(layer: Layer, positions: Array) -> Array:
        return apply(s.encoding, layer, s.tokens, positions, form="naive")

    for first in (longest - LENGTH + 1, -1):
        past = s.positions + first
        try:
            jax.eval_shape(lambda layer: run(layer, past), s.layer)  # noqa: B023
            yield f"positions from {first} of {longest} are no error"
        except ValueError as error:
            if not any(str(n) in str(error) for n in (longest, longest - 1)):
                yield f"the error of positions past {longest} does not name the limit: {error}"
        if np.isfinite(s.run(past)).all():
            yield f"traced positions from {first} of {longest} give finite outputs instead of NaN"
    if any(part.traits.resize for part in s.encoding.parts):
        params = s.encoding.resize(s.layer.params, longest + LENGTH, "interpolate")
        out = run(s.layer._replace(params=params), s.positions + longest)
        if not np.isfinite(out).all():
            yield f"position {longest} is NaN after a resize to {longest + LENGTH}"
