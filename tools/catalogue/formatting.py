"""Formulas in LaTeX and five lines of Python, as cards show them."""

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

_FUNCTIONS = ("log", "exp", "max", "min", "sin", "cos")
_OPERATORS = (
    "softplus", "sigmoid", "silu", "SiLU", "gelu", "relu", "conv", "norm", "sign", "mod", "MLP",
    "CNN", "bucket",
)  # fmt: skip
_NAMES = "|".join(_FUNCTIONS + _OPERATORS)
# Two other letters are a product.
_WORD = (
    rf"(?<![A-Za-z\\])(?!(?:{_NAMES})(?![A-Za-z]))"
    r"(?:[A-Za-z]{3,}|(?<!{)(?:by|in|of|on|or|to))(?![A-Za-z])"
)
_SYMBOLS = {
    "−": "-", "·": r" \cdot ", "→": r" \to ", "≥": r" \ge ", "≤": r" \le ", "≠": r" \ne ",
    "⊙": r" \odot ", "ᵀ": r"^\top ", "⁻¹": "^{-1}", "²": "^2", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
    "Σ": r"\sum ", "Π": r"\prod ", "√": r"\sqrt ", "β": r"\beta ", "γ": r"\gamma ",
    "δ": r"\delta ", "ζ": r"\zeta ", "λ": r"\lambda ", "π": r"\pi ", "σ": r"\sigma ",
    "τ": r"\tau ", "φ": r"\varphi ", "ψ": r"\psi ", "ω": r"\omega ", "α": r"\alpha ",
    "Δ": r"\Delta ", "ε": r"\varepsilon ", "…": r"\dots ",
}  # fmt: skip
_LINE = 46  # Characters of plain text that a phone shows in one line.


def latex(formula: str) -> str:
    r"""Return a formula as LaTeX, a line for as many of its clauses as a phone shows.

    >>> latex("S(ω, x), ω_i = 10000^(−2i/D)")
    'S(\\omega , x),\\quad \\omega _{i} = 10000^{-2i/D}'
    """
    lines: list[str] = []
    for clause in _clauses(formula):
        if lines and len(lines[-1]) + len(clause) + 2 <= _LINE:
            lines[-1] += f", {clause}"
        else:
            lines.append(clause)
    typeset = [r",\quad ".join(map(_typeset, _clauses(line))) for line in lines]
    if len(typeset) == 1:
        return typeset[0]
    return "\\begin{gathered}\n" + " \\\\\n".join(typeset) + "\n\\end{gathered}"


def _clauses(formula: str) -> list[str]:
    """Split at commas outside of brackets."""
    clauses, depth = [""], 0
    for character in formula:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            clauses.append("")
        else:
            clauses[-1] += character
    return [clause.strip() for clause in clauses]


def _typeset(text: str) -> str:
    text = _braced(text)
    text = re.sub(r"_([A-Za-z0-9]+)", r"_{\1}", text)
    text = re.sub(r"√([^\W_{])", r"√{\1}", text)
    run = rf"(?:(?<=[\w}})\]|']) )?{_WORD}(?: (?:a )?{_WORD})*(?: (?=[\w|(\[√⌊−]))?"
    text = re.sub(run, r"\\text{\g<0>}", text)
    text = re.sub(rf"\b({'|'.join(_FUNCTIONS)})\b", r"\\\1 ", text)
    text = re.sub(
        rf"\b({'|'.join(_OPERATORS)})(?![A-Za-z])", r"\\operatorname{\1}", text
    )
    for plain, symbol in _SYMBOLS.items():
        text = text.replace(plain, symbol)
    return re.sub(r" {2,}", " ", text).strip()


def _braced(text: str) -> str:
    """Turn brackets after ^, _ and √ into braces."""
    while found := re.search(r"[\^_√]\(", text):
        depth, end = 1, found.end()
        while depth:
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        text = f"{text[: found.end() - 1]}{{{text[found.end() : end - 1]}}}{text[end:]}"
    return text


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
        inside = f"encodings.{_call_text(WRAPPED, {})}"
        return f"encodings.{row.key}({', '.join([inside, *_arguments(row.required)])})"
    call = f"encodings.{_call_text(row.key, row.required)}"
    if partner:
        call = f"encodings.{_call_text(partner, {})} + {call}"
    return call + " + encodings.causal()" * row.name.endswith("+causal")


def _call_text(key: str, options: Mapping[str, Any]) -> str:
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
