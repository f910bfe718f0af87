"""What must hold of every encoding, check by check.

A check yields what is wrong, with the numbers met, and raises `NotApplicable` where there is
nothing to check. Tolerances are shares of the largest value that is expected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import attention, segment_mask
from pe_jax.attention.forms import Form
from pe_jax.encodings import ENCODINGS, WRAPPERS, Part, parameter_count, stack_from_name
from pe_jax.shapes import Array, Float, Int
from pe_jax.testing.reference import Layer
from pe_jax.testing.subject import (
    BLOCKS,
    LENGTH,
    ROWS,
    Mask,
    Result,
    Subject,
    apply,
    described,
    hidden,
    projected,
    result,
)

Problems = Iterator[str]


class NotApplicable(Exception):
    """An encoding that a check does not apply to; the message is the reason."""


class Check(NamedTuple):
    """One thing that must hold.

    Attributes:
      about: what, in a line.
      problems: what is wrong with an encoding.
    """

    about: str
    problems: Callable[[Subject], Problems]

    def run(self, subject: Subject, excuse: str = "") -> str:
        """Puts an encoding through the check.

        Args:
          excuse: why it does not have to hold here. It must not hold, then.

        Returns:
          `"ok"`, or why the check does not apply.

        Raises:
          AssertionError: with everything that is wrong, or for an excuse that is not needed.
        """
        cause = None
        try:
            found = list(self.problems(subject))
        except NotApplicable as reason:
            return str(reason)
        except Exception as error:  # An encoding that fails is told like any other mistake.
            found, cause = [f"{type(error).__name__}: {error}"], error
        if excuse:
            assert found, f"{subject.name} is excused from {self.about!r} ({excuse}), but has it."
            return excuse
        if found:
            told = [f"{subject.name}: {self.about}. But:", *found]
            raise AssertionError("\n  ".join(told)) from cause
        return "ok"


def differences(what: str, found: Any, expected: Any, tolerance: float) -> Problems:
    """The leaves of `found` that are not as expected."""

    def one(path: tuple, a: Array, b: Array) -> str:
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        name = what + jax.tree_util.keystr(path)
        if a.shape != b.shape:
            return f"{name}: shape {a.shape}, expected {b.shape}"
        apart, allowed = np.abs(a - b), tolerance * np.abs(b).max(initial=0.0) + 1e-5
        if (apart <= allowed).all():
            return ""
        at = np.unravel_index(np.argmax(np.nan_to_num(apart, nan=np.inf)), a.shape)
        where = ", ".join(map(str, at))
        return f"{name}[{where}]: {a[at]:.6g}, expected {b[at]:.6g} within {allowed:.2g}"

    told = jax.tree_util.tree_map_with_path(one, found, expected)
    yield from filter(None, jax.tree.leaves(told))


# Documents of each row, counted from 1; 0 is padding.
DOCUMENTS = np.array([[1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 2, 2, 2, 3, 3, 3]])


def restarted(segments: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Index of each token in its own document."""
    first = segments[:, :, None] == segments[:, None, :]
    return np.arange(LENGTH) - np.argmax(first, axis=-1)


def packed(segments: Int[Array, "B L"]) -> Mask:
    return np.asarray(segment_mask(jnp.asarray(segments), jnp.asarray(segments)))


def two_layouts(s: Subject) -> dict[str, tuple[Array, Mask]]:
    """Positions and masks: consecutive positions, and any at all, of each row its own; keys masked
    at random, a query that attends to nothing."""
    rng = np.random.default_rng(3)
    index = np.stack([rng.permutation(s.sizes.max_length)[:LENGTH] for _ in range(ROWS)])
    mask = rng.random(s.everything.shape) < 0.7
    mask[0, :, 2] = False
    return {"consecutive positions": (s.positions, mask), "any positions": (s.at(index), mask)}


# --- numbers --------------------------------------------------------------------------------------


