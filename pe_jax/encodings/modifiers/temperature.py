"""A temperature of the softmax that falls with the number of keys: attention over more of them is
flatter, unless logits grow with the logarithm of their number."""

from __future__ import annotations

import math
from typing import Literal

import jax.numpy as jnp

from pe_jax.encodings.part import Context, Metadata, Params, Part, Traits
from pe_jax.encodings.positions import as_array
from pe_jax.encodings.registry import registered
from pe_jax.shapes import Array, Float


@registered
def log_n(
    *,
    length: int,
    coefficient: float | None = None,
    smooth: bool = False,
    stepped: bool = False,
    count: Literal["query", "earlier", "row"] = "query",
) -> Part:
    """Multiplies the logits of query i by a factor that grows with log n_i.

        1 + c·log(n_i / L) where n_i > L, else 1        by default
        1 + c·log(1 + n_i / L)                          smooth
        1 + c·log(1 + floor(n_i / L))                   smooth and stepped

    c is 1/log L by default, which makes the first log_L n_i (Su 2021; Qwen's `use_logn_attn`, with
    L the length trained on) and the second log_L(L + n_i), SWAN's (Puvvada et al. 2025, arXiv
    2504.08719) in its layers without positions. DroPE (Gelberg et al. 2025, arXiv 2512.12167, C.2)
    takes the first with a fitted c, 0.412 for a model trained from scratch and 0.103 for SmolLM. In
    the papers the factor acts at test time; here always, and up to L the first is 1. Llama 4 has
    the third in its layers without RoPE, and Ministral 3 in all its layers with `count="earlier"`.
    Adds nothing else; no parameters.

    Args:
      length: L.
      coefficient: c.
      count: n_i is the number of keys that a causal query attends to, its position + 1 ("query");
        its position ("earlier"); or the row's largest position + 1 for all, for an encoder ("row",
        DroPE's C_test, not for a cache).

    Raises:
      ValueError: for a length below 2, or steps that are not smooth.
    """
    if length < 2:
        raise ValueError(f"length must be at least 2 keys, got {length}.")
    if stepped and not smooth:
        raise ValueError("stepped=True needs smooth=True: it rounds n/L down.")
    c = 1 / math.log(length) if coefficient is None else coefficient

    def factor(params: Params, context: Context) -> Float[Array, "#B #L 1 1"]:
        row = count == "row"
        n = context.span()[..., None] if row else as_array(context.positions_q) + (count == "query")
        ratio = n // length if stepped else n / length
        grown = jnp.log1p(jnp.maximum(ratio, 0)) if smooth else jnp.log(jnp.maximum(ratio, 1))
        return (1 + c * grown).reshape(-1, n.shape[-1], 1, 1)

    ratio = "floor(n/L)" if stepped else "n/L"
    of = f"log(1 + {ratio})" if smooth else "log max(1, n/L)"
    keys = {"query": "i + 1", "earlier": "i", "row": "max x + 1"}[count]
    return Part(
        factor=factor,
        traits=Traits(cacheable=count != "row"),
        metadata=Metadata(
            f"s_i·(1 + c·{of}), n = {keys}",
            "Puvvada et al. 2025 (SWAN)" if smooth else "Su 2021; Gelberg et al. 2025 (DroPE)",
            monotone=False,
            symmetric=count == "row",
        ),
    )
