"""Temperatures of the softmax that fall with the number of keys: attention over more of them is
flatter, unless logits grow with the logarithm of their number."""

from __future__ import annotations

import math
from typing import Literal

import jax
import jax.numpy as jnp

from pe_jax.common.errors import check_at_least
from pe_jax.common.shapes import Array, Float, Real
from pe_jax.encodings.part import HookContext, Metadata, Params, Part, Traits
from pe_jax.encodings.registry import register_encoding

Count = Literal["query", "earlier", "row"]
_COUNTS: dict[Count, str] = {"query": "i + 1", "earlier": "i", "row": "max x + 1"}


@register_encoding
def log_n(
    *,
    original_length: int,
    coefficient: float | None = None,
    smooth: bool = False,
    stepped: bool = False,
    count: Count = "query",
) -> Part:
    """Multiplies the logits of query i by a factor that grows with log n_i.

        1 + c·log(n_i / L) where n_i > L, else 1        by default
        1 + c·log(1 + n_i / L)                          smooth
        1 + c·log(1 + floor(n_i / L))                   smooth and stepped

    c is 1/log L by default, which makes the first log_L n_i (Su 2021; Qwen's `use_logn_attn`, with
    L the length trained on) and the second log_L(L + n_i), SWAN's (Puvvada et al. 2025, arXiv
    2504.08719) in its layers without positions. DroPE (Gelberg et al. 2025, arXiv 2512.12167, C.2)
    takes the first with a fitted c, 0.412 for a model trained from scratch and 0.103 for SmolLM. In
    the papers the factor acts at test time. Here it acts always; up to L the first is 1, so that a
    model trained with at most L tokens can be evaluated beyond. Llama 4 has the third in its layers
    without RoPE, Ministral 3 in all its layers with `count="earlier"`. No parameters.

    Args:
      original_length: L, at least 2.
      coefficient: Factor c of the logarithm.
      smooth, stepped: which factor; `stepped` needs `smooth`.
      count: n_i is the number of keys that a causal query attends to, its position + 1 ("query");
        its position ("earlier"); or the row's largest position + 1 for all, for an encoder ("row",
        DroPE's C_test, not for a cache).

    Raises:
      ValueError: for an original length below 2, or `stepped` without `smooth`.
    """
    check_at_least(2, original_length=original_length)
    if stepped and not smooth:
        raise ValueError("stepped=True needs smooth=True: it rounds n/L down.")
    if coefficient is None:
        coefficient = 1 / math.log(original_length)

    def scale(params: Params, context: HookContext) -> Float[Array, "#B #L 1 1"]:
        n = _counts(context, count)
        ratio = n // original_length if stepped else n / original_length
        if smooth:
            return 1 + coefficient * jnp.log1p(jnp.maximum(ratio, 0))
        return 1 + coefficient * jnp.log(jnp.maximum(ratio, 1))

    logarithm = "log max(1, n/L)"
    source = "Su 2021; Gelberg et al. 2025 (DroPE)"
    if smooth:
        ratio = "floor(n/L)" if stepped else "n/L"
        logarithm = f"log(1 + {ratio})"
        source = "Puvvada et al. 2025 (SWAN)"
    return Part(
        scale=scale,
        traits=Traits(cacheable=count != "row"),
        metadata=Metadata(
            formula=f"s_i·(1 + c·{logarithm}), n = {_COUNTS[count]}",
            source=source,
            monotone=False,
            symmetric=count == "row",
        ),
    )


@register_encoding
def ssmax(
    *, num_heads: int, bias: bool = False, count: Literal["query", "row"] = "query"
) -> Part:
    """Multiplies the logits of query i by a factor that is learned per head (Scalable-Softmax:
    Nakanishi 2025, arXiv 2501.19399; Mistral Large 4).

        s_h·log n_i,   with `bias` s_h·log n_i + b_h

    with n_i as in `log_n`. The paper and Mistral Large 4 (transformers, `mistral_large4`, with a
    bias) learn the factor in each layer: `per_layer(ssmax)`.

    Params: `{"scale": [H]}`, which starts at 0.168: over the first 1,024 queries the factor is 1 on
    average. With `bias`, `{"scale": [H], "bias": [H]}` start at 0 and 1, as in transformers.

    Args:
      bias: add b_h.
      count: as in `log_n`.
    """

    def init(rng: jax.Array) -> Params:
        if not bias:
            return {"scale": jnp.full(num_heads, 0.168)}
        return {"scale": jnp.zeros(num_heads), "bias": jnp.ones(num_heads)}

    def scale(params: Params, context: HookContext) -> Float[Array, "#B #L H 1"]:
        log_count = jnp.log(jnp.maximum(_counts(context, count), 1))
        factor = params["scale"][:, None] * log_count
        return factor + (params["bias"][:, None] if bias else 0.0)

    formula = "s_h·log n"
    parameters = "H"
    if bias:
        formula = "s_h·log n + b_h"
        parameters = "2H"
    return Part(
        init=init,
        scale=scale,
        traits=Traits(cacheable=count != "row"),
        metadata=Metadata(
            formula=f"s_i·({formula}), n = {_COUNTS[count]}",
            source="Nakanishi 2025 (SSMax)",
            parameters=parameters,
            monotone=False,
            symmetric=count == "row",
        ),
    )


def _counts(context: HookContext, count: Count) -> Real[Array, "#B #L 1 1"]:
    """n_i of each query, or one for all queries of a row."""
    if count == "row":
        return context.span().reshape(-1, 1, 1, 1)
    positions, _ = context.rows()
    return positions[..., None, None] + (count == "query")
