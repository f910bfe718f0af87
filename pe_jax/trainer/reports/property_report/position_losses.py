"""Parts on loss and position: a shift of all positions (Sinha et al. 2022), and the masked-LM loss
by the place of the token."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.common.files import Json
from pe_jax.common.shapes import Bool, Float
from pe_jax.models import Bert, BertConfig
from pe_jax.properties import Estimate
from pe_jax.properties.estimates import Score
from pe_jax.trainer import data, figures
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report import render
from pe_jax.trainer.reports.property_report.render import Figure, Findings
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.property_report.texts import (
    batch_size,
    by_text,
    masked_lm,
    texts,
    token_scores,
)
from pe_jax.trainer.reports.tables import Row
from pe_jax.trainer.training.pytrees import Params

_FARTHEST = 16  # Shifts where nothing limits them, in lengths of the texts.
_SETS = 7  # Sets of places, masked one after the other: about 15 % each.


@render.part(
    "Shift of all positions",
    "All positions of a text shifted by k: texts of half the longest input, so that a table has "
    "positions to shift to, up to its last; other encodings up to 16 times the text. Loss and "
    "accuracy of the masked tokens, and their change against k = 0, ± standard error over texts, "
    "where a model has the head. States: √(Σ‖h′ − h‖² / Σ‖h − mean‖²) of the tokens in the last "
    "layer, 0 = no change. Shown are the largest shifts up to half the text, the text, and all; "
    "every shift: shift.json.",
    [
        "model",
        ("L", "d"),
        ("shift", "d"),
        ("loss, nats", ".3f"),
        ("change", ".3f"),
        ("accuracy", ".1%"),
        ("change", ".1f"),
        ("states", ".2g"),
    ],
)
def shift(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure loss, accuracy and states of half-length texts, at positions from 0, 1, 2, 4, ..."""
    name = subject.name
    # Half the longest input, at most `config.length`; real texts have three tokens.
    length = max(3, min(config.length, subject.length // 2))
    reason = _refusal(subject, length)
    if reason:
        return Findings(notes={f"{name} is left out": [reason.removesuffix(".")]})
    numbers = shift_numbers(subject, length, config)
    curves = []
    shifts = np.asarray(numbers["shifts"])
    for panel, least, key, error_key in (
        ("change of the masked-LM loss, nats", 0.1, "loss_change", "loss_error"),
        ("masked-LM accuracy", 0.05, "accuracy", None),
        ("change of the last hidden states", 0.1, "states", None),
    ):
        if key not in numbers:
            continue
        error = np.asarray(numbers[error_key]) if error_key else None
        curve = figures.Curve(
            panel,
            "shift k of all positions",
            *subject.label,
            x=shifts,
            y=np.asarray(numbers[key]),
            error=error,
            least=least,
        )
        curves.append(curve)
    title = "What changes when all positions are shifted by k"
    figure = Figure("shift", figures.model_curves, curves, title=title, powers=True)
    return Findings({name: numbers}, _shift_rows(name, numbers), [figure])


def _refusal(subject: MeasuredModel, length: int) -> str:
    """Return why an encoding takes no positions that begin elsewhere; empty if it does."""
    model = Bert(subject.bert)
    tokens = np.zeros((1, length), np.int32)

    def apply(params: Params) -> object:
        return model.apply({"params": params}, tokens, positions=range(1, length + 1))

    try:
        jax.eval_shape(apply, subject.params)
    except ValueError as error:
        return str(error)
    return ""


def shift_numbers(
    subject: MeasuredModel, length: int, config: PropertiesConfig
) -> Json:
    """Measure states and, where there is a masked-LM head, loss and accuracy by shift."""
    model = subject.bert
    read = texts(subject, config, length)
    longest = subject.encoding.max_length
    last = _FARTHEST * length if longest is None else max(0, longest - length)
    powers = [2**i for i in range(last.bit_length())]
    shifts = np.unique([0, *powers, last])
    batch = batch_size(length * max(model.vocab_size, length * model.num_heads), 64)
    curve = functools.partial(
        properties.shift_curve, shifts=shifts, length=length, batch=batch
    )
    states = curve(_state_change(model), subject.params, read.tokens)
    numbers: Json = {
        "length": length,
        "texts": len(read.tokens),
        "shifts": shifts.tolist(),
        "states": np.asarray(states).mean(1),
    }
    params = masked_lm(subject)
    if params is None:
        return numbers
    scores = curve(
        _masked_scores(model), params, (read.masked, read.tokens, read.where)
    )
    for name, values in zip(("loss", "accuracy"), scores, strict=True):
        change = properties.mean_over_texts(jnp.swapaxes(values - values[0], 0, 1))
        numbers[name] = np.asarray(values).mean(1)
        numbers[f"{name}_change"] = np.asarray(change.mean)
        numbers[f"{name}_error"] = np.asarray(change.error)
    return numbers


@functools.cache  # The same function for the same model, so that it is compiled once.
def _state_change(config: BertConfig) -> Score:
    """Return a function: how far the last states are from those at positions from 0, by text."""

    def change(params, tokens, positions):
        def states(positions):
            return Bert(config).apply({"params": params}, tokens, positions=positions)

        return properties.state_change(
            states(jnp.arange(len(positions))), states(positions)
        )

    return change


@functools.cache
def _masked_scores(config: BertConfig) -> Score:
    """Return a function: loss and accuracy of the masked tokens, by text."""

    def means(params, inputs, positions):
        masked, targets, where = inputs
        scores = token_scores(config, params, masked, targets, positions)
        return [
            jnp.where(where, values, 0).sum(-1) / where.sum(-1) for values in scores
        ]

    return means


def _shift_rows(name: str, numbers: Json) -> list[Row]:
    """Return rows of the largest shifts up to half the text, the text, and all."""
    shifts = numbers["shifts"]
    length = numbers["length"]
    limits = [0, length // 2, length, shifts[-1]]
    shown = np.searchsorted(shifts, limits, "right") - 1
    rows: list[Row] = []
    for i in np.unique(shown):
        scores: Row = [None] * 4
        if "loss" in numbers:
            # There is no change without a shift.
            loss_change = _change(numbers, "loss", i) if i else None
            accuracy_change = _change(numbers, "accuracy", i, 100) if i else None
            scores = [
                numbers["loss"][i],
                loss_change,
                numbers["accuracy"][i],
                accuracy_change,
            ]
        rows.append([name, length, shifts[i], *scores, numbers["states"][i]])
    return rows


def _change(numbers: Json, key: str, i: int, scale: int = 1) -> Estimate:
    return Estimate(
        mean=scale * numbers[f"{key}_change"][i],
        error=scale * numbers[f"{key}_error"][i],
    )


@render.part(
    "Loss by place",
    "Every token between the ends masked once, a seventh of a text at a time. The first and last "
    "bin of places less the middle half, in nats, ± standard error over texts. By bin and by "
    "place: place.json.",
    [
        "model",
        ("L", "d"),
        ("loss, nats", ".3f"),
        "first places",
        ("first − middle", ".3f"),
        ("last − middle", ".3f"),
    ],
    needs="a model with a masked-LM head",
)
def place(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure losses of all tokens between the ends, each of them masked once."""
    name = subject.name
    if masked_lm(subject) is None:
        return Findings(notes={"Without a masked-LM head": [name]})
    losses = _losses_by_place(subject, config)
    places = properties.losses_by_place(losses)
    count = len(places["bins"].mean)
    edges = properties.bin_edges(losses.shape[1], count) + 1
    numbers: Json = {
        "texts": len(losses),
        "source": texts(subject, config).source,
        "loss": losses.mean(),
        "edges": edges,
    }
    estimates = {**places, "places": properties.mean_over_texts(losses)}
    for key, estimate in estimates.items():
        numbers[key] = vars(estimate)
    row = [
        name,
        losses.shape[1] + 2,
        losses.mean(),
        f"1–{edges[1] - 1}",
        places["first"],
        places["last"],
    ]
    middle = (edges[:-1] + edges[1:] - 1) / 2
    by_bin = jax.tree.map(np.asarray, places["bins"])
    curve = figures.Curve(
        "masked-LM loss, nats",
        "place of the masked token",
        *subject.label,
        x=middle,
        y=by_bin.mean,
        error=by_bin.error,
    )
    title = "Loss by the place of the token, shaded ± its standard error over texts"
    figure = Figure("place", figures.model_curves, [curve], title=title)
    return Findings({name: numbers}, [row], [figure])


def _losses_by_place(
    subject: MeasuredModel, config: PropertiesConfig
) -> Float[np.ndarray, "N P"]:
    """Return the loss of each token between the ends of each text, when it is masked."""
    params = masked_lm(subject)
    assert params and subject.tokenizer
    tokens = texts(subject, config).tokens
    mask = data.vocabulary(subject.tokenizer).mask

    def losses(params, rows):
        targets, where = rows
        tokens = jnp.where(where, mask, targets)
        scores, _ = token_scores(subject.bert, params, tokens, targets)
        return jnp.where(where, scores, 0)

    total = np.zeros(tokens.shape, np.float32)
    for where in disjoint_sets(len(tokens), tokens.shape[1], config.seed):
        total += by_text(losses, (tokens, where), params)
    return total[:, 1:-1]


def disjoint_sets(count: int, length: int, seed: int) -> Bool[np.ndarray, "S N L"]:
    """Return random sets of places of each text, all places but the ends in one set each."""
    inside = length - 2
    places = np.tile(np.arange(inside), (count, 1))
    order = np.random.default_rng(seed).permuted(places, axis=1)
    sets = min(_SETS, inside)
    chosen = order % sets == np.arange(sets)[:, None, None]
    return np.pad(chosen, ((0, 0), (0, 0), (1, 1)))
