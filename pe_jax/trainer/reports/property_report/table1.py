"""Table 1 of the paper, generated: formula, parameters and properties of every encoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from pe_jax import properties
from pe_jax.common.files import Json
from pe_jax.encodings import Metadata, PositionEncoding, parameter_count
from pe_jax.encodings.parameters import bind_params
from pe_jax.encodings.parser import without_options
from pe_jax.models import preset
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report import render
from pe_jax.trainer.reports.property_report.logits import (
    attention_among_copies,
    violations_by_layer,
)
from pe_jax.trainer.reports.property_report.matrices import Numbers, average, violations
from pe_jax.trainer.reports.property_report.render import Findings
from pe_jax.trainer.reports.property_report.subjects import (
    Component,
    MeasuredModel,
    from_name,
)
from pe_jax.trainer.reports.tables import Row, Value

_MATRICES = ("vectors", "words", "kernel")
_HEADINGS = ("TI", "mono. {config.table_window}", "mono. all", "symm.")
# Translation invariance, monotonicity and symmetry by table 1 of the paper; † means observed, not
# derived.
_PAPER = {
    "learned_absolute": "nearly†, locally†, nearly†",
    "sinusoidal_absolute": "yes, locally, yes",
    "learnable_sinusoidal_absolute": "yes, locally†, yes",
    "sinusoidal_concatenated": "yes, locally, yes",
    "learned_relative": "yes, locally†, no",
    "sinusoidal_relative": "yes, locally, no",
    "learnable_sinusoidal_relative": "yes, locally†, no",
}


@render.part(
    "Table 1, generated",
    lambda findings, config: (
        f"Sizes before training: {config.size} (D = {preset(config.size).hidden_size}, "
        f"d = {preset(config.size).head_size}), length {config.length}; mean of {config.seeds} "
        "random models. Violations by P·Pᵀ (plain), by the logits of identical words, averaged "
        f"over heads, in layer {config.layer} (Ā), and by the offset kernel, means over heads "
        "and layers (Φ): 0 = the property holds; 0 without decimals is exact; a dash: there is "
        "no such matrix, or it has one side only. S(ω, x) = […, sin(ω_i x), cos(ω_i x), …], "
        "where x is a position, m an offset, clipped to ±max_distance. mono. is "
        "monotonicity, 0.5 = no order; ψ decreases up to the offset where the dot product of "
        "two vectors turns. The paper judges absolute encodings by P·Pᵀ, relative ones by what "
        "they do in attention."
    ),
    [
        "encoding",
        "position vectors",
        "parameters",
        ("number", ",d"),
        ("ψ decreases up to", "d"),
        *(
            (f"{matrix}{heading}", ".3f")
            for matrix in ("", "Ā ", "Φ ")
            for heading in _HEADINGS
        ),
        "paper: TI, mono., symm.",
    ],
    needs="untrained encodings (--encodings)",
    is_joint=True,
)
def table1(
    subjects: Sequence[MeasuredModel], config: PropertiesConfig, out: Path
) -> Findings:
    """Measure untrained encodings, means over `config.seeds`, and below each its trained runs."""
    findings = Findings()
    untrained = [subject.encoding for subject in subjects if subject.untrained]
    for encoding in render.with_progress(untrained, "Table 1", "encoding"):
        fresh = [from_name(encoding.name, config, seed) for seed in range(config.seeds)]
        each = [_violations(subject, config) for subject in fresh]
        before = {
            matrix: average([numbers[matrix] for numbers in each]) for matrix in each[0]
        }
        metadata = _metadata(encoding)
        count = parameter_count(encoding, fresh[0].bert.num_layers)
        turn = _turn(fresh[0], config)
        trained: Json = {}
        findings.numbers[encoding.name] = {
            "formula": metadata.formula,
            "parameters": count,
            "turning_point": turn,
            "untrained": before,
            "trained": trained,
        }
        row: Row = [
            encoding.name,
            metadata.formula,
            metadata.parameters,
            count,
            turn,
            *_cells(before, config),
            _PAPER.get(without_options(encoding.name), "–"),
        ]
        findings.rows.append(row)
        for run in subjects:
            if not run.step or run.encoding.name != encoding.name:
                continue
            after = _violations(run, config)
            turn = _turn(run, config)
            trained[run.name] = {"turning_point": turn, **after}
            row = [
                f"↳ {run.name}, step {run.step:,}",
                "",  # The row of the encoding shows the rest.
                "",
                parameter_count(run.encoding, run.bert.num_layers),
                turn,
                *_cells(after, config),
                "",
            ]
            findings.rows.append(row)
    return findings


def _metadata(encoding: PositionEncoding) -> Metadata:
    """Return the metadata of one encoding, or of several added up."""
    parts = []
    for part in encoding._all_parts:
        parts.append(part.metadata or Metadata(formula=part.name, parameters=""))
    if len(parts) == 1:
        return parts[0]
    formula = " + ".join(metadata.formula for metadata in parts)
    parameters = " + ".join(metadata.parameters for metadata in parts)
    return Metadata(formula=formula or "–", parameters=parameters or "0")


def _turn(subject: MeasuredModel, config: PropertiesConfig) -> int | None:
    """Return the turning point of ψ; None for an encoding without frequencies."""
    component = _single(subject)
    if component is None or component.frequencies is None:
        return None
    psi = properties.psi(component.frequencies, np.arange(config.length))
    return int(properties.turning_point(psi))


def _violations(subject: MeasuredModel, config: PropertiesConfig) -> dict[str, Numbers]:
    """Return the violations by P·Pᵀ, if there are vectors, by identical words and by the kernel."""
    window = config.table_window
    component = _single(subject)
    by_matrix: dict[str, Numbers] = {}
    if component is not None and component.metadata.vectors:
        x = component.positions(config.length)
        phi: jax.Array | properties.Toeplitz
        if component.frequencies is None:
            phi = properties.proximity(component.vectors(x))
        else:  # Measured at consecutive positions.
            psi = properties.psi(component.frequencies, np.arange(len(x)))
            phi = properties.Toeplitz(psi=psi)
        by_matrix["vectors"] = violations(phi, [window])
    mean = attention_among_copies(subject, config, "logits").mean(0)
    by_matrix["words"] = violations(mean, [window])
    layers = violations_by_layer(subject, config, [window])
    by_matrix["kernel"] = average([average(heads) for heads in layers])
    return by_matrix


def _single(subject: MeasuredModel) -> Component | None:
    """Return the component that is the whole encoding; several have no single P·Pᵀ."""
    parts = bind_params(subject.encoding, subject.position)
    components = subject.components()
    return components[0] if len(components) == len(parts) == 1 else None


def _cells(by_matrix: dict[str, Numbers], config: PropertiesConfig) -> list[Value]:
    local = f"monotonicity_{config.table_window}"
    names = ("translation_invariance", local, "monotonicity_all", "symmetry")
    cells: list[Value] = []
    for matrix in _MATRICES:
        numbers = by_matrix.get(matrix, {})
        cells += map(numbers.get, names)
    return ["0" if cell == 0 else cell for cell in cells]  # Without decimals: exact.
