"""DAPE: a small network adapts the biases of other encodings to what queries and keys contain.

Zheng et al. 2024, "DAPE: data-adaptive positional encoding for length extrapolation", arXiv
2405.14722, and DAPE V2, arXiv 2410.04798.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float
from pe_jax.encodings.bias.fire import uniform_layer
from pe_jax.encodings.pairwise import map_query_blocks
from pe_jax.encodings.part import Logits, Metadata, Params, Part, Traits
from pe_jax.encodings.registry import register_encoding


@register_encoding
def dape(*, num_heads: int, width: int = 32) -> Part:
    """Data-adaptive positional encoding (Zheng et al. 2024, arXiv 2405.14722).

        logits_ij = C_ij + B_ij + MLP([C_ij, B_ij])

    C_ij are the products of a query and a key in all heads, divided by sqrt(d), and B_ij what the
    encodings that it is joined with add to them (0 for none). The paper's biases are ALiBi, KERPLE
    and FIRE: `per_layer(kerple+dape)`, each layer with its own. The network has one hidden layer
    with LeakyReLU, of slope 0.01 below 0, as in the authors' code.

    Params: `{"hidden": {"kernel": [2 H, width], "bias": [width]}, "out": {"kernel": [width, H],
    "bias": [H]}}`, uniform within one over the root of the inputs, as in the authors' code.

    Args:
      width: of the hidden layer.

    Raises:
      ValueError: for a width below 1.
    """
    metadata = Metadata(
        formula="C + B + MLP([C, B]) over heads, C = q·k/√d, B of other encodings",
        source="Zheng et al. 2024 (DAPE)",
        parameters="(2H + 1)·width + (width + 1)·H",
        invariant=True,
    )
    return _adapted(num_heads, width, (), metadata)


@register_encoding
def dape_v2(*, num_heads: int, width: int = 32, kernel_size: int = 3) -> Part:
    """DAPE with convolutions over the keys (Zheng et al. 2024, arXiv 2410.04798: DAPE V2).

        logits_i = C_i + B_i + W2 * LeakyReLU(W1 * [C_i, B_i] + b1) + b2

    for each query i. C and B are those of `dape`, rows of keys with H channels each, and * is a
    convolution over the keys, in the order of the row: a pair sees kernel_size / 2 neighbours to
    either side. As in the authors' code (github.com/chuanyang-Zheng/DAPE, `DAPEV2` and its
    relatives) both layers convolve; with a kernel of 1 it is `dape`.

    Keys that the query may not attend to (masked, beyond a window, with a bias of -inf) are zeros
    in both layers, like what is beyond the ends of the row, so that padding, packed documents and a
    cache do not change the result. The authors' code sets them to zero before the first layer only.

    Params: `{"hidden": {"kernel": [kernel_size, 2 H, width], "bias": [width]}, "out": {"kernel":
    [kernel_size, width, H], "bias": [H]}}`, uniform within one over the root of the inputs, as in
    the authors' code. Row n of a kernel meets the key n - kernel_size // 2 places to the right.

    Args:
      width: of the hidden layer.
      kernel_size: keys that a convolution sees, odd.

    Raises:
      ValueError: for a width below 1, or a kernel size that is even or below 1.
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(
            f"kernel_size must be odd and at least 1, got {kernel_size}: a key and as many "
            "neighbours on either side."
        )
    metadata = Metadata(
        formula=f"C + B + CNN([C, B]) over heads and {kernel_size} keys, C = q·k/√d, "
        "B of other encodings",
        source="Zheng et al. 2024 (DAPE V2)",
        parameters="(2H·k + 1)·width + (width·k + 1)·H",
        invariant=True,
        monotone=False,  # At the ends of the row.
    )
    return _adapted(num_heads, width, (kernel_size,), metadata)


def _adapted(
    num_heads: int, width: int, keys: tuple[int, ...], metadata: Metadata
) -> Part:
    """The part whose kernels have `keys` as their first axis, if any."""
    check_at_least(1, width=width)
    shapes = {"hidden": (*keys, 2 * num_heads, width), "out": (*keys, width, num_heads)}
    kernel_size = math.prod(keys)

    def init(rng: jax.Array) -> Params:
        params = {}
        for name, name_rng in zip(shapes, jax.random.split(rng, len(shapes))):
            params[name] = uniform_layer(jax.random.split(name_rng), *shapes[name])
        return params

    def network(
        params: Params, arrays: tuple[Array, Array, Array]
    ) -> Float[Array, "B H Lq Lk"]:
        content, terms, visible = arrays
        if kernel_size > 1:
            content = jnp.where(visible, content, 0.0)
            terms = jnp.where(visible, terms, 0.0)
        channels = _rows(jnp.concatenate([content, terms], axis=1))  # [2H, N, Lk]
        hidden = jax.nn.leaky_relu(_convolve(params["hidden"], channels))
        if kernel_size > 1:
            # A hidden unit belongs to no head: zero where no head sees the key.
            hidden = jnp.where(_rows(visible).any(0), hidden, 0.0)
        rows, heads, *pairs = visible.shape
        out = _convolve(params["out"], hidden).reshape(heads, rows, *pairs)
        return jnp.moveaxis(out, 0, 1)

    def map_logits(params: Params, content: Array, terms: Array, mask: Array) -> Logits:
        logits = content + terms
        return logits + map_query_blocks(
            network,
            params,
            arrays=(content, terms, mask),
            # Units for each number of `arrays`, about.
            width=kernel_size * (2 + width // num_heads),
        )

    traits = Traits(ordered=kernel_size > 1)
    return Part(init=init, map_logits=map_logits, traits=traits, metadata=metadata)


def _rows(x: Array) -> jax.Array:
    """`x` [B, C, Lq, Lk] as [C, N, Lk], with the queries of all rows of the batch in one axis."""
    return jax.lax.collapse(jnp.moveaxis(x, 1, 0), 1, 3)


def _convolve(layer: Params, x: Float[Array, "C N Lk"]) -> Float[Array, "F N Lk"]:
    """Convolve over the keys; a kernel [C, F] sees one key."""
    channels, _, keys = x.shape
    kernel = layer["kernel"].reshape(-1, channels, len(layer["bias"]))
    side = len(kernel) // 2
    padded = jnp.pad(x, ((0, 0), (0, 0), (side, side)))

    def shifted(n: int) -> Float[Array, "C M"]:
        """What row n of the kernel meets, with all pairs as one axis (see `map_query_blocks`)."""
        return padded[..., n : n + keys].reshape(channels, -1)

    products = [weights.T @ shifted(n) for n, weights in enumerate(kernel)]
    out = sum(products) + layer["bias"][:, None]
    return out.reshape(-1, *x.shape[1:])
