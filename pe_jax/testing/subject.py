"""An encoding under test: arrays to run it on, and the programs that the checks share.

Compiling is nearly all that a check costs. `naive` is one program for any positions and masks of
the subject's length, and most checks only run it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.attention import attention, forms
from pe_jax.encodings import Context, Params, PositionEncoding, Positions, embed
from pe_jax.shapes import Array, Bool, Float, Int
from pe_jax.testing.reference import Layer, Reference, attend

# Small enough to compile fast; D = H·d, so that layers follow one another.
Sizes = Mapping[str, int]
SIZES: Sizes = {"hidden_size": 8, "head_size": 4, "num_heads": 2, "max_length": 16}
LENGTH, ROWS = 8, 2
# Three queries at a time: several blocks, the last one short.
BLOCKS = forms.FORMS["fused"]._replace(block=3)

Mask = Bool[Array, "B 1 L L"]


class Result(NamedTuple):
    """What a layer gives: `out` [B, L, H, d], and the gradients of <out, to>."""

    out: Array
    grads: Layer


class Subject:
    """An encoding, with random arrays for it.

    Attributes:
      encoding, sizes: what is tested, and the sizes that it was built for.
      reference: its formula, if there is one.
      layer: random float32 arrays; parameters are `init`'s, moved away from where they start.
      tokens: ids `[B, L]`.
      to: `[B, L, H, d]`, the cotangent of the output.

    Raises:
      ValueError: for sizes where hidden_size is not num_heads · head_size, or max_length < 8.
    """

    def __init__(
        self, encoding: PositionEncoding, reference: Reference | None = None, sizes: Sizes = SIZES
    ):
        self.width, self.head_size, self.heads, longest = (sizes[name] for name in SIZES)
        if self.width != self.heads * self.head_size or longest < LENGTH:
            raise ValueError(
                f"The suite needs hidden_size = num_heads * head_size and max_length >= {LENGTH}, "
                f"got {sizes}."
            )
        self.encoding, self.reference, self.sizes = encoding, reference, sizes
        self._programs: dict[str, Callable[..., Any]] = {}
        self.layer = self.draw(0)
        generator = np.random.default_rng(9)
        self.tokens = generator.integers(0, 8, (ROWS, LENGTH))
        self.to = generator.normal(size=(ROWS, LENGTH, self.heads, self.head_size)).astype(
            np.float32
        )

    def draw(self, seed: int) -> Layer:
        """Arrays of a layer; `q`, `k` and `v` are large enough for weights that differ."""
        width, size, heads = self.width, self.head_size, self.heads
        rng = np.random.default_rng(seed)

        def normal(scale: float, *shape: int) -> Array:
            return (scale * rng.normal(size=shape)).astype(np.float32)

        q, k, v = (normal(0.7, ROWS, LENGTH, heads, size) for _ in range(3))
        w_q, w_k, w_v = (normal(width**-0.5, width, heads, size) for _ in range(3))

        def away(leaf: Array) -> Array:
            """Zeros, and what is equal for all heads, would hide mistakes."""
            leaf = np.asarray(leaf)
            scale = np.sqrt(np.mean(leaf**2)) or 1.0
            near = np.where(leaf == 0, scale, np.abs(leaf))
            return (leaf + 0.3 * near * rng.normal(size=leaf.shape)).astype(leaf.dtype)

        params = jax.tree.map(away, self.init(seed))
        return Layer(normal(1.0, ROWS, LENGTH, width), q, k, v, w_q, w_k, w_v, params)

    def init(self, seed: int) -> Params:
        """What the encoding's `init` makes."""
        return self.memo("init", self.encoding.init)(jax.random.key(seed))

    @property
    def name(self) -> str:
        return self.encoding.name

    def at(self, index: Int[Array, "*B"]) -> Int[Array, "..."]:
        """Positions of tokens at these indices of a sequence; a grid for more axes than one."""
        axes = self.encoding.axes
        if axes == 1:
            return np.asarray(index)
        side = 3
        return np.stack([index // side**axis % side for axis in range(axes)], axis=-1)

    @functools.cached_property
    def positions(self) -> Int[Array, "B L *A"]:
        """Of each row from 0."""
        return self.at(np.tile(np.arange(LENGTH), (ROWS, 1)))

    @functools.cached_property
    def everything(self) -> Mask:
        """The mask that allows every key."""
        return np.ones((ROWS, 1, LENGTH, LENGTH), bool)

    @functools.cached_property
    def naive(self) -> Callable[..., Result]:
        """`(layer, tokens, positions [B, L], mask, to) -> Result`, as the formula stands."""
        return jax.jit(functools.partial(result, self.encoding, form="naive"))

    def run(self, positions: Positions | None = None, mask: Mask | None = None) -> Array:
        """Outputs of the naive form."""
        positions = self.positions if positions is None else positions
        mask = self.everything if mask is None else mask
        return self.naive(self.layer, self.tokens, positions, mask, self.to).out

    def taken(self, some: Callable[[Array], Array]) -> Layer:
        """The layer with some of its tokens."""
        x, q, k, v = map(some, (self.layer.x, self.layer.q, self.layer.k, self.layer.v))
        return self.layer._replace(x=x, q=q, k=k, v=v)

    def memo(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` compiled, once for all checks that share it by this name."""
        return self._programs.setdefault(name, jax.jit(function))

    def compiled(self, form: str | forms.Form, positions: Positions) -> Callable[..., Result]:
        """`(layer, tokens, mask, to) -> Result` in a form, at positions known while compiling."""
        call = lambda layer, tokens, mask, to: result(
            self.encoding, layer, tokens, positions, mask, to, form=form
        )
        return jax.jit(call)

    @functools.cached_property
    def formula(self) -> Callable[..., Result]:
        """`naive` by the reference, in float64."""
        assert self.reference is not None
        reference, parts = self.reference, self.encoding.parts

        def loss(layer, tokens, positions, mask, to):
            params = layer.params.get(parts[0].key, {}) if len(parts) == 1 else layer.params
            layer = layer._replace(params=params)
            out = attend(reference, layer, tokens, positions, mask)
            return (out * to).sum(), out

        run = jax.jit(jax.grad(loss, has_aux=True))

        def precise(layer, tokens, positions, mask, to):
            with jax.enable_x64(True):
                layer, positions, to = jax.tree.map(
                    lambda x: jnp.asarray(np.asarray(x), jnp.float64), (layer, positions, to)
                )
                grads, out = run(layer, tokens, positions, mask, to)
                return Result(*jax.tree.map(np.asarray, (out, grads)))

        return precise


def result(
    encoding: PositionEncoding,
    layer: Layer,
    tokens: Int[Array, "B L"],
    positions: Positions,
    mask: Mask,
    to: Float[Array, "B L H d"],
    *,
    form: str | forms.Form,
) -> Result:
    """A layer's output and gradients."""

    def loss(layer: Layer) -> tuple[Array, Array]:
        out = apply(encoding, layer, tokens, positions, mask, form=form)
        return (out.astype(jnp.float32) * to).sum(), out

    grads, out = jax.grad(loss, has_aux=True)(layer)
    return Result(out, grads)


def apply(
    encoding: PositionEncoding,
    layer: Layer,
    tokens: Int[Array, "B L"],
    positions: Positions,
    mask: Mask | None = None,
    *,
    form: str | forms.Form = "auto",
    rng: jax.Array | None = None,
) -> Float[Array, "B L H d"]:
    """A layer of attention from embeddings on, with an encoding in both."""
    x = hidden(encoding, layer, tokens, positions, rng)
    q, k, v = projected(layer, x)
    context = described(layer, x, x, positions, positions)._replace(rng=rng)
    return attention(q, k, v, encoding, layer.params, context, mask=mask, form=form)


def hidden(
    encoding: PositionEncoding,
    layer: Layer,
    tokens: Int[Array, "B L"],
    positions: Positions,
    rng: jax.Array | None = None,
) -> Float[Array, "B L D"]:
    """What enters the projections."""
    x = embed(encoding, layer.params, layer.x, positions, tokens=jnp.asarray(tokens), rng=rng)
    return x.astype(layer.x.dtype)  # As a model does.


def projected(layer: Layer, x: Float[Array, "B L D"]) -> tuple[Array, Array, Array]:
    """Queries, keys and values."""
    maps = zip((layer.w_q, layer.w_k, layer.w_v), (layer.q, layer.k, layer.v))
    q, k, v = (project(w)(x) + offset for w, offset in maps)
    return q, k, v


def project(w: Float[Array, "D H d"]) -> Callable[[Array], jax.Array]:
    return lambda x: jnp.einsum("...D,Dhd->...hd", x.astype(w.dtype), w)


def described(
    layer: Layer,
    x_q: Float[Array, "B Lq D"],
    x_k: Float[Array, "B Lk D"],
    positions_q: Positions,
    positions_k: Positions,
) -> Context:
    """All that an encoding may ask for."""
    maps = (project(layer.w_q), project(layer.w_k))
    return Context(positions_q, positions_k, x_q, x_k, maps)


def half(layer: Layer, dtype: Any = jnp.bfloat16) -> Layer:
    """Everything but the encoding's parameters in a lower precision, as a model has it."""
    low = jax.tree.map(lambda x: jnp.asarray(x, dtype), layer._replace(params={}))
    return low._replace(params=layer.params)
