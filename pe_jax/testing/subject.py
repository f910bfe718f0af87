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

from pe_jax.attention import implementations
from pe_jax.attention.attention import attention
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.encodings import Context, Params, PositionEncoding, Positions, embed
from pe_jax.testing.reference import Layer, Reference, attend

# Small enough to compile fast; D = H·d, so that layers follow one another.
Sizes = Mapping[str, int]
SIZES: Sizes = {"hidden_size": 8, "head_size": 4, "num_heads": 2, "max_length": 16}
LENGTH = 8
ROWS = 2
_BLOCK_SIZE = 3  # Queries at a time in "fused": several blocks, the last one short.

Mask = Bool[Array, "B 1 L L"]


class Result(NamedTuple):
    """What a layer computes."""

    out: Float[Array, "B L H d"]
    grads: Layer  # Of <out, to>.


def _sizes_of(encoding: PositionEncoding) -> Sizes:
    """Return the sizes that an encoding was built for, and those of `SIZES` that it leaves open."""
    width = size = heads = None
    for part in encoding.parts:
        width = part.traits.hidden_size or width
        size = part.traits.head_size or size
        heads = part.traits.num_heads or heads
    if width and not size:
        size = width // (heads or SIZES["num_heads"])
    size = size or SIZES["head_size"]
    if width and not heads:
        heads = width // size
    heads = heads or SIZES["num_heads"]
    return {
        "hidden_size": size * heads,
        "head_size": size,
        "num_heads": heads,
        "max_length": encoding.max_length or SIZES["max_length"],
    }


class Subject:
    """An encoding, with random arrays for it. Its methods serve the checks and may change.

    Attributes:
      encoding, sizes: what is tested, and the sizes that it was built for.
      reference: its formula, if there is one.
      layer: random float32 arrays; parameters are `init`'s, moved away from where they start.
      tokens: ids `[B, L]`.
      to: `[B, L, H, d]`, the cotangent of the output.
      positions: `[B, L]` or `[B, L, A]`, of each row from 0.
      everything: the mask that allows every key.

    Raises:
      ValueError: for sizes where hidden_size is not num_heads · head_size, or max_length < 8.
    """

    def __init__(
        self,
        encoding: PositionEncoding,
        reference: Reference | None = None,
        sizes: Sizes | None = None,
    ):
        sizes = sizes or _sizes_of(encoding)
        self.width = sizes["hidden_size"]
        self.head_size = sizes["head_size"]
        self.heads = sizes["num_heads"]
        fits = self.width == self.heads * self.head_size
        if not fits or sizes["max_length"] < LENGTH:
            raise ValueError(
                f"sizes must have hidden_size = num_heads * head_size and max_length >= {LENGTH}, "
                f"got {sizes}."
            )
        self.encoding = encoding
        self.reference = reference
        self.sizes = sizes
        self.name = encoding.name
        self.layer = self.draw(0)
        rng = np.random.default_rng(9)
        self.tokens = rng.integers(0, 8, (ROWS, LENGTH))
        shape = (ROWS, LENGTH, self.heads, self.head_size)
        self.to = rng.normal(size=shape).astype(np.float32)
        self.positions = self.at(np.tile(np.arange(LENGTH), (ROWS, 1)))
        self.everything: Mask = np.ones((ROWS, 1, LENGTH, LENGTH), bool)

    @property
    def ordered(self) -> bool:
        """True if tokens must be in the order of their positions."""
        return any(part.traits.ordered for part in self.encoding.parts)

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
        """The parameters that the encoding's `init` draws."""
        return self._init(jax.random.key(seed))

    @functools.cached_property
    def _init(self) -> Callable[[jax.Array], Params]:
        return jax.jit(self.encoding.init)

    def at(self, index: Int[Array, "*B"]) -> Int[np.ndarray, "..."]:
        """Positions of tokens at these indices of a sequence; a grid for more axes than one."""
        axes = self.encoding.axes
        if axes == 1:
            return np.asarray(index)
        side = 3
        return np.stack([index // side**axis % side for axis in range(axes)], axis=-1)

    @functools.cached_property
    def naive(self) -> Callable[..., Result]:
        """`(layer, tokens, positions [B, L], mask, to) -> Result`, as the formula stands."""
        return self.compiled("naive")

    def compiled(
        self, implementation: str, **arguments: Positions
    ) -> Callable[..., Result]:
        """`naive` by another implementation, some of its arguments known while compiling."""
        model = functools.partial(result, self.encoding, implementation=implementation)
        return jax.jit(functools.partial(model, **arguments))

    def two_layers(self) -> tuple[list[Layer], Layer]:
        """The layer and another one, and both stacked."""
        layers = [self.layer, self.draw(1)]
        return layers, jax.tree.map(lambda *x: np.stack(x), *layers)

    def result(
        self,
        positions: Positions | None = None,
        mask: Mask | None = None,
        layer: Layer | None = None,
        to: Array | None = None,
    ) -> Result:
        """Outputs and gradients of the naive implementation, by default of the subject's arrays."""
        positions = self.positions if positions is None else positions
        mask = self.everything if mask is None else mask
        to = self.to if to is None else to
        return self.naive(layer or self.layer, self.tokens, positions, mask, to)

    def run(
        self, positions: Positions | None = None, mask: Mask | None = None
    ) -> jax.Array:
        """Outputs of the naive implementation."""
        return self.result(positions, mask).out

    def taken(self, some: Callable[[Array], Array]) -> Layer:
        """The layer with some of its tokens."""
        layer = self.layer
        return layer._replace(
            x=some(layer.x), q=some(layer.q), k=some(layer.k), v=some(layer.v)
        )

    @functools.cached_property
    def outputs(self) -> Callable[..., jax.Array]:
        """`apply` of the encoding, compiled for each dtype and number of tokens."""
        return jax.jit(functools.partial(apply, self.encoding))

    @functools.cached_property
    def formula(self) -> Callable[..., Result]:
        """`naive` by the reference, in float64."""
        assert self.reference is not None
        reference = self.reference
        parts = self.encoding.parts

        def loss(layer, tokens, positions, mask, to):
            if len(parts) == 1:
                layer = layer._replace(params=layer.params.get(parts[0].key, {}))
            out = attend(reference, layer, tokens, positions, mask)
            return (out * to).sum(), out

        run = jax.jit(jax.grad(loss, has_aux=True))

        def to_float64(tree):
            return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), tree)

        def precise(layer, tokens, positions, mask, to):
            with jax.enable_x64(True):
                layer, positions, to = to_float64((layer, positions, to))
                grads, out = run(layer, tokens, positions, mask, to)
                return jax.tree.map(np.asarray, Result(out, grads))

        return precise


