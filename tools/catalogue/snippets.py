"""Five lines of Python that use an encoding, as its card shows them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from catalogue.entries import WRAPPED, Entry
from pe_jax.attention import attention
from pe_jax.encodings import ENCODINGS, WRAPPERS, PositionEncoding

SIZES = {"hidden_size": 256, "head_size": 64, "num_heads": 4, "max_length": 512}
# Positions `[L, A]` of 128 tokens, by the number of axes.
_POSITIONS = {
    2: "jax.numpy.indices((8, 16)).reshape(2, 128).T",
    3: "jax.numpy.arange(128)[:, None].repeat(3, axis=1)",
}
_ATTENTION = """import jax
from pe_jax import attention, encodings

encoding = {call}
q = k = v = jax.random.normal(jax.random.key(0), (1, 128, 4, 64))  # [B, L, H, d]
out = attention.attention(q, k, v, encoding, encoding.init(jax.random.key(1)))"""
_EMBED = """import jax
from pe_jax import encodings

encoding = {call}
{given} = jax.numpy.ones((1, 128, 256)){value}  # [B, L, D]
out = encodings.embed(x, encoding, encoding.init(jax.random.key(0)){context})"""
_LAYER = """import jax
from pe_jax import encodings, linen

encoding = {call}
layer = linen.MultiHeadAttention(num_heads=4, encoding=encoding)
out, _ = layer.init_with_output(jax.random.key(0), jax.numpy.ones((1, 128, 256)))  # [B, L, D]"""
_LAYER_AT = """import jax
from pe_jax import encodings, linen

layer = linen.MultiHeadAttention(4, encoding={call})
x, positions = jax.numpy.ones((1, 128, 256)), {positions}
out, _ = layer.init_with_output(jax.random.key(0), x, positions_q=positions)"""


def snippet(row: Entry, partner: str = "") -> str:
    """Return the code.

    Args:
      row: of `SIZES`.
      partner: an encoding that it is joined with.
    """
    call = re.sub(r"\(([\d.]+)(?:, \1)+\)", _repeated, _call(row, partner))
    encoding, positions = row.encoding, _POSITIONS.get(row.encoding.axes, "")
    if encoding.parts and not encoding.in_attention.parts:
        if row.key == "complex_order":
            return _EMBED.format(
                call=call,
                given="x, tokens",
                value=", jax.numpy.ones((1, 128), int)",
                context=", encodings.Context(tokens=tokens)",
            )
        if positions:
            return _EMBED.format(
                call=call,
                given="x, positions",
                value=f", {positions}",
                context=", encodings.Context(positions_q=positions)",
            )
        return _EMBED.format(call=call, given="x", value="", context="")
    if positions:
        return _LAYER_AT.format(call=call, positions=positions)
    return (_LAYER if _needs_layer(encoding) else _ATTENTION).format(call=call)


def _repeated(numbers: re.Match) -> str:
    """`(4,) * 32` for so many numbers."""
    return f"({numbers[1]},) * {numbers[0].count(numbers[1])}"


def _call(row: Entry, partner: str) -> str:
    if row.key in WRAPPERS:
        inside = f"encodings.{_plain(WRAPPED, {})}"
        return f"encodings.{row.key}({', '.join([inside, *_arguments(row.required)])})"
    call = f"encodings.{_plain(row.key, row.required)}"
    if partner:
        call = f"encodings.{_plain(partner, {})} + {call}"
    return call + " + encodings.causal()" * row.name.endswith("+causal")


def _plain(key: str, options: Mapping[str, Any]) -> str:
    """A call with the sizes that it requires."""
    parameters = inspect.signature(ENCODINGS[key]).parameters
    sizes = {
        n: v for n, v in SIZES.items() if n in parameters and _required(parameters[n])
    }
    return f"{key}({', '.join(_arguments({**sizes, **options}))})"


def _arguments(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in values.items()]


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty


def _needs_layer(encoding: PositionEncoding) -> bool:
    """Whether attention needs hidden states or the projections of a layer."""
    heads = jax.ShapeDtypeStruct(
        (1, 128, SIZES["num_heads"], SIZES["head_size"]), jnp.float32
    )
    out = lambda q: attention(q, q, q, encoding, encoding.init(jax.random.key(0)))
    try:
        jax.eval_shape(out, heads)
    except ValueError:
        return True
    return False
