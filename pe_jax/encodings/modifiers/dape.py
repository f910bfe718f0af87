"""DAPE: a small network adapts the biases of other encodings to what queries and keys contain."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from pe_jax.encodings.bias.fire import fan_in_uniform
from pe_jax.encodings.pairs import by_queries
from pe_jax.encodings.part import Metadata, Params, Part, Traits
from pe_jax.encodings.registry import registered
from pe_jax.errors import check_at_least
from pe_jax.shapes import Array, Float


@registered
def dape(*, num_heads: int, width: int = 32) -> Part:
    """Data-adaptive positional encoding (Zheng et al. 2024, arXiv 2405.14722).

        logits_ij = C_ij + B_ij + MLP([C_ij, B_ij])

    C_ij are the products of a query and a key in all heads, divided by sqrt(d), and B_ij what the
    encodings that it is joined with add to them (0 for none). The paper's biases are ALiBi, KERPLE
    and FIRE: `per_layer(kerple+dape)`, each layer with its own. The network has one hidden layer
    with LeakyReLU, of slope 0.01 below 0, as in the authors' code.

    Params: `{"hidden": {"kernel": [2 H, width], "bias": [width]}, "out": {"kernel": [width, H],
    "bias": [H]}}`, uniform within one over the root of the inputs, as in the authors' code.

    Raises:
      ValueError: for a width below 1.
    """
    check_at_least(1, width=width)
    shapes = {"hidden": (2 * num_heads, width), "out": (width, num_heads)}

    def logit_map(
        params: Params, content: Array, terms: Array, mask: Array
    ) -> Float[Array, "B H Lq Lk"]:
        def network(params: Params, logits: tuple[Array, Array]) -> Array:
            channels = _rows(jnp.concatenate(logits, axis=1))
            hidden = jax.nn.leaky_relu(_convolve(params["hidden"], channels))
            return _by_row(_convolve(params["out"], hidden), logits[0])

        arrays, numbers = (content, terms), 2 + width // num_heads
        return content + terms + by_queries(network, params, arrays, numbers)

    return Part(
        init=lambda rng: _init(rng, shapes),
        logit_map=logit_map,
        metadata=Metadata(
            "C + B + MLP([C, B]) over heads, C = q·k/√d, B of other encodings",
            "Zheng et al. 2024 (DAPE)",
            parameters="(2H + 1)·width + (width + 1)·H",
            invariant=True,
        ),
    )


@registered
def dape_v2(*, num_heads: int, width: int = 32, kernel_size: int = 3) -> Part:
    """DAPE with convolutions over the keys (Zheng et al. 2024, arXiv 2410.04798: DAPE V2).

        logits_i = C_i + B_i + W2 * LeakyReLU(W1 * [C_i, B_i] + b1) + b2

    for each query i. C and B are those of `dape`, rows of keys with H channels each, and * is a
    convolution over the keys, in the order of the row: a pair sees kernel_size / 2 neighbours to
    either side. As in the authors' code (github.com/chuanyang-Zheng/DAPE, `DAPEV2` and its
    relatives) both layers convolve; with a kernel of 1 it is `dape`.

    Convolutions do not see keys that the query may not attend to (masked, beyond a window, with a
    bias of -inf). These are zeros in both layers, like what is beyond the ends of the row, so that
    padding, packed documents and a cache do not change the result. The authors' code sets them to
    zero before the first layer only (`torch.tril`).

    Params: `{"hidden": {"kernel": [kernel_size, 2 H, width], "bias": [width]}, "out": {"kernel":
    [kernel_size, width, H], "bias": [H]}}`, uniform within one over the root of the inputs, as in
    the authors' code. Row n of a kernel meets the key n - kernel_size // 2 places to the right.

    Raises:
      ValueError: for a width below 1, or a kernel size that is even or below 1.
    """
    check_at_least(1, width=width)
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(
            f"kernel_size must be odd and at least 1, got {kernel_size}: a key and as many "
            "neighbours on either side."
        )
    shapes = {"hidden": (kernel_size, 2 * num_heads, width), "out": (kernel_size, width, num_heads)}

    def logit_map(
        params: Params, content: Array, terms: Array, mask: Array
    ) -> Float[Array, "B H Lq Lk"]:
        def network(params: Params, arrays: tuple[Array, Array, Array]) -> Array:
            *logits, visible = arrays
            channels = _rows(jnp.concatenate([jnp.where(visible, x, 0.0) for x in logits], axis=1))
            hidden = jax.nn.leaky_relu(_convolve(params["hidden"], channels))
            # A hidden unit belongs to no head: zero where no head sees the key.
            hidden = jnp.where(_rows(visible).any(0), hidden, 0.0)
            return _by_row(_convolve(params["out"], hidden), arrays[0])

        arrays, numbers = (content, terms, mask), kernel_size * (2 + width // num_heads)
        return content + terms + by_queries(network, params, arrays, numbers)

    return Part(
        init=lambda rng: _init(rng, shapes),
        logit_map=logit_map,
        traits=Traits(ordered=kernel_size > 1),
        metadata=Metadata(
            f"C + B + CNN([C, B]) over heads and {kernel_size} keys, C = q·k/√d, B of other "
            "encodings",
            "Zheng et al. 2024 (DAPE V2)",
            parameters="(2H·k + 1)·width + (width·k + 1)·H",
            invariant=True,
            monotone=False,  # At the ends of the row.
        ),
    )


def _init(rng: jax.Array, shapes: Mapping[str, tuple[int, ...]]) -> Params:
    """Kernels and biases of layers as PyTorch draws them; a kernel's last axis is its outputs."""
    params = {}
    rngs = jax.random.split(rng, len(shapes))
    for layer_rng, (name, shape) in zip(rngs, shapes.items(), strict=True):
        for_kernel, for_bias = jax.random.split(layer_rng)
        inputs = math.prod(shape[:-1])
        params[name] = {
            "kernel": fan_in_uniform(for_kernel, inputs, *shape),
            "bias": fan_in_uniform(for_bias, inputs, shape[-1]),
        }
    return params


def _rows(x: Array) -> jax.Array:
    """`x` [B, C, Lq, Lk] as [C, N, Lk], with the queries of all rows of the batch in one axis."""
    return jax.lax.collapse(jnp.moveaxis(x, 1, 0), 1, 3)


def _by_row(
    x: Float[Array, "H N Lk"], like: Float[Array, "B H Lq Lk"]
) -> Float[Array, "B H Lq Lk"]:
    rows, heads, *pairs = like.shape
    return jnp.moveaxis(x.reshape(heads, rows, *pairs), 0, 1)


def _convolve(layer: Params, x: Float[Array, "C N Lk"]) -> Float[Array, "F N Lk"]:
    """Convolve over the keys; a kernel [C, F] sees one key."""
    kernel, keys = layer["kernel"].reshape(-1, len(x), len(layer["bias"])), x.shape[2]
    side = len(kernel) // 2
    padded = jnp.pad(x, ((0, 0), (0, 0), (side, side)))
    # Pairs as one axis, see `by_queries`.
    shifted = (padded[..., n : n + keys].reshape(len(x), -1) for n in range(len(kernel)))
    out = sum(weights.T @ y for weights, y in zip(kernel, shifted, strict=True))
    return (out + layer["bias"][:, None]).reshape(len(out), *x.shape[1:])
