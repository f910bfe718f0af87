"""What a shift of all positions changes: hidden states, and the masked-LM loss of those that have
the head (Sinha et al. 2022)."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.models import Bert, BertConfig
from pe_jax.properties import Estimate
from pe_jax.properties.shift import Score
from pe_jax.reports.property_report.measures import signed
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import (
    Texts,
    batch_size,
    masked_lm,
    texts_of_length,
    token_scores,
)

_FARTHEST = 16  # Shifts where nothing limits them, in lengths of the texts.


def shift(subjects: list[Subject], settings: Settings) -> Section | None:
    """Loss, accuracy and states of texts of half the longest input, at positions from 0, 1, 2, 4
    and so on."""
    subjects = [subject for subject in subjects if subject.model]
    if not subjects:
        return None
    numbers: Json = {}
    rows, refused = [], []
    for subject in subjects:
        length = _length(subject, settings)
        if reason := _refusal(subject, length):
            refused.append(f"{subject.name} is left out: {reason}")
            continue
        numbers[subject.name] = found = _measure(subject, length, settings)
        rows += _rows(subject.name, found)
    if not numbers:
        return None
    lines = [
        "All positions of a text shifted by k: texts of half the longest input, so that a table",
        "has positions to shift to, up to its last; other encodings up to 16 times the text. Loss",
        "and accuracy of the masked tokens, and their change against k = 0, ± standard error over",
        "texts, where a model has the head. States: √(Σ‖h′ − h‖² / Σ‖h − mean‖²) of the tokens in",
        "the last layer, 0 = no change. Shown are the largest shifts up to half the text, the",
        "text, and all; every shift: shift.json.",
        *refused,
        "",
        *table(
            ["model", "L", "shift", "loss, nats", "change", "accuracy", "change", "states"], rows
        ),
    ]
    return Section("Shift of all positions", numbers, lines, [_figure(numbers, settings)])


def _length(subject: Subject, settings: Settings) -> int:
    """Half the longest input, at most `config.length`; real texts have three tokens."""
    return max(3, min(settings.config.length, subject.length // 2))


def _refusal(subject: Subject, length: int) -> str:
    """Why an encoding takes no positions that begin elsewhere; empty if it does."""
    model, tokens = subject.model, np.zeros((1, length), np.int32)
    assert model is not None
    run = lambda params: Bert(model).apply(
        {"params": params}, tokens, positions=range(1, length + 1)
    )
    try:
        jax.eval_shape(run, subject.params)
    except ValueError as error:
        return str(error)
    return ""


def _shifts(subject: Subject, length: int) -> np.ndarray:
    """0, powers of two, and the last that an encoding with a limit has."""
    longest = subject.encoding.longest
    last = _FARTHEST * length if longest is None else max(0, longest - length)
    powers = [2**i for i in range(last.bit_length())]
    return np.unique([0, *powers, last])


def _measure(subject: Subject, length: int, settings: Settings) -> Json:
    read = texts_of_length(subject, settings.config, length)
    shifts = _shifts(subject, length)
    assert subject.model is not None
    states = _states(subject.model)
    rows = properties.shift_curve(
        states,
        subject.params,
        read.tokens,
        shifts,
        length=length,
        batch=batch_size(subject.model, length),
    )
    found: Json = {
        "length": length,
        "texts": len(read.tokens),
        "shifts": shifts.tolist(),
        "states": np.asarray(rows).mean(1).tolist(),
    }
    if masked_lm(subject):
        found |= _scores(subject, read, shifts, length)
    return found


@functools.cache  # The same function for the same model, so that it is compiled once.
def _states(config: BertConfig) -> Score:
    """How far the last states are from those at positions from 0, by text."""

    def change(params, tokens, positions):
        run = lambda at: Bert(config).apply({"params": params}, tokens, positions=at)
        return properties.state_change(run(jnp.arange(len(positions))), run(positions))

    return change


@functools.cache
def _masked(config: BertConfig) -> Score:
    """Loss and accuracy of the masked tokens, by text."""

    def mean(params, inputs, positions):
        masked, targets, where = inputs
        each = token_scores(config, params, masked, targets, positions)
        return [jnp.where(where, one, 0).sum(-1) / where.sum(-1) for one in each]

    return mean


def _scores(subject: Subject, read: Texts, shifts: np.ndarray, length: int) -> Json:
    assert subject.model is not None and subject.heads is not None
    each = properties.shift_curve(
        _masked(subject.model),
        subject.heads,
        (read.masked, read.tokens, read.where),
        shifts,
        length=length,
        batch=batch_size(subject.model, length),
    )
    found: Json = {}
    for name, values in zip(("loss", "accuracy"), each, strict=True):
        change = properties.over_texts(jnp.swapaxes(values - values[0], 0, 1))
        found[name] = np.asarray(values).mean(1).tolist()
        found[f"{name}_change"] = np.asarray(change.mean).tolist()
        found[f"{name}_error"] = np.asarray(change.error).tolist()
    return found


def _rows(name: str, found: Json) -> list[list[str]]:
    shifts, length = found["shifts"], found["length"]
    below = lambda most: max(i for i, k in enumerate(shifts) if k <= most)
    chosen = sorted({0, below(length // 2), below(length), len(shifts) - 1})
    scored = "loss" in found

    def cells(i: int) -> list[str]:
        if not scored:
            return ["–"] * 4
        by_loss, by_accuracy = (
            Estimate(found[f"{one}_change"][i], found[f"{one}_error"][i])
            for one in ("loss", "accuracy")
        )
        return [
            f"{found['loss'][i]:.3f}",
            signed(by_loss) if i else "–",
            f"{found['accuracy'][i]:.1%}",
            signed(by_accuracy, 100, 1) if i else "–",
        ]

    return [
        [name, str(length), str(shifts[i]), *cells(i), f"{found['states'][i]:.2g}"] for i in chosen
    ]


def _figure(numbers: Json, settings: Settings) -> Path:
    def lines(name: str, error: str = "") -> dict[str, figures.Line]:
        return {
            model: figures.Line(*(np.asarray(found[key]) for key in ("shifts", name, error) if key))
            for model, found in numbers.items()
            if name in found
        }

    label = "shift k of all positions"
    panels = [
        figures.CurvePanel(title, label, lines(*names), least)
        for title, least, *names in (
            ("change of the masked-LM loss, nats", 0.1, "loss_change", "loss_error"),
            ("masked-LM accuracy", 0.05, "accuracy"),
            ("change of the last hidden states", 0.1, "states"),
        )
    ]
    return figures.model_curves(
        [panel for panel in panels if panel.lines],
        settings.figure("shift"),
        title="All positions shifted by k",
        powers=True,
        vector=settings.config.vector,
    )
