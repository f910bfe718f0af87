"""The position probe: can the position be read off a token's hidden state, and how deep?"""

from __future__ import annotations

import jax
import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.properties import Probe, Tokens
from pe_jax.reports.property_report.hidden import Hidden, hidden
from pe_jax.reports.property_report.section import Section, Settings, for_json
from pe_jax.reports.property_report.subjects import Subject

_TOKENS = 2**14  # Of all texts together, at most: all layers are in memory at a time.
_LEAST = 4  # Texts to train on, choose by and test on.
_EVIDENCE = 0.1  # An R² below it says nothing that could decay.


def position_probe(subjects: list[Subject], settings: Settings) -> Section | None:
    """R² and errors in every layer, of a linear map and of a small network."""
    subjects = [subject for subject in subjects if subject.model]
    if not subjects:
        return None
    numbers: Json = {}
    rows = []
    curves: dict[str, dict[str, np.ndarray]] = {"linear": {}, "network": {}}
    for subject in subjects:
        found = hidden(subject, settings)
        train, choose, test = split(found, settings.config.seed)
        probes = {
            "linear": properties.linear_probe(train, choose, test, ridge=settings.config.ridge),
            "network": properties.mlp_probe(
                jax.random.key(settings.config.seed), train, choose, test
            ),
        }
        length = len(found.positions)
        guess = float(np.abs(test.positions - test.positions.mean()).mean())
        numbers[subject.name] = {
            "texts": found.source,
            "positions": length,
            "tokens": [len(one.positions) for one in (train, choose, test)],
            "error_of_a_guess": guess,
            **{name: _listed(probe) for name, probe in probes.items()},
        }
        for name, probe in probes.items():
            curves[name][subject.name] = probe.r2
            rows.append([subject.name, name, *_row(probe, length)])
    panels = [
        figures.CurvePanel(
            f"R² on other texts, {probe}",
            "layers passed",
            {name: figures.Line(np.arange(len(r2)), r2) for name, r2 in curve.items()},
        )
        for probe, curve in curves.items()
    ]
    path = figures.model_curves(
        panels,
        settings.figure("position_probe"),
        title="Position read off a token's hidden state",
        vector=settings.config.vector,
    )
    lines = [
        "The position of a token predicted from its hidden state after 0 layers (what enters the",
        "first), 1, 2, … (Haviv et al., 2022), by ridge regression and by a network of one hidden",
        "layer: trained on half of the texts, penalty and steps chosen on a quarter, R² (guessing",
        "the mean: 0) and mean absolute error of the last quarter. Decay: R² after all layers over",
        "the best. After each layer: position_probe.json.",
        "",
        *table(
            [
                "model", "probe", "R², input", "best R²", "layers", "error, positions",
                "of length", "R², last", "decay",
            ],
            rows,
        ),
    ]  # fmt: skip
    return Section("Position probe", numbers, lines, [path])


def split(found: Hidden, seed: int) -> tuple[Tokens, Tokens, Tokens]:
    """Tokens of half of the texts, of a quarter and of another, drawn at random; where there are
    many texts, some tokens of each.

    Raises:
      ValueError: for fewer than four texts.
    """
    _, count, length, _ = found.states.shape
    if count < _LEAST:
        raise ValueError(
            f"The position probe needs {_LEAST} texts, got {count}: raise config.texts, or give "
            "more text with --config.text."
        )
    rng = np.random.default_rng(seed)
    texts = rng.permutation(count)
    kept = min(length, max(1, _TOKENS // count))
    at = np.argsort(rng.random((count, length)), axis=1)[:, :kept]  # Different in each text.

    def tokens(texts: np.ndarray) -> Tokens:
        each = texts[:, None], at[texts]
        states = np.stack([layer[each].reshape(-1, layer.shape[-1]) for layer in found.states])
        return Tokens(states, found.positions[at[texts]].reshape(-1))

    first, second, third = np.split(texts, [count // 2, count // 2 + count // 4])
    return tokens(first), tokens(second), tokens(third)


def _row(probe: Probe, length: int) -> list[str]:
    if np.isnan(probe.r2).all():
        return ["–"] * 7
    best = int(np.nanargmax(probe.r2))
    error = probe.mean_absolute_error[best]
    decay = probe.r2[-1] / probe.r2[best] if probe.r2[best] > _EVIDENCE else np.nan
    return [
        f"{probe.r2[0]:.3f}",
        f"{probe.r2[best]:.3f}",
        str(best),
        f"{error:.1f}",
        f"{100 * error / length:.1f} %",
        f"{probe.r2[-1]:.3f}",
        "–" if np.isnan(decay) else f"{decay:.2f}",
    ]


def _listed(probe: Probe) -> Json:
    return {name: for_json(values) for name, values in probe._asdict().items()}
