"""Table 1 of the paper, generated: formula, parameters and properties of every encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pe_jax import properties
from pe_jax.configs.reports import PropertiesConfig
from pe_jax.encodings import Card, PositionEncoding, parameter_count
from pe_jax.files import Json
from pe_jax.models import preset
from pe_jax.reports.property_report import render
from pe_jax.reports.property_report.offset_kernels import violations_by_layer
from pe_jax.reports.property_report.render import Findings, Settings, Table
from pe_jax.reports.property_report.subjects import Component, Subject, from_name
from pe_jax.reports.property_report.violations import Numbers, average, violations
from pe_jax.reports.property_report.words import attention_among_copies
from pe_jax.reports.tables import Cell

_MATRICES = ("vectors", "words", "kernel")
_SHOWN = ("translation_invariance", "monotonicity_local", "monotonicity_all", "symmetry")


class _Measured(NamedTuple):
    """Parameters, turning point of ψ and violations by matrix, of one encoding."""

    parameters: int
    turning_point: int | None
    violations: dict[str, Numbers]


def _about_table(findings: Findings, config: PropertiesConfig) -> str:
    del findings
    sizes = preset(config.size)
    return (
        f"Sizes before training: {config.size} (D = {sizes.hidden_size}, d = {sizes.head_size}), "
        f"length {config.length}; mean of {config.seeds} random models. "
        "Violations by P·Pᵀ (plain), by the logits of identical words, averaged over heads, in "
        f"layer {config.layer} (Ā), and by the offset kernel, means over heads and layers (Φ): 0 = "
        "the property holds; 0 without decimals is exact; a dash: there is no such matrix, or it "
        "has one side only. S(ω, x) = […, sin(ω_i x), cos(ω_i x), …], where x is a position, m an "
        "offset, clipped where there is a clip. mono. is monotonicity, 0.5 = no order; ψ decreases "
        "up to the offset where the dot product of two vectors turns. "
        "The paper judges absolute encodings by P·Pᵀ, relative ones by what they do in attention."
    )


_HEADINGS = ("TI", "mono. {config.table_window}", "mono. all", "symm.")


@render.part_of_all(
    "Table 1, generated",
    "untrained encodings (--encodings)",
    Table(
        _about_table,
        ["encoding", "position vectors", "parameters", ("number", ",d"),
         ("ψ decreases up to", "d"),
         *((f"{matrix}{heading}", ".3f") for matrix in ("", "Ā ", "Φ ") for heading in _HEADINGS),
         "paper: TI, mono., symm."],
    ),
)  # fmt: skip
def table1(subjects: Sequence[Subject], settings: Settings) -> Findings:
    """Measure the untrained encodings among the subjects, and below each the runs that trained it.

    Before training, the numbers are means over `config.seeds` random models.
    """
    config = settings.config
    findings = Findings()
    for encoding in [subject.encoding for subject in subjects if subject.untrained]:
        fresh = [from_name(encoding.name, config, seed) for seed in range(config.seeds)]
        measured, card = _measure(fresh, settings), _card(encoding)
        trained: Json = {}
        numbers = {
            "formula": card.formula,
            "parameters": measured.parameters,
            "turning_point": measured.turning_point,
            "untrained": measured.violations,
            "trained": trained,
        }
        findings.numbers[encoding.name] = numbers
        findings.rows.append(_row(encoding.name, card, measured))
        for run in subjects:
            if run.step and run.encoding.name == encoding.name:
                after = _measure([run], settings)
                trained[run.name] = {"turning_point": after.turning_point, **after.violations}
                findings.rows.append(_row(f"↳ {run.name}, step {run.step:,}", None, after))
    return findings


def _card(encoding: PositionEncoding) -> Card:
    """Return the card of one encoding, or of several added up."""
    cards = [part.card or Card(part.name, parameters="") for part in encoding.parts]
    if len(cards) == 1:
        return cards[0]
    formula = " + ".join(card.formula for card in cards) or "–"
    return Card(formula, parameters=" + ".join(card.parameters for card in cards) or "0")


def _measure(subjects: Sequence[Subject], settings: Settings) -> _Measured:
    """Return the mean over subjects of one encoding, with the turning point of the first."""
    first, length = subjects[0], settings.config.length
    by_subject = [_violations(subject, settings) for subject in subjects]
    means = {
        matrix: average([numbers[matrix] for numbers in by_subject]) for matrix in by_subject[0]
    }
    component, turn = _single(first), None
    if component is not None and component.frequencies is not None:
        psi = properties.psi(component.frequencies, np.arange(length))
        turn = int(properties.turning_point(psi))
    layers = first.model.num_layers if first.model else 1
    return _Measured(parameter_count(first.encoding, layers), turn, means)


def _violations(subject: Subject, settings: Settings) -> dict[str, Numbers]:
    """Return the violations by P·Pᵀ, if there are vectors, by identical words and by the offset
    kernel."""
    window = settings.config.table_window
    component = _single(subject)
    by_matrix: dict[str, Numbers] = {}
    if component is not None and component.has_vectors:
        x = component.positions(settings.config.length)
        if component.frequencies is None:
            phi = properties.proximity(component.vectors(x))
        else:  # Measured at consecutive positions.
            phi = properties.Toeplitz(properties.psi(component.frequencies, np.arange(len(x))))
        by_matrix["vectors"] = violations(phi, [window])
    mean = attention_among_copies(subject, settings, "logits").mean(0)
    by_matrix["words"] = violations(mean, [window])
    layers = violations_by_layer(subject, settings, [window])
    by_matrix["kernel"] = average([average(heads) for heads in layers])
    local = f"monotonicity_{window}"
    return {
        matrix: {"monotonicity_local": numbers[local], **numbers} if local in numbers else numbers
        for matrix, numbers in by_matrix.items()
    }


def _single(subject: Subject) -> Component | None:
    """Return the component that is the whole encoding; several have no single P·Pᵀ."""
    components, parts = subject.components(), subject.encoding.bind(subject.position)
    return components[0] if len(components) == len(parts) == 1 else None


def _row(name: str, card: Card | None, measured: _Measured) -> list[Cell]:
    """Return a row of the table; that of a run leaves out what its encoding's row shows."""
    cells: list[Cell] = []
    for matrix in _MATRICES:
        numbers = measured.violations.get(matrix, {})
        # 0 without decimals is exact.
        cells += ["0" if numbers.get(name) == 0 else numbers.get(name) for name in _SHOWN]
    return [
        name,
        card.formula if card else "",
        card.parameters if card else "",
        measured.parameters,
        measured.turning_point,
        *cells,
        card.paper if card else "",
    ]
