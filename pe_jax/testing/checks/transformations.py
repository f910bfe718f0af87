"""Low precision, and the transformations of JAX."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.shapes import Array
from pe_jax.testing.checks.check import NotApplicable, Problems, check, differences
from pe_jax.testing.subject import LENGTH, Layer, Result, Subject, apply, half, result


@check("float16 and bfloat16 keep their dtype and stay near float32")
def precision(s: Subject) -> Problems:
    longest = s.encoding.longest
    positions = s.positions + (1000 if longest is None else longest - LENGTH)
    expected = s.run(positions)
    low = s.memo("bfloat16", functools.partial(apply, s.encoding))
    for dtype, tolerance in ((jnp.float16, 0.01), (jnp.bfloat16, 0.05)):
        values = low(half(s.layer, dtype), s.tokens, positions)
        name = jnp.dtype(dtype).name
        if values.dtype != dtype:
            yield f"{name} in, {values.dtype} out"
        yield from differences(name, values, expected, tolerance)


@check("the same without jit")
def jit(s: Subject) -> Problems:
    positions = range(LENGTH) if s.encoding.axes == 1 else s.positions[0]
    out = apply(s.encoding, s.layer, jnp.asarray(s.tokens), positions)
    yield from differences("without jit", out, s.run(), 1e-4)


@check("the same under vmap over everything that is learned")
def vmap(s: Subject) -> Problems:
    layers = [s.layer, s.draw(1)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *layers)
    model = functools.partial(result, s.encoding, form="auto")
    run = jax.jit(jax.vmap(model, (0, None, None, None, None)))
    values = run(stacked, s.tokens, s.positions, s.everything, s.to)
    for i, layer in enumerate(layers):
        expected = s.naive(layer, s.tokens, s.positions, s.everything, s.to)
        pick = jax.tree.map(lambda x: x[i], values)  # noqa: B023
        yield from differences(f"model {i}: ", pick._asdict(), expected._asdict(), 1e-4)


@check("the same under scan over layers with jax.checkpoint")
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
        layer_grads = jax.tree.map(lambda x: x[i], grads)._replace(x=expected.x)  # noqa: B023
        yield from differences(f"layer {i}: gradient of ", layer_grads, expected, 2e-4)


@check("forward mode equals reverse mode, the Hessian is symmetric")
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

    def dot(a: Layer, b: Layer) -> float:
        return float(sum(map(np.vdot, jax.tree.leaves(a), jax.tree.leaves(b))))

    def size(a: Layer) -> float:
        return np.sqrt(dot(a, a))

    u, w = tangent(1), tangent(2)
    (slope, of_u), (_, of_w) = run(u), run(w)
    grads = s.naive(s.layer, s.tokens, s.positions, s.everything, s.to).grads
    along = dot(grads, u)
    if not abs(slope - along) <= 1e-4 * size(grads) * size(u):
        yield f"forward mode: a slope of {slope:.6g}, reverse mode: {along:.6g}"
    of_w_u, of_u_w = dot(w, of_u), dot(u, of_w)
    if not abs(of_w_u - of_u_w) <= 1e-4 * size(w) * size(of_u):
        yield f"the Hessian is not symmetric: {of_w_u:.6g} and {of_u_w:.6g}"


@check("what is drawn while training depends on the rng alone")
def draws(s: Subject) -> Problems:
    def run(rng: jax.Array) -> Array:
        return apply(s.encoding, s.layer, s.tokens, s.positions, rng=rng)

    traced = jax.make_jaxpr(run)(jax.random.key(0)).jaxpr
    if not any(used is traced.invars[0] for eqn in traced.eqns for used in eqn.invars):
        raise NotApplicable("nothing is drawn while training")
    compiled = jax.jit(run)
    first, again, other = (np.asarray(compiled(jax.random.key(n))) for n in (0, 0, 1))
    if not np.isfinite(first).all():
        yield "outputs are not finite"
    if not np.array_equal(first, again):
        yield "one rng gives two outputs"
    if np.array_equal(first, other):
        yield "two rngs give one output"
