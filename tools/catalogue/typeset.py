"""Formulas of `Metadata`, plain text that a terminal shows, as LaTeX."""

from __future__ import annotations

import re

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