def formula(s: Subject) -> Problems:
    if s.reference is None:
        raise NotApplicable("no reference was given")
    for name, (positions, mask) in two_layouts(s).items():
        given = s.layer, s.tokens, positions, mask, s.to
        found, expected = s.naive(*given), s.formula(*given)
        yield from differences(f"{name}: out", found.out, expected.out, 2e-5)
        yield from differences(f"{name}: gradient of ", found.grads, expected.grads, 2e-4)


def forms(s: Subject) -> Problems:
    terms = any(part.offsets and part.offsets.has_terms for part in s.encoding.parts)
    layouts = two_layouts(s)
    positions, mask = layouts["any positions"]
    consecutive = range(LENGTH) if s.encoding.axes == 1 else s.positions[0]
    named = [f for f in ("buckets", "rotation") if terms and s.supports(f, consecutive)]
    expected = s.naive(s.layer, s.tokens, s.positions, mask, s.to)
    tried: dict[str, str | Form] = {**{name: name for name in named}, "fused": BLOCKS}
    for name, form in tried.items():
        found = s.compiled(form, consecutive)(s.layer, s.tokens, mask, s.to)
        yield from differences(f"{name}: ", found._asdict(), expected._asdict(), 1e-4)
    if terms:
        form = "pairs" if s.supports("pairs", positions) else BLOCKS
        given = s.layer, s.tokens, positions, mask, s.to
        found = jax.jit(functools.partial(result, s.encoding, form=form))(*given)
        expected = s.naive(*given)
        yield from differences("any positions: ", found._asdict(), expected._asdict(), 1e-4)


# --- documents in rows ----------------------------------------------------------------------------


ALONE = 3  # Tokens of the documents that are compared with the same ones by themselves.


def alone(s: Subject, first: int) -> Float[Array, "B l H d"]:
    """Outputs of `ALONE` tokens of the subject from `first` on, with nothing around them."""
    part = slice(first, first + ALONE)
    layer = s.taken(lambda x: x[:, part])
    run = functools.partial(apply, s.encoding, form="naive")
    return s.memo("alone", run)(layer, s.tokens[:, part], s.positions[:, :ALONE])


def packing(s: Subject) -> Problems:
    out = s.run(s.at(restarted(DOCUMENTS)), packed(DOCUMENTS))
    for row, segments in enumerate(DOCUMENTS):
        for document in range(1, segments.max() + 1):
            at = segments == document
            if at.sum() == ALONE:
                apart = alone(s, int(np.argmax(at)))[row]
                yield from differences(f"row {row}, document {document}", out[row, at], apart, 1e-4)
    nowhere = np.abs(out[DOCUMENTS == 0]).max()
    if nowhere != 0:
        yield f"padding, which attends to nothing, has outputs up to {nowhere:.2g} instead of 0"


def padding(s: Subject) -> Problems:
    for side, first in (("right", 0), ("left", LENGTH - ALONE)):
        index = np.arange(LENGTH) - first
        valid = (index >= 0) & (index < ALONE)
        positions = s.at(np.tile(np.where(valid, index, 0), (ROWS, 1)))
        mask = np.broadcast_to(valid, s.everything.shape)
        to = s.to * valid[:, None, None]
        found = s.naive(s.layer, s.tokens, positions, mask, to)
        yield from differences(f"{side} padding", found.out[:, valid], alone(s, first), 1e-4)
        stray = np.abs(found.grads.x[:, ~valid]).max()
        if not stray < 1e-4:
            yield f"{side} padding: a gradient of {stray:.2g} flows to padding"


