"""The positional basis: how much of hidden states the position is, and in which shape, by layer."""

from __future__ import annotations

import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.reports.property_report.hidden import hidden
from pe_jax.reports.property_report.measures import to_unit
from pe_jax.reports.property_report.section import Section, Settings, for_json
from pe_jax.reports.property_report.subjects import Subject

_SHARES = ("position", "context", "residual", "floor")
_SHAPE = ("stable_rank", "dimensions", "relative_norm", "smoothness", "coherence")


def positional_basis(subjects: list[Subject], settings: Settings) -> Section | None:
    """Shares of position, text and the rest in the variance of hidden states, and pos's shape."""
    subjects = [subject for subject in subjects if subject.model]
    if not subjects:
        return None
    numbers: Json = {}
    rows, panels, paths = [], [], []
    for subject in subjects:
        found = hidden(subject, settings)
        # A layer at a time: all of them may not fit into memory.
        layers = [properties.positional_basis(np.asarray(one)) for one in found.states]
        numbers[subject.name] = {
            "texts": found.source,
            "count": found.states.shape[1],
            "layers": [_listed(one) for one in layers],
        }
        for i, one in enumerate(layers):
            percent = [f"{100 * float(getattr(one, name)):.1f}" for name in _SHARES]
            rows.append([subject.name, str(i), *percent, *_shape(one)])
        shares = {
            "position": np.array([one.position for one in layers]),
            "text": np.array([one.context for one in layers]),
        }
        panels.append(figures.SharePanel(subject.name, shares))
        grams = [
            figures.Panel(
                _after(i),
                to_unit(np.asarray(one.gram)),
                int(found.positions[0]),
                int(found.positions[-1]),
            )
            for i, one in enumerate(layers)
            if _is_there(one)
        ]
        if grams:
            paths.append(
                figures.matrix_grid(
                    grams,
                    settings.figure(f"positional_basis_gram_{subject.name}"),
                    title=f"Dot products of the positional basis: {subject.name}",
                    label="dot product / mean self-product",
                    limits=(-1.0, 1.0),
                    vector=settings.config.vector,
                )
            )
    path = figures.layer_shares(
        panels,
        settings.figure("positional_basis"),
        title="Shares of the variance of hidden states",
        label="share of the variance; the rest: tokens",
        vector=settings.config.vector,
    )
    counts = " or ".join(dict.fromkeys(str(one["count"]) for one in numbers.values()))
    sources = " and ".join(dict.fromkeys(one["texts"] for one in numbers.values()))
    lines = [
        "Hidden states as mean + position + text + rest (Song & Zhong, 2023) after 0 layers (what",
        f"enters the first), 1, 2, …, of {counts} texts ({sources}). Percentages of",
        "the variance; floor: what was subtracted from position, as the mean of so many texts",
        "keeps of the rest. Then of position, where it is above its floor: its stable rank; the",
        "dimensions that hold 95 % of it; its norm over that of the hidden states; its share in",
        "the ten lowest frequencies; its mean |cos| with texts.",
        "",
        *table(
            [
                "model", "layers", "position %", "text %", "rest %", "floor %", "stable rank",
                "dim. 95 %", "rel. norm", "smooth", "|cos|",
            ],
            rows,
        ),
    ]  # fmt: skip
    return Section("Positional basis", numbers, lines, [path, *paths])


def _after(layers: int) -> str:
    return "input" if not layers else f"after {layers} layer{'s' if layers > 1 else ''}"


def _is_there(one: properties.Basis) -> bool:
    """Whether more than half of the measured pos is not noise."""
    return bool(one.position > one.floor)


def _shape(one: properties.Basis) -> list[str]:
    if not _is_there(one):
        return ["–"] * len(_SHAPE)
    decimals = {"stable_rank": 1, "dimensions": 0}
    return [f"{float(getattr(one, name)):.{decimals.get(name, 2)}f}" for name in _SHAPE]


def _listed(one: properties.Basis) -> Json:
    """All but the matrix."""
    return {name: for_json(value) for name, value in one._asdict().items() if name != "gram"}
