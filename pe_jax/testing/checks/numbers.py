"""The numbers themselves: against the formula, and in every form of attention."""

from __future__ import annotations

import functools

import jax
import numpy as np

from pe_jax.attention.forms import Form
from pe_jax.shapes import Array
from pe_jax.testing.checks.check import NotApplicable, Problems, check, differences
from pe_jax.testing.subject import BLOCKS, LENGTH, ROWS, Mask, Subject, result


def two_layouts(s: Subject) -> dict[str, tuple[Array, Mask]]:
    """Positions and masks: consecutive positions, and any at all, of each row its own; keys masked
    at random, a query that attends to nothing."""
    rng = np.random.default_rng(3)
    index = np.stack([rng.permutation(s.sizes["max_length"])[:LENGTH] for _ in range(ROWS)])
    mask = rng.random(s.everything.shape) < 0.7
    mask[0, :, 2] = False
    return {"consecutive positions": (s.positions, mask), "any positions": (s.at(index), mask)}


@check("outputs and gradients equal the float64 formula, pair by pair")
def formula(s: Subject) -> Problems:
    if s.reference is None:
        raise NotApplicable("no reference was given")
    for name, (positions, mask) in two_layouts(s).items():
        arguments = s.layer, s.tokens, positions, mask, s.to
        values, expected = s.naive(*arguments), s.formula(*arguments)
        yield from differences(f"{name}: out", values.out, expected.out, 2e-5)
        yield from differences(f"{name}: gradient of ", values.grads, expected.grads, 2e-4)


@check("every form of attention has the outputs and gradients of the naive")
def forms(s: Subject) -> Problems:
    terms = any(part.offsets and part.offsets.has_terms for part in s.encoding.parts)
    layouts = two_layouts(s)
    positions, mask = layouts["any positions"]
    consecutive = range(LENGTH) if s.encoding.axes == 1 else s.positions[0]
    expected = s.naive(s.layer, s.tokens, s.positions, mask, s.to)
    tried: dict[str, str | Form] = {"fused": BLOCKS}
    if terms:
        tried["buckets"] = "buckets"
    if any(part.offsets and part.offsets.frequencies for part in s.encoding.parts):
        tried["rotation"] = "rotation"
    for name, form in tried.items():
        values = s.compiled(form, consecutive)(s.layer, s.tokens, mask, s.to)
        yield from differences(f"{name}: ", values._asdict(), expected._asdict(), 1e-4)
    if terms:
        clipped = any(part.offsets and part.offsets.clip for part in s.encoding.parts)
        form = "pairs" if clipped else BLOCKS
        arguments = s.layer, s.tokens, positions, mask, s.to
        values = jax.jit(functools.partial(result, s.encoding, form=form))(*arguments)
        expected = s.naive(*arguments)
        yield from differences("any positions: ", values._asdict(), expected._asdict(), 1e-4)