def decoding(s: Subject) -> Problems:
    if not all(part.about and part.about.cacheable for part in s.encoding.parts):
        raise NotApplicable("About does not say that keys stay right when the sequence grows")
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))

    @jax.jit
    def step(cache: tuple[Array, Array, Array], t: Array) -> tuple[tuple, Array]:
        """The token at index t against a cache that is still empty after it."""
        now = lambda x, axis=1: jax.lax.dynamic_slice_in_dim(x, t, 1, axis)
        layer = s.taken(now)
        at = now(jnp.asarray(s.positions[0]), axis=0)
        x = hidden(s.encoding, layer, now(s.tokens), at)
        q, k, v = projected(layer, x)
        put = lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, t, 1)
        x_k, k, v = (put(old, new) for old, new in zip(cache, (x, k, v)))
        context = described(layer, x, x_k, at, s.positions[0])
        mask = (jnp.arange(LENGTH) <= t)[None, None, None]
        return (x_k, k, v), attention(q, k, v, s.encoding, layer.params, context, mask=mask)

    empty = np.zeros_like
    cache = empty(s.layer.x), empty(s.layer.k), empty(s.layer.v)
    out = []
    for t in range(LENGTH):
        cache, one = step(cache, jnp.asarray(t))
        out.append(one)
    expected = s.run(mask=np.broadcast_to(causal, s.everything.shape))
    yield from differences("token by token", np.concatenate(out, axis=1), expected, 1e-4)


# --- positions ------------------------------------------------------------------------------------


def shift(s: Subject) -> Problems:
    """Of all positions by 2^17, on both sides of a multiple of 4,096, where sums of angles could
    break; or by as many as there are."""
    if any(part.about is None for part in s.encoding.parts):
        raise NotApplicable("the encoding has no About")
    by = 2**17 - LENGTH // 2
    if s.encoding.longest is not None:
        by = min(by, s.encoding.longest - LENGTH)
    if by < 1:
        raise NotApplicable(f"there are {s.encoding.longest} positions only")
    claimed = all(part.about.invariant for part in s.encoding.parts if part.about)
    here, there = s.run(), s.run(s.positions + by)
    if not claimed:
        apart = np.abs(here - there).max()
        if not apart > 1e-3:
            yield f"About.invariant is False, but a shift by {by} moves outputs by {apart:.2g} only"
        return
    yield from differences(f"shifted by {by}", there, here, 1e-3)
    low = s.memo("bfloat16", functools.partial(apply, s.encoding))
    here, there = (low(half(s.layer), s.tokens, p) for p in (s.positions, s.positions + by))
    yield from differences(f"bfloat16, shifted by {by}", there, here, 0.01)
    if s.encoding.axes == 1:
        far = range(by, by + LENGTH)
        found = jax.jit(lambda layer: apply(s.encoding, layer, s.tokens, far))(s.layer)
        yield from differences(f"range from {by}", found, s.run(), 1e-3)


def permutation(s: Subject) -> Problems:
    order = np.random.default_rng(1).permutation(LENGTH)
    moved, tokens = s.taken(lambda x: x[:, order]), s.tokens[:, order]
    expected = s.run()[:, order]
    run = lambda positions: s.naive(moved, tokens, positions, s.everything, s.to).out
    found = run(s.positions[:, order])
    yield from differences("tokens permuted with their positions", found, expected, 1e-4)
    if not s.encoding.parts:
        yield from differences("tokens permuted", run(s.positions), expected, 1e-4)


def limit(s: Subject) -> Problems:
    longest = s.encoding.longest
    if longest is None:
        out = s.run(s.positions + 2**20)
        if not np.isfinite(out).all():
            yield "there is no limit (longest is None), but position 2^20 gives NaN"
        return
    run = lambda layer, positions: apply(s.encoding, layer, s.tokens, positions, form="naive")
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
    if any(part.resize for part in s.encoding.parts):
        params = s.encoding.resize(s.layer.params, longest + LENGTH, "interpolate")
        out = run(s.layer._replace(params=params), s.positions + longest)
        if not np.isfinite(out).all():
            yield f"position {longest} is NaN after a resize to {longest + LENGTH}"


# --- transformations of JAX -----------------------------------------------------------------------


def half(layer: Layer, dtype: Any = jnp.bfloat16) -> Layer:
    """Everything but the encoding's parameters in a lower precision, as a model has it."""
    low = jax.tree.map(lambda x: jnp.asarray(x, dtype), layer._replace(params={}))
    return low._replace(params=layer.params)