def result(
    encoding: PositionEncoding,
    layer: Layer,
    tokens: Int[Array, "B L"],
    positions: Positions,
    mask: Mask,
    to: Float[Array, "B L H d"],
    *,
    implementation: str,
) -> Result:
    """A layer's output and gradients; those of "fused" in several blocks."""

    def loss(layer: Layer) -> tuple[Array, Array]:
        out = apply(
            encoding, layer, tokens, positions, mask, implementation=implementation
        )
        return (out.astype(jnp.float32) * to).sum(), out

    with implementations.queries_per_block(_BLOCK_SIZE):
        grads, out = jax.grad(loss, has_aux=True)(layer)
    return Result(out, grads)


def apply(
    encoding: PositionEncoding,
    layer: Layer,
    tokens: Int[Array, "B L"],
    positions: Positions,
    mask: Mask | None = None,
    *,
    implementation: str = "auto",
    rng: jax.Array | None = None,
) -> Float[Array, "B L H d"]:
    """A layer of attention from embeddings on, with an encoding in both."""
    x, (q, k, v), context = projected(encoding, layer, tokens, positions, rng)
    context = context.replace(positions_k=positions, x_k=x)
    acting = encoding.in_attention
    return attention(
        q, k, v, acting, layer.params, context, mask=mask, implementation=implementation
    )


def projected(
    encoding: PositionEncoding,
    layer: Layer,
    tokens: Int[Array, "B L"],
    positions: Positions,
    rng: jax.Array | None = None,
) -> tuple[Array, tuple[Array, ...], Context]:
    """The input of the projections; queries, keys and values; all that an encoding may ask for."""
    context = Context(
        positions_q=positions, tokens=jnp.asarray(tokens), position_rng=rng
    )
    x = embed(layer.x, encoding, layer.params, context)
    to_q = functools.partial(_project, layer.w_q)
    to_k = functools.partial(_project, layer.w_k)
    to_v = functools.partial(_project, layer.w_v)
    heads = (to_q(x) + layer.q, to_k(x) + layer.k, to_v(x) + layer.v)
    context = Context(
        positions_q=positions, x_q=x, projections=(to_q, to_k), position_rng=rng
    )
    return x, heads, context


def _project(
    w: Float[Array, "D H d"], x: Float[Array, "*B D"]
) -> Float[Array, "*B H d"]:
    return jnp.einsum("...D,Dhd->...hd", x.astype(w.dtype), w)


def half(layer: Layer, dtype: Any = jnp.bfloat16) -> Layer:
    """Everything but the encoding's parameters in a lower precision, as a model has it."""
    low = jax.tree.map(lambda x: jnp.asarray(x, dtype), layer._replace(params={}))
    return low._replace(params=layer.params)
