"""Table 1 of the paper, generated: formula, parameters and properties of every encoding."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from pe_jax import properties
from pe_jax.console.markdown import table
from pe_jax.encodings import Card, Placed, Stack, parameter_count
from pe_jax.files import Json
from pe_jax.models import BertConfig
from pe_jax.reports.property_report.identical_words import probe
from pe_jax.reports.property_report.measures import Numbers, measure
from pe_jax.reports.property_report.offset_kernels import average, layer_numbers
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject, from_name, position_vectors

_SHOWN = ("translation_invariance", "monotonicity_local", "monotonicity_all", "symmetry")
_HEADINGS = ("TI", "mono. {}", "mono. all", "symm.")


def table1(subjects: list[Subject], settings: Settings) -> Section | None:
    """The untrained encodings among the subjects, and below each the runs that trained it.

    Measured by P·Pᵀ where there are vectors, by the attention among identical words, and by the
    offset kernel. Before training, the mean over `config.seeds` random models.
    """
    config = settings.config
    numbers: Json = {}
    rows: list[list[str]] = []
    for encoding in [subject.encoding for subject in subjects if subject.untrained]:
        fresh = [from_name(encoding.name, config, seed) for seed in range(config.seeds)]
        measured = _measured(fresh, settings)
        card = _card(encoding)
        numbers[encoding.name] = {
            "formula": card.formula,
            "parameters": measured.parameters,
            "turning_point": measured.turning_point,
            "untrained": measured.properties,
            "trained": {},
        }
        rows.append(_row(encoding.name, card, measured))
        for run in subjects:
            if run.step and run.encoding.name == encoding.name:
                mine = _measured([run], settings)
                numbers[encoding.name]["trained"][run.name] = {
                    "turning_point": mine.turning_point,
                    **mine.properties,
                }
                rows.append(_row(f"↳ {run.name}, step {run.step:,}", None, mine))
    if not rows:
        return None
    assert fresh[0].model is not None
    return Section("Table 1, generated", numbers, _lines(rows, fresh[0].model, config))


def _lines(rows: list[list[str]], model: BertConfig, config: ConfigDict) -> list[str]:
    headings = [h.format(config.table_window) for h in _HEADINGS]
    return [
        f"Sizes before training: {config.size} (D = {model.hidden_size}, d = {model.head_size}), "
        f"length {config.length}; mean of {config.seeds} random models.",
        "Violations by P·Pᵀ (plain), by the logits of identical words, averaged over heads, in",
        f"layer {config.layer} (Ā), and by the offset kernel, means over heads and layers (Φ): 0 =",
        "the property holds; 0 without decimals is exact; a dash: there is no such matrix, or it",
        "has one side only. S(ω, x) = […, sin(ω_i x), cos(ω_i x), …], where x is a position, m an",
        "offset, clipped where there is a clip. mono. is monotonicity, 0.5 = no order; ψ decreases",
        "up to the offset where the dot product of two vectors turns.",
        "The paper judges absolute encodings by P·Pᵀ, relative ones by what they do in attention.",
        "",
        *table(
            ["encoding", "position vectors", "parameters", "number", "ψ decreases up to",
             *headings, *(f"Ā {h}" for h in headings), *(f"Φ {h}" for h in headings),
             "paper: TI, mono., symm."],
            rows,
        ),
    ]  # fmt: skip


def _card(encoding: Stack) -> Card:
    """The card of one encoding, or of several added up."""
    cards = [part.card or Card(part.name, parameters="") for part in encoding.parts]
    if len(cards) == 1:
        return cards[0]
    formula = " + ".join(card.formula for card in cards) or "–"
    return Card(formula, parameters=" + ".join(card.parameters for card in cards) or "0")


class _Measured(NamedTuple):
    """An encoding, measured: its number of parameters, and its properties by matrix and name."""

    parameters: int
    turning_point: int | None
    properties: dict[str, Numbers]


def _measured(subjects: list[Subject], settings: Settings) -> _Measured:
    """The mean over subjects of one encoding; the turning point of the first."""
    found = [_both(one, settings) for one in subjects]
    mean = {matrix: average([one[matrix] for one in found]) for matrix in found[0]}
    model = subjects[0].model
    layers = model.num_layers if model else 1
    count = parameter_count(subjects[0].encoding, layers)
    return _Measured(count, _turning_point(subjects[0], settings.config.length), mean)


def _both(subject: Subject, settings: Settings) -> dict[str, Numbers]:
    """The properties by P·Pᵀ, if there are vectors, by identical words and by the offset kernel."""
    window = settings.config.table_window
    found: dict[str, Numbers] = {}
    for part in _single(subject):
        if part.card.vectors:
            x = subject.span(part, settings.config.length)
            found["vectors"] = _named(measure(_proximity(part, x), [window]), window)
    found["words"] = _named(measure(probe(subject, settings, "logits").mean(0), [window]), window)
    layers = layer_numbers(subject, settings, (window,))
    found["kernel"] = _named(average([average(heads) for heads in layers]), window)
    return found


def _named(measured: Numbers, window: int) -> Numbers:
    local = measured.get(f"monotonicity_{window}")
    return measured if local is None else {"monotonicity_local": local, **measured}


def _single(subject: Subject) -> list[Placed]:
    """The part that is the whole encoding; several parts have no single P·Pᵀ."""
    placed = subject.encoding.placed(subject.position)
    return placed if len(placed) == 1 else []


def _proximity(part: Placed, x: np.ndarray) -> jax.Array | properties.Toeplitz:
    """P·Pᵀ; for sinusoids, which are measured at consecutive positions, by ψ."""
    if part.card.frequencies is None:
        return properties.proximity(position_vectors(part, part.params, x))
    w = part.card.frequencies(part.params)
    return properties.Toeplitz(properties.psi(w, np.arange(len(x))))


def _turning_point(subject: Subject, length: int) -> int | None:
    for part in _single(subject):
        if part.card.frequencies is not None:
            w = part.card.frequencies(part.params).ravel()
            return int(properties.turning_point(properties.psi(w, np.arange(length))))
    return None


def _row(name: str, card: Card | None, measured: _Measured) -> list[str]:
    """A line of the table; that of a run leaves out what its encoding's line shows."""
    found, turn = measured.properties, measured.turning_point
    cell = lambda v: "0" if v == 0 else f"{v:.3f}"
    some = lambda matrix: [
        cell(found[matrix][k]) if k in found.get(matrix, {}) else "–" for k in _SHOWN
    ]
    return [
        name,
        card.formula if card else "",
        card.parameters if card else "",
        f"{measured.parameters:,}",
        "–" if turn is None else str(turn),
        *some("vectors"),
        *some("words"),
        *some("kernel"),
        card.paper if card else "",
    ]