def precision(s: Subject) -> Problems:
    longest = s.encoding.longest
    positions = s.positions + (1000 if longest is None else longest - LENGTH)
    expected = s.run(positions)
    low = s.memo("bfloat16", functools.partial(apply, s.encoding))
    for dtype, tolerance in ((jnp.float16, 0.01), (jnp.bfloat16, 0.05)):
        found = low(half(s.layer, dtype), s.tokens, positions)
        name = jnp.dtype(dtype).name
        if found.dtype != dtype:
            yield f"{name} in, {found.dtype} out"
        yield from differences(name, found, expected, tolerance)


def jit(s: Subject) -> Problems:
    positions = range(LENGTH) if s.encoding.axes == 1 else s.positions[0]
    out = apply(s.encoding, s.layer, jnp.asarray(s.tokens), positions)
    yield from differences("without jit", out, s.run(), 1e-4)


def vmap(s: Subject) -> Problems:
    layers = [s.layer, s.draw(1)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *layers)
    one = functools.partial(result, s.encoding, form="auto")
    run = jax.jit(jax.vmap(one, (0, None, None, None, None)))
    found = run(stacked, s.tokens, s.positions, s.everything, s.to)
    for i, layer in enumerate(layers):
        expected = s.naive(layer, s.tokens, s.positions, s.everything, s.to)
        pick = jax.tree.map(lambda x: x[i], found)  # noqa: B023
        yield from differences(f"model {i}: ", pick._asdict(), expected._asdict(), 1e-4)


def scan(s: Subject) -> Problems:
    layers = [s.layer, s.draw(1)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *layers)
    flat = s.layer.x.shape

    @jax.checkpoint
    def body(x: Array, layer: Layer) -> tuple[Array, None]:
        out = apply(s.encoding, layer._replace(x=x), s.tokens, s.positions, s.everything)
        return out.reshape(flat), None

    def loss(layers: Layer) -> tuple[Array, Array]:
        x, _ = jax.lax.scan(body, s.layer.x, layers)
        return (x * s.to.reshape(flat)).sum(), x

    grads, out = jax.jit(jax.grad(loss, has_aux=True))(stacked)
    # The same, layer after layer and back by the program of a single one.
    naive = lambda layer, to: s.naive(layer, s.tokens, s.positions, s.everything, to)
    first: Result = naive(layers[0], s.to)
    second = naive(layers[1]._replace(x=np.asarray(first.out).reshape(flat)), s.to)
    first = naive(layers[0], np.asarray(second.grads.x).reshape(s.to.shape))
    yield from differences("out", out, second.out.reshape(flat), 1e-4)
    for i, expected in enumerate((first.grads, second.grads)):
        own = jax.tree.map(lambda x: x[i], grads)._replace(x=expected.x)  # noqa: B023
        yield from differences(f"layer {i}: gradient of ", own, expected, 2e-4)


def derivatives(s: Subject) -> Problems:
    def loss(layer: Layer) -> Array:
        out = apply(s.encoding, layer, s.tokens, s.positions, s.everything, form="naive")
        return (out * s.to).sum()

    def tangent(seed: int) -> Layer:
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), s.layer)

    @jax.jit
    def run(along: Layer) -> tuple[Array, Layer]:
        """The slope along a tangent by forward mode alone, and the Hessian times it."""
        push = lambda function: jax.jvp(function, (s.layer,), (along,))[1]
        return push(loss), push(jax.grad(loss))

    dot = lambda a, b: float(sum(map(np.vdot, jax.tree.leaves(a), jax.tree.leaves(b))))
    size = lambda a: np.sqrt(dot(a, a))
    u, w = tangent(1), tangent(2)
    (slope, of_u), (_, of_w) = run(u), run(w)
    grads = s.naive(s.layer, s.tokens, s.positions, s.everything, s.to).grads
    along = dot(grads, u)
    if not abs(slope - along) <= 1e-4 * size(grads) * size(u):
        yield f"forward mode: a slope of {slope:.6g}, reverse mode: {along:.6g}"
    one, other = dot(w, of_u), dot(u, of_w)
    if not abs(one - other) <= 1e-4 * size(w) * size(of_u):
        yield f"the Hessian is not symmetric: {one:.6g} and {other:.6g}"


