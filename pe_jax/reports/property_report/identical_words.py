"""Identical word probing: attention among copies of one token (paper, 3.1, eq. 5, figure 3)."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import jax
import numpy as np
from ml_collections import ConfigDict

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.models import attention_map
from pe_jax.reports.property_report.measures import (
    Numbers,
    cells,
    columns,
    measure,
    measure_weights,
    standardized,
    two_digits,
)
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject

Quantity: TypeAlias = Literal["logits", "weights"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
HEADS = ("average", "each")  # Whose figures are drawn.

_OF_WEIGHTS = {
    "forward_share": "forward share",
    "chen_locality": "Chen locality",
    "chen_symmetry": "Chen symmetry",
}


def probe(subject: Subject, settings: Settings, what: Quantity) -> jax.Array:
    """Ā `[H, L, L]` of one layer, the mean over random words: logits or weights.

    Several parts of a report use the same Ā: it is measured once.
    """
    found = settings.probes.setdefault(subject, {})
    if what not in found:
        found[what] = _probe(subject, settings.config, what)
    return found[what]


def _probe(subject: Subject, config: ConfigDict, what: Quantity) -> jax.Array:
    assert subject.model is not None and subject.words is not None
    if not len(subject.words):
        raise ValueError(f"{subject.name} has no whole words in its vocabulary to probe with.")
    draw = np.random.default_rng(config.seed)
    words = draw.choice(subject.words, _count(subject, config), replace=False).astype(np.int32)
    length = min(config.length, subject.length)
    attend = attention_map(subject.model, layer=config.layer, what=what)
    # Bounds the memory of a batch's logits, and of the [L, L, d] that some encodings make.
    batch = max(1, min(16, 2**25 // (length**2 * subject.model.num_heads)))
    return properties.identical_words(attend, subject.params, words, length=length, batch=batch)


def _count(subject: Subject, config: ConfigDict) -> int:
    """How many words are drawn: `config.words`, or all of a smaller vocabulary."""
    return 0 if subject.words is None else min(config.words, len(subject.words))


def words(subjects: list[Subject], settings: Settings) -> Section | None:
    """Properties of Ā, averaged over the heads and by head, and of the attention weights."""
    subjects = [subject for subject in subjects if subject.model]
    if not subjects:
        return None
    config = settings.config
    numbers: Json = {}
    panels = []
    for subject in subjects:
        logits = np.asarray(probe(subject, settings, "logits"))
        weights = np.asarray(probe(subject, settings, "weights"))
        shown = weights if config.attention == "weights" else logits
        numbers[subject.name] = {
            "words": _count(subject, config),
            "spread": float(shown.mean(0).std()),
            "average": _both(shown.mean(0), weights.mean(0), settings),
            "heads": [_both(*pair, settings) for pair in zip(shown, weights, strict=True)],
        }
        if config.heads == "each":
            panels += [_panel(f"{subject.name}, head {h}", phi) for h, phi in enumerate(shown)]
        else:
            panels.append(_panel(subject.name, shown.mean(0)))
    path = figures.matrix_grid(
        panels,
        settings.figure("figure3_words"),
        title=f"Attention {config.attention} among identical words, layer {config.layer}",
        label=f"{config.attention} − mean, in standard deviations σ",
        limits=(-3.0, 3.0),
        vector=config.vector,
    )
    used = min(entry["words"] for entry in numbers.values())
    names = columns(settings.windows) | _OF_WEIGHTS
    lines = [
        f"Copies of one word fill the input; attention {config.attention} of layer {config.layer},",
        f"averaged over {used} random words and the heads. The violations are of that matrix;",
        "forward share (-1 to 1), locality and symmetry (Chen et al. 2023, 1 = it holds) are of",
        "the softmaxed weights. By head: words.json.",
        "",
        *table(
            ["model", *names.values()],
            [[name, *cells(found["average"], list(names))] for name, found in numbers.items()],
        ),
    ]
    return Section("Identical words", numbers, lines, [path])


def _both(phi: np.ndarray, weights: np.ndarray, settings: Settings) -> Numbers:
    return measure(phi, settings.windows) | measure_weights(weights)


def _panel(title: str, phi: np.ndarray) -> figures.Panel:
    shown = standardized(phi)
    spread = f"σ = {two_digits(phi.std())}" if shown.any() else "constant"
    ends = (0, len(phi) - 1)
    return figures.Panel(f"{title}\n{spread}", shown, *ends, "query position", "key position")
