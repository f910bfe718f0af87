"""Requirements of every encoding, check by check, in the order of the table."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import Cache, cached_attention, init_cache
from pe_jax.attention.implementations import UnsupportedError
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings import ENCODINGS, WRAPPERS, causal, from_name, parameter_count
from pe_jax.testing.problems import (
    Checks,
    NotApplicable,
    Problems,
    add_check,
    differences,
    result_differences,
)
from pe_jax.testing.rows import ALONE, DOCUMENTS, document_differences, packed, padded
from pe_jax.testing.subject import (
    LENGTH,
    ROWS,
    Layer,
    Mask,
    Subject,
    apply,
    half,
    projected,
)

CHECKS: Checks = {}
check = functools.partial(add_check, CHECKS)

# --- numbers ---


def two_layouts(s: Subject) -> dict[str, tuple[Array, Mask]]:
    """Positions and masks: consecutive positions, and any at all, of each row its own, in order if
    the encoding needs that; keys masked at random, a query that attends to nothing."""
    rng = np.random.default_rng(3)
    rows = [rng.permutation(s.sizes["max_length"])[:LENGTH] for _ in range(ROWS)]
    index = np.stack(rows)
    if s.ordered:
        index = np.sort(index)
    mask = rng.random(s.everything.shape) < 0.7
    mask[0, :, 2] = False
    return {
        "consecutive positions": (s.positions, mask),
        "any positions": (s.at(index), mask),
    }


@check
def formula(s: Subject) -> Problems:
    """Outputs and gradients equal the float64 formula, pair by pair."""
    if s.reference is None:
        raise NotApplicable("no reference was given")
    for name, (positions, mask) in two_layouts(s).items():
        values = s.result(positions, mask)
        expected = s.formula(s.layer, s.tokens, positions, mask, s.to)
        yield from result_differences(name, values, expected, 2e-5, of_grads=2e-4)


@check
def implementations(s: Subject) -> Problems:
    """Every implementation of attention has the outputs and gradients of the naive."""
    offsets = [part.offsets for part in s.encoding.parts if part.offsets]
    has_terms = any(terms.has_terms for terms in offsets)
    positions, mask = two_layouts(s)["any positions"]
    consecutive = range(LENGTH) if s.encoding.axes == 1 else s.positions[0]
    expected = s.result(mask=mask)
    for name in ("fused", "table") if has_terms else ("fused",):
        run = s.compiled(name, positions=consecutive)
        try:
            values = run(s.layer, s.tokens, mask=mask, to=s.to)
        except UnsupportedError:
            continue
        yield from result_differences(name, values, expected, 1e-4)
    if has_terms:
        is_clipped = any(terms.max_distance for terms in offsets)
        run = s.compiled("table" if is_clipped else "fused")
        try:
            values = run(s.layer, s.tokens, positions, mask, s.to)
        except UnsupportedError:
            return
        expected = s.result(positions, mask)
        yield from result_differences("any positions", values, expected, 1e-4)


# --- documents in rows, padding, tokens that come one at a time ---


def alone(s: Subject, first: int) -> Float[Array, "B l H d"]:
    """Outputs of `ALONE` tokens of the subject from `first` on, with nothing around them."""
    part = slice(first, first + ALONE)
    layer = s.taken(lambda x: x[:, part])
    return s.outputs(layer, s.tokens[:, part], s.positions[:, :ALONE])


@check
def packing(s: Subject) -> Problems:
    """Documents in a row, positions reset, give what each gives alone."""
    positions, mask = packed()
    out = s.run(s.at(positions), mask)
    yield from document_differences(out, functools.partial(alone, s))
    nowhere = np.abs(out[DOCUMENTS == 0]).max()
    if nowhere != 0:
        yield f"padding, which attends to nothing, has outputs up to {nowhere:.2g} instead of 0"


@check
def padding(s: Subject) -> Problems:
    """Padding on either side changes nothing."""
    for side, first in (("right", 0), ("left", LENGTH - ALONE)):
        valid, kinds = padded(first)
        mask = np.broadcast_to(valid, s.everything.shape)
        to = s.to * valid[:, None, None]
        for kind, positions in kinds.items():
            if kind != "at 0" and s.encoding.max_length is not None:
                continue  # A table has no rows for them.
            name = f"{side} padding {kind}"
            out, grads = s.result(s.at(positions), mask, to=to)
            yield from differences(name, out[:, valid], alone(s, first), 1e-4)
            stray = np.abs(grads.x[:, ~valid]).max()
            if not stray < 1e-4:
                yield f"{name}: a gradient of {stray:.2g} flows to padding"
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads)):
                yield f"{name}: gradients are not finite"


@check
def decoding(s: Subject) -> Problems:
    """Decoding token by token with a cache equals the full pass with a causal mask."""
    if not all(part.traits.cacheable for part in s.encoding.parts):
        raise NotApplicable("keys change when the sequence grows (Traits.cacheable)")
    in_attention = s.encoding.in_attention
    if in_attention.axes == 1 and not in_attention.is_causal:
        in_attention = in_attention + causal()
    cache = init_cache(
        in_attention,
        ROWS,
        LENGTH,
        num_kv_heads=s.heads,
        head_size=s.head_size,
        hidden_size=s.width,
    )

    @jax.jit
    def step(cache: Cache, t: Array) -> tuple[Array, Cache]:
        """The token at index t."""

        def slice_of(x: Array, axis: int = 1) -> Array:
            return jax.lax.dynamic_slice_in_dim(x, t, 1, axis)

        layer = s.taken(slice_of)
        position = slice_of(jnp.asarray(s.positions[0]), axis=0)
        token = slice_of(s.tokens)
        _, (q, k, v), context = projected(s.encoding, layer, token, position)
        # Positions of several axes are those of the input alone.
        if not s.encoding.in_attention.parts:
            context = context.replace(positions_q=None)
        return cached_attention(q, k, v, cache, in_attention, layer.params, context)

    outputs = []
    for t in range(LENGTH):
        out, cache = step(cache, jnp.asarray(t))
        outputs.append(out)
    values = np.concatenate(outputs, axis=1)
    earlier = np.tril(np.ones((LENGTH, LENGTH), bool))
    expected = s.run(mask=np.broadcast_to(earlier, s.everything.shape))
    yield from differences("token by token", values, expected, 1e-4)


# --- positions ---


@check
def shift(s: Subject) -> Problems:
    """A shift of all positions moves outputs exactly if its metadata says so."""
    if any(part.metadata is None for part in s.encoding.parts):
        raise NotApplicable("the encoding has no metadata")
    # Both sides of a power of 2, where digits of positions change; further than floats are exact,
    # unless positions are scaled. No multiple of 3, by which chunks of 3 keys would not change.
    scaled = any(part.positions for part in s.encoding.parts) or s.encoding.axes > 1
    by = (2**17 if scaled else 2**28 - 1) - LENGTH // 2
    if s.encoding.max_length is not None:
        by = min(by, s.encoding.max_length - LENGTH)
    if by < 1:
        raise NotApplicable(f"the encoding has only {s.encoding.max_length} positions")
    claimed = all(part.metadata.invariant for part in s.encoding.parts if part.metadata)
    outputs = s.run()
    shifted = s.run(s.positions + by)
    if not claimed:
        moved = np.abs(outputs - shifted).max()
        if not moved > 1e-3:
            yield (
                f"Metadata.invariant is False, but a shift by {by} moves outputs by {moved:.2g} "
                "only"
            )
        return
    yield from differences(f"shifted by {by}", shifted, outputs, 1e-3)
    low = half(s.layer)
    low_outputs = s.outputs(low, s.tokens, s.positions)
    low_shifted = s.outputs(low, s.tokens, s.positions + by)
    yield from differences(f"bfloat16, shifted by {by}", low_shifted, low_outputs, 0.03)
    if s.encoding.axes == 1:
        far = range(by, by + LENGTH)
        values = jax.jit(lambda layer: apply(s.encoding, layer, s.tokens, far))(s.layer)
        yield from differences(f"range from {by}", values, outputs, 1e-3)


@check
def permutation(s: Subject) -> Problems:
    """The order of tokens in memory does not matter; with `Traits.ordered` others give NaN."""
    order = np.random.default_rng(1).permutation(LENGTH)
    layer = s.taken(lambda x: x[:, order])
    tokens = s.tokens[:, order]
    expected = s.run()[:, order]
    cases = {"tokens permuted with their positions": s.positions[:, order]}
    if not s.encoding.parts:
        cases["tokens permuted"] = s.positions
    for name, positions in cases.items():
        out, _ = s.naive(layer, tokens, positions, s.everything, s.to)
        if not s.ordered:
            yield from differences(name, out, expected, 1e-4)
        elif np.isfinite(out).any():
            yield f"{name}: outputs are finite"


@check
def limit(s: Subject) -> Problems:
    """A position past a limit is an error, and NaN where traced."""
    longest = s.encoding.max_length
    if longest is None:
        out = s.run(s.positions + 2**20)
        if not np.isfinite(out).all():
            yield "there is no limit (max_length is None), but position 2^20 gives NaN"
        return

    def run(layer: Layer, positions: Array) -> Array:
        return apply(s.encoding, layer, s.tokens, positions, implementation="naive")

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


# --- low precision, and the transformations of JAX ---


@check
def precision(s: Subject) -> Problems:
    """Float16 and bfloat16 keep their dtype and stay near float32."""
    longest = s.encoding.max_length
    positions = s.positions + (1000 if longest is None else longest - LENGTH)
    expected = s.run(positions)
    for dtype, tolerance in ((jnp.float16, 0.01), (jnp.bfloat16, 0.05)):
        values = s.outputs(half(s.layer, dtype), s.tokens, positions)
        name = jnp.dtype(dtype).name
        if values.dtype != dtype:
            yield f"{name} in, {values.dtype} out"
        yield from differences(name, values, expected, tolerance)


@check
def jit(s: Subject) -> Problems:
    """The same without jit."""
    positions = range(LENGTH) if s.encoding.axes == 1 else s.positions[0]
    out = apply(s.encoding, s.layer, jnp.asarray(s.tokens), positions)
    yield from differences("without jit", out, s.run(), 1e-4)


@check
def vmap(s: Subject) -> Problems:
    """The same under vmap over everything that is learned."""
    layers, stacked = s.two_layers()
    run = jax.jit(jax.vmap(s.compiled("auto"), (0, None, None, None, None)))
    values = run(stacked, s.tokens, s.positions, s.everything, s.to)
    for i, layer in enumerate(layers):
        expected = s.result(layer=layer)
        pick = jax.tree.map(lambda x: x[i], values)  # noqa: B023
        yield from result_differences(f"model {i}", pick, expected, 1e-4)


@check
def scan(s: Subject) -> Problems:
    """The same under scan over layers with jax.checkpoint."""
    layers, stacked = s.two_layers()
    flat = s.layer.x.shape

    @jax.checkpoint
    def body(x: Array, layer: Layer) -> tuple[Array, None]:
        out = apply(
            s.encoding, layer._replace(x=x), s.tokens, s.positions, s.everything
        )
        return out.reshape(flat), None

    def loss(layers: Layer) -> tuple[Array, Array]:
        x, _ = jax.lax.scan(body, s.layer.x, layers)
        return (x * s.to.reshape(flat)).sum(), x

    grads, out = jax.jit(jax.grad(loss, has_aux=True))(stacked)
    # The same, layer after layer and back by the program of a single one.
    first, second = layers
    between = np.asarray(s.result(layer=first).out).reshape(flat)
    last, second_grads = s.result(layer=second._replace(x=between))
    to_first = np.asarray(second_grads.x).reshape(s.to.shape)
    first_grads = s.result(layer=first, to=to_first).grads
    yield from differences("out", out, last.reshape(flat), 1e-4)
    for i, expected in enumerate((first_grads, second_grads)):
        layer_grads = jax.tree.map(lambda x: x[i], grads)._replace(x=expected.x)  # noqa: B023
        yield from differences(f"layer {i}: gradient of ", layer_grads, expected, 2e-4)


@check
def derivatives(s: Subject) -> Problems:
    """Forward mode equals reverse mode, the Hessian is symmetric."""

    def loss(layer: Layer) -> Array:
        out = apply(
            s.encoding,
            layer,
            s.tokens,
            s.positions,
            s.everything,
            implementation="naive",
        )
        return (out * s.to).sum()

    def tangent(seed: int) -> Layer:
        rng = np.random.default_rng(seed)

        def normal(leaf: Array) -> Array:
            return rng.normal(size=leaf.shape).astype(np.float32)

        return jax.tree.map(normal, s.layer)

    @jax.jit
    def run(along: Layer) -> tuple[Array, Layer]:
        """The slope along a tangent by forward mode alone, and the Hessian times it."""
        _, slope = jax.jvp(loss, (s.layer,), (along,))
        _, product = jax.jvp(jax.grad(loss), (s.layer,), (along,))
        return slope, product

    def dot(a: Layer, b: Layer) -> float:
        return float(sum(map(np.vdot, jax.tree.leaves(a), jax.tree.leaves(b))))

    def size(a: Layer) -> float:
        return np.sqrt(dot(a, a))

    u = tangent(1)
    w = tangent(2)
    slope, of_u = run(u)
    _, of_w = run(w)
    grads = s.result().grads
    along = dot(grads, u)
    if not abs(slope - along) <= 1e-4 * size(grads) * size(u):
        yield f"forward mode: a slope of {slope:.6g}, reverse mode: {along:.6g}"
    of_w_u = dot(w, of_u)
    of_u_w = dot(u, of_w)
    if not abs(of_w_u - of_u_w) <= 1e-4 * size(w) * size(of_u):
        yield f"the Hessian is not symmetric: {of_w_u:.6g} and {of_u_w:.6g}"


@check
def draws(s: Subject) -> Problems:
    """Draws of training depend on the rng alone."""

    def run(rng: jax.Array) -> Array:
        return apply(s.encoding, s.layer, s.tokens, s.positions, rng=rng)

    traced = jax.make_jaxpr(run)(jax.random.key(0)).jaxpr
    if not any(used is traced.invars[0] for eqn in traced.eqns for used in eqn.invars):
        raise NotApplicable("training draws no random numbers")
    compiled = jax.jit(run)
    first = np.asarray(compiled(jax.random.key(0)))
    again = np.asarray(compiled(jax.random.key(0)))
    other = np.asarray(compiled(jax.random.key(1)))
    if not np.isfinite(first).all():
        yield "outputs are not finite"
    if not np.array_equal(first, again):
        yield "one rng gives two outputs"
    if np.array_equal(first, other):
        yield "two rngs give one output"


# --- description ---


@check
def parameters(s: Subject) -> Problems:
    """Parameters are nested by name, float32, and as many as `parameter_count` says."""
    params = s.init(0)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    if count != parameter_count(s.encoding):
        yield f"init made {count} parameters, its shapes say {parameter_count(s.encoding)}"
    parts = {part.key: part for part in s.encoding.parts}
    strange = [
        k for k, values in params.items() if k not in parts or type(values) is not dict
    ]
    if strange:
        yield f"parameters are nested by name, {sorted(parts)}; {strange} are not"
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            yield f"{jax.tree_util.keystr(path)} is {leaf.dtype}, not float32"
    for key, part in parts.items():
        paths = jax.tree_util.tree_leaves_with_path(params.get(key))
        leaves = {path[-1].key for path, _ in paths}
        strange = sorted(set(part.traits.frequency_params) - leaves)
        if strange:
            yield f"frequency_params has {strange}; the parameters are {sorted(leaves)}"


@check
def name(s: Subject) -> Problems:
    """The name parses back to the encoding."""
    registered = {*ENCODINGS, *WRAPPERS}
    if not all(part.name.partition("(")[0] in registered for part in s.encoding.parts):
        raise NotApplicable("not registered with pe_jax.encodings.register_encoding")
    again = from_name(s.name, **s.sizes)
    if again.name != s.name:
        yield f"the name parses to {again.name!r}"
    shapes = jax.eval_shape(again.init, jax.random.key(0))
    expected = jax.eval_shape(s.encoding.init, jax.random.key(0))
    if shapes != expected:
        yield f"what the name parses to has parameters {shapes}, not {expected}"
