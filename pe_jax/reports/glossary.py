"""Terms of reports: abbreviations, measures and units, each with its definition."""

from __future__ import annotations

import re

# Term -> how a page writes it, and its definition.
_TERMS: dict[str, tuple[str, str]] = {
    "violation": (
        r"[Vv]iolations?", "How far a property fails to hold: 0 if it holds exactly, at most 1."
    ),
    "Φ": (
        "Φ|P·Pᵀ|Ā", "Proximity matrix: how strongly position i is tied to position j. P·Pᵀ: dot "
        "products of position vectors. Ā: mean attention logits among copies of one word."
    ),
    "TI": (
        r"TI", "Translation invariance, as a violation: the share of the variance of Φ that the "
        "offset j − i does not explain; about 1 for random numbers. [1:]: without position 0."
    ),
    "mono.": (
        r"mono\.", "Monotonicity within so many offsets, or all, as a violation: the share of "
        "pairs of offsets of which the farther one has the greater proximity; 0.5 for random "
        "numbers and for a constant."
    ),
    "symm.": (
        r"symm\.", "Symmetry, as a violation: how much proximity depends on the direction, forward "
        "or backward; 0.5 for random numbers."
    ),
    "logits": ("logits?", "Attention scores before the softmax."),
    "offset": ("[Oo]ffsets?", "Position of the key less that of the query, j − i."),
    "R²": (
        "R²", "Share of the variance that is explained: 1 is exact, 0 is no better than the mean, "
        "below 0 worse."
    ),
    "masked-LM": (
        "masked-LM", "Masked language modelling: to predict 15 % of the tokens, which are hidden."
    ),
    "next-sentence": (
        "next.sentence", "Whether a second sentence follows the first in the text, or is random."
    ),
    "loss, nats": (
        "nats", "Mean negative log-probability of the right answer, natural logarithm: less is "
        "better; exp of it is the perplexity."
    ),
    "baseline": ("[Bb]aseline", "The score of an answer for which nothing has to be learned."),
    "against": ("against", "Difference from that row; negative is better for a loss."),
    "±": ("±", "Standard error, or over seeds the sample standard deviation, as the page says."),
    "step": ("steps?", "An update of the parameters, by one batch."),
    "seed": ("seeds?", "Number that the random choices of a run start from."),
    "points": ("points", "Hundredths: an accuracy of 0.85 is 85 points."),
    "mcc": ("mcc|matthews", "Matthews' correlation of answers and labels, times 100; 0 is chance."),
    "spear.": (
        r"spear\.|spearman", "Spearman's rank correlation of answers and labels, times 100."
    ),
    "F1": (
        "F1|f1", "Harmonic mean of precision and recall: of the positive label, or of the words of "
        "an answer."
    ),
    "EM": ("EM|exact", "Share of answers that equal one of the expected ones exactly."),
    "σ": ("σ", "Standard deviation."),
    "ψ(m)": ("ψ", "Sum of cos(ω·m) over the frequencies: the dot product of sinusoids m apart."),
    "ω": ("ω", "Frequency of a sinusoid, in radians per position."),
    "turn": ("turn|turning point", "The offset up to which ψ decreases."),
    "W_Q·W_Kᵀ": ("W_Q", "Product of the projections of queries and keys, of a layer or a head."),
    "Chen locality": ("Chen locality", "1 if each position attends to itself alone."),
    "Chen symmetry": ("Chen symmetry", "1 if both directions get equal attention."),
    "forward share": ("forward share", "1 if attention goes to later positions alone, -1 earlier."),
    "rollout": ("[Rr]ollout", "Share of a token in another after several layers of attention."),
}  # fmt: skip


def terms_in(page: str) -> list[tuple[str, str]]:
    """Return the terms that occur on a page in Markdown, with their definitions."""
    return [
        (term, definition)
        for term, (pattern, definition) in _TERMS.items()
        if re.search(rf"(?<!\w)(?:{pattern})(?!\w)", page)
    ]