def draws(s: Subject) -> Problems:
    run = lambda key: apply(s.encoding, s.layer, s.tokens, s.positions, key=key)
    traced = jax.make_jaxpr(run)(jax.random.key(0)).jaxpr
    if not any(used is traced.invars[0] for eqn in traced.eqns for used in eqn.invars):
        raise NotApplicable("nothing is drawn while training")
    compiled = jax.jit(run)
    one, again, other = (np.asarray(compiled(jax.random.key(n))) for n in (0, 0, 1))
    if not np.isfinite(one).all():
        yield "outputs are not finite"
    if not np.array_equal(one, again):
        yield "one key gives two outputs"
    if np.array_equal(one, other):
        yield "two keys give one output"


# --- what it says of itself -----------------------------------------------------------------------


def parameters(s: Subject) -> Problems:
    params = s.init(0)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    if count != parameter_count(s.encoding):
        yield f"init made {count} parameters, its shapes say {parameter_count(s.encoding)}"
    parts = {part.key: part for part in s.encoding.parts}
    if strange := [key for key, own in params.items() if key not in parts or type(own) is not dict]:
        yield f"parameters are nested by name, {sorted(parts)}; {strange} are not"
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            yield f"{jax.tree_util.keystr(path)} is {leaf.dtype}, not float32"
    for key, part in parts.items():
        own = params.get(key, {})
        yield from _described(part, sum(leaf.size for leaf in jax.tree.leaves(own)))
        leaves = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(own)}
        if strange := sorted(set(part.frequency_leaves) - leaves):
            yield f"frequency_leaves has {strange}; the parameters are {sorted(leaves)}"


def _described(part: Part, count: int) -> Problems:
    if part.about and part.about.count != count:
        yield f"{part.key} has {count} parameters, About.count is {part.about.count}"


def name(s: Subject) -> Problems:
    known = {*ENCODINGS, *WRAPPERS, "none"}
    if not all(part.name.partition("(")[0] in known for part in s.encoding.parts):
        raise NotApplicable("not registered in pe_jax.encodings.names")
    again = stack_from_name(s.name, s.sizes).common
    if again.name != s.name:
        yield f"the name parses to {again.name!r}"
    shapes = lambda one: jax.tree.map(jnp.shape, jax.eval_shape(one.init, jax.random.key(0)))
    if shapes(again) != shapes(s.encoding):
        yield f"what the name parses to has parameters {shapes(again)}, not {shapes(s.encoding)}"


CHECKS: Mapping[str, Check] = {
    "formula": Check("outputs and gradients equal the float64 formula, pair by pair", formula),
    "forms": Check("every form of attention has the outputs and gradients of the naive", forms),
    "packing": Check("documents in a row, positions reset, give what each gives alone", packing),
    "padding": Check("padding on either side changes nothing", padding),
    "decoding": Check("token by token with a cache gives what a causal mask gives", decoding),
    "shift": Check("a shift of all positions moves outputs exactly if About says so", shift),
    "permutation": Check("the order of tokens in memory does not matter", permutation),
    "limit": Check("a position past a limit is an error, and NaN where traced", limit),
    "precision": Check("float16 and bfloat16 keep their dtype and stay near float32", precision),
    "jit": Check("the same without jit", jit),
    "vmap": Check("the same under vmap over everything that is learned", vmap),
    "scan": Check("the same under scan over layers with jax.checkpoint", scan),
    "derivatives": Check("forward mode equals reverse mode, the Hessian is symmetric", derivatives),
    "draws": Check("what is drawn while training depends on the key alone", draws),
    "parameters": Check("parameters are nested by name, and as many as About says", parameters),
    "name": Check("the name parses back to the encoding", name),
}
