"""An encoding under test: arrays to run it on, and the programs that the checks share.

Compiling is nearly all that a check costs. `naive` is one program for any positions and masks of
the subject's length, and most checks only run it again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

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
LENGTH, ROWS = 8, 2
_BLOCK_SIZE = 3  # Queries at a time in "fused": several blocks, the last one short.

Mask = Bool[Array, "B 1 L L"]


Result = tuple[
    Array, Layer
]  # A layer's output `[B, L, H, d]`, and the gradients of <out, to>.


def _sizes_of(encoding: PositionEncoding) -> Sizes:
    """Return the sizes that an encoding was built for, and those of `SIZES` that it leaves open."""
    names = ("hidden_size", "head_size", "num_heads")
    values = {
        n: v for part in encoding.parts for n in names if (v := getattr(part.traits, n))
    }
    width, size, heads = map(values.get, names)
    size = size or (
        width // (heads or SIZES["num_heads"]) if width else SIZES["head_size"]
    )
    heads = heads or (width // size if width else SIZES["num_heads"])
    longest = encoding.max_length or SIZES["max_length"]
    return dict(zip(SIZES, (size * heads, size, heads, longest), strict=True))


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
        self.width, self.head_size, self.heads, longest = (
            sizes[name] for name in SIZES
        )
        if self.width != self.heads * self.head_size or longest < LENGTH:
            raise ValueError(
                f"sizes must have hidden_size = num_heads * head_size and max_length >= {LENGTH}, "
                f"got {sizes}."
            )
        self.encoding, self.reference, self.sizes = encoding, reference, sizes
        self.name = encoding.name
        self.layer = self.draw(0)
        rng = np.random.default_rng(9)
        self.tokens = rng.integers(0, 8, (ROWS, LENGTH))
        self.to = rng.normal(size=(ROWS, LENGTH, self.heads, self.head_size)).astype(
            np.float32
        )
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
        axes, side = self.encoding.axes, 3
        if axes == 1:
            return np.asarray(index)
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

    def run(
        self, positions: Positions | None = None, mask: Mask | None = None
    ) -> jax.Array:
        """Outputs of the naive implementation."""
        positions = self.positions if positions is None else positions
        mask = self.everything if mask is None else mask
        return self.naive(self.layer, self.tokens, positions, mask, self.to)[0]

    def taken(self, some: Callable[[Array], Array]) -> Layer:
        """The layer with some of its tokens."""
        arrays = {
            name: some(getattr(self.layer, name)) for name in ("x", "q", "k", "v")
        }
        return self.layer._replace(**arrays)

    @functools.cached_property
    def outputs(self) -> Callable[..., jax.Array]:
        """`apply` of the encoding, compiled for each dtype and number of tokens."""
        return jax.jit(functools.partial(apply, self.encoding))

    @functools.cached_property
    def formula(self) -> Callable[..., Result]:
        """`naive` by the reference, in float64."""
        assert self.reference is not None
        reference, parts = self.reference, self.encoding.parts

        def loss(layer, tokens, positions, mask, to):
            params = (
                layer.params.get(parts[0].key, {}) if len(parts) == 1 else layer.params
            )
            layer = layer._replace(params=params)
            out = attend(reference, layer, tokens, positions, mask)
            return (out * to).sum(), out

        run = jax.jit(jax.grad(loss, has_aux=True))

        def precise(layer, tokens, positions, mask, to):
            with jax.enable_x64(True):
                layer, positions, to = jax.tree.map(
                    lambda x: jnp.asarray(np.asarray(x), jnp.float64),
                    (layer, positions, to),
                )
                grads, out = run(layer, tokens, positions, mask, to)
                return jax.tree.map(np.asarray, (out, grads))

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
    return out, grads


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
    x = embed(
        layer.x,
        encoding,
        layer.params,
        Context(positions_q=positions, tokens=jnp.asarray(tokens), position_rng=rng),
    )
    maps = [functools.partial(_project, w) for w in (layer.w_q, layer.w_k, layer.w_v)]
    offsets = layer.q, layer.k, layer.v
    heads = tuple(project(x) + offset for project, offset in zip(maps, offsets))
    return (
        x,
        heads,
        Context(
            positions_q=positions,
            x_q=x,
            projections=(maps[0], maps[1]),
            position_rng=rng,
        ),
    )


def _project(
    w: Float[Array, "D H d"], x: Float[Array, "*B D"]
) -> Float[Array, "*B H d"]:
    return jnp.einsum("...D,Dhd->...hd", x.astype(w.dtype), w)


def half(layer: Layer, dtype: Any = jnp.bfloat16) -> Layer:
    """Everything but the encoding's parameters in a lower precision, as a model has it."""
    low = jax.tree.map(lambda x: jnp.asarray(x, dtype), layer._replace(params={}))
    return low._replace(params=layer.params)
