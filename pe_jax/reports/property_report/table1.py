"""Table 1 of the paper, generated: formula, parameters and properties of every single encoding."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pe_jax import encodings, properties
from pe_jax.console.markdown import table
from pe_jax.reports.property_report.identical_words import probe
from pe_jax.reports.property_report.measures import measure
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject, from_name, position_vectors


class Form(NamedTuple):
    """What an encoding's position vectors are, how many numbers they take, what the paper says.

    `paper` is translation invariance, monotonicity, symmetry; † means observed, not derived.
    """

    formula: str
    parameters: str
    paper: str


FORMS: dict[str, Form] = {
    "none": Form("–", "0", "–"),
    "learned_absolute": Form("P_x free", "L·D", "nearly†, locally†, nearly†"),
    "sinusoidal_absolute": Form("S(ω, x), ω_i = 10000^(−2i/D)", "0", "yes, locally, yes"),
    "learnable_sinusoidal_absolute": Form("S(ω, x), ω free", "D/2", "yes, locally†, yes"),
    "learned_relative": Form("P_m free", "(2·clip+1)·d", "yes, locally†, no"),
    "sinusoidal_relative": Form("S(ω, m), ω_i = 10000^(−2i/d)", "0", "yes, locally, no"),
    "learnable_sinusoidal_relative": Form("S(ω, m), ω free", "d/2", "yes, locally†, no"),
}
_SHOWN = ("translation_invariance", "monotonicity_local", "monotonicity_all", "symmetry")
_HEADINGS = ("TI", "mono. {}", "mono. all", "symm.")


def table1(subjects: list[Subject], settings: Settings) -> Section | None:
    """The untrained encodings among the subjects, and below each the runs that trained it.

    Twice: by P·Pᵀ and by the attention among identical words. Before training, the mean over
    `config.seeds` random models.
    """
    config = settings.config
    numbers: dict[str, Any] = {}
    rows: list[list[str]] = []
    for encoding in [subject.encoding for subject in subjects if subject.untrained]:
        form = _form(encoding)
        fresh = [from_name(encoding.name, config, seed) for seed in range(config.seeds)]
        found = [_both(one, settings) for one in fresh]
        mean = {
            matrix: {k: float(np.mean([one[matrix][k] for one in found])) for k in found[0][matrix]}
            for matrix in found[0]
        }
        count, turn = encodings.parameter_count(encoding), _turning_point(fresh[0], config.length)
        numbers[encoding.name] = {
            "formula": form.formula,
            "parameters": count,
            "turning_point": turn,
            "untrained": mean,
            "trained": {},
        }
        rows.append(_row(encoding.name, form, count, turn, mean))
        for run in subjects:
            if run.step and run.encoding.name == encoding.name:
                mine, turn = _both(run, settings), _turning_point(run, config.length)
                numbers[encoding.name]["trained"][run.name] = {"turning_point": turn, **mine}
                name = f"↳ {run.name}, step {run.step:,}"
                rows.append(_row(name, None, encodings.parameter_count(run.encoding), turn, mine))
    if not rows:
        return None
    model = fresh[0].model
    assert model is not None
    headings = [h.format(config.table_window) for h in _HEADINGS]
    lines = [
        f"Sizes before training: {config.size} (D = {model.hidden_size}, d = {model.head_size}), "
        f"length {config.length}, clip {config.clip}; mean of {config.seeds} random models.",
        "Violations by P·Pᵀ (plain) and by the logits of identical words (Ā): 0 = the property",
        "holds; 0 without decimals is exact. S(ω, x) = […, sin(ω_i x), cos(ω_i x), …], x being",
        "a position, m an offset clipped to ±clip. mono. is monotonicity, 0.5 = no order; ψ",
        "falls to the offset up to which the dot product of two vectors falls. The paper judges",
        "absolute encodings by P·Pᵀ and relative ones by what they do in attention.",
        "",
        *table(
            ["encoding", "position vectors", "parameters", "number", "ψ falls to",
             *headings, *(f"Ā {h}" for h in headings), "paper: TI, mono., symm."],
            rows,
        ),
    ]  # fmt: skip
    return Section("Table 1, generated", numbers, lines)


def _form(encoding: encodings.PositionEncoding) -> Form:
    """Of one encoding, or of several added up."""
    forms = [FORMS[part.name] for part in encoding.parts or (encoding,)]
    if len(forms) == 1:
        return forms[0]
    return Form(" + ".join(f.formula for f in forms), " + ".join(f.parameters for f in forms), "–")


def _both(subject: Subject, settings: Settings) -> dict[str, dict[str, float]]:
    """The properties by P·Pᵀ, where there are vectors, and by identical words."""
    window = settings.config.table_window
    found = {}
    single = [] if subject.encoding.parts else subject.parts()  # Of several there is no one P·Pᵀ.
    for part, params in single:
        x = subject.span(part, settings.config.length)
        found["vectors"] = _named(_proximity(part, params, x), window)
    found["words"] = _named(probe(subject, settings, "logits").mean(0), window)
    return found


def _named(phi, window: int) -> dict[str, float]:
    measured = measure(phi, [window])
    return {"monotonicity_local": measured[f"monotonicity_{window}"], **measured}


def _proximity(part: encodings.PositionEncoding, params, x: np.ndarray):
    """P·Pᵀ; of waves by ψ, their closed form, in which equal offsets are equal to the last bit."""
    if part.frequencies is None:
        return properties.proximity(position_vectors(part, params, x))
    apart = np.abs(x[:, None] - x)
    return properties.psi(part.frequencies(params), np.arange(apart.max() + 1))[jnp.asarray(apart)]


def _turning_point(subject: Subject, length: int) -> int | None:
    for part, params in [] if subject.encoding.parts else subject.parts():
        if part.frequencies is not None:
            values = properties.psi(part.frequencies(params), np.arange(length))
            return int(properties.turning_point(values))
    return None


def _row(name: str, form: Form | None, count: int, turn: int | None, found) -> list[str]:
    cell = lambda v: "0" if v == 0 else f"{v:.3f}"
    some = lambda matrix: [cell(found[matrix][k]) if matrix in found else "–" for k in _SHOWN]
    return [
        name,
        form.formula if form else "",
        form.parameters if form else "",
        f"{count:,}",
        "–" if turn is None else str(turn),
        *some("vectors"),
        *some("words"),
        form.paper if form else "",
    ]
