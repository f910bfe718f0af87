"""Massive values of queries and keys: where they are, and the loss without them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.models import BertConfig, queries_keys_values, rotations, with_constants
from pe_jax.properties import Estimate
from pe_jax.reports.property_report.interventions import (
    ChangedLoss,
    by_text,
    changed_losses,
    differences,
)
from pe_jax.reports.property_report.measures import signed
from pe_jax.reports.property_report.section import Section, Settings, for_json
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import masked_lm, texts, token_losses
from pe_jax.shapes import Array, Bool, Float, Int
from pe_jax.training.pytrees import Params

_WHAT = ("queries", "keys", "values")
_DRAWS = 4  # Of as many other dimensions, to compare the massive ones with.


class _Moments(NamedTuple):
    """Of every dimension over tokens: the root mean square M, and the mean."""

    norms: Float[np.ndarray, "3 N H d"]
    means: Float[np.ndarray, "3 N H d"]


class _Effects(NamedTuple):
    """What becomes of the loss with dimensions at their mean.

    Attributes:
      loss: of the model as it is, nats.
      changes: what is added to it at the massive ones, then at as many others, draw by draw.
    """

    loss: float
    changes: Estimate


def massive(subjects: list[Subject], settings: Settings) -> Section | None:
    """The share of massive dimensions, by layer and head, and the loss without them."""
    subjects = [subject for subject in subjects if subject.model]
    if not subjects:
        return None
    factor = settings.config.massive
    numbers: Json = {}
    rows, effect_rows, paths = [], [], []
    for subject in subjects:
        moments = _moments(subject, settings)
        found = np.asarray(properties.is_massive(moments.norms, factor))
        in_bands = _in_bands(subject, found, settings.config.bands)
        effects = _effects(subject, moments, found[:2], settings)
        numbers[subject.name] = {
            "texts": texts(subject, settings).source,
            **{what: _listed(moments.norms[i], found[i]) for i, what in enumerate(_WHAT)},
            **({"bands": in_bands} if in_bands else {}),
            **(_effect_numbers(effects) if effects else {}),
        }
        for i, what in enumerate(_WHAT):
            rows.append([subject.name, what, *_cells(moments.norms[i], found[i])])
        if effects or in_bands:
            effect_rows.append(_effect_cells(subject.name, found[:2], in_bands, effects))
        paths.append(_map(subject, moments, settings))
    lines = [
        f"M: root mean square over tokens of a dimension; massive: above {factor:g} times its",
        "head's mean. Overlap: massive dimensions that two heads of a layer have in common, over",
        "those that either has. Agreement: correlation of M between heads. Means over layers; by",
        "layer: massive_values.json.",
        "",
        *table(["model", "of", "massive", "largest M / mean", "overlap", "agreement"], rows),
    ]
    if effect_rows:
        lines += [
            "",
            f"Massive dimensions of queries and keys in {settings.config.bands} bands of rotary",
            "frequencies, the fastest first; the change of the masked-LM loss (nats, ± standard",
            "error over texts) when they are their mean at every token, and when as many others",
            f"of the same heads are (least and greatest of {_DRAWS} draws).",
            "",
            *table(["model", "massive q, k", "in bands", "loss", "massive", "others"], effect_rows),
        ]
    return Section("Massive values", numbers, lines, paths)


def _moments(subject: Subject, settings: Settings) -> _Moments:
    assert subject.model is not None
    tokens = texts(subject, settings).tokens
    squares, means = (
        np.asarray(one, np.float64).mean(0)
        for one in by_text(_moments_of(subject.model), tokens, subject.params)
    )
    return _Moments(np.sqrt(squares), means)


@functools.cache
def _moments_of(
    config: BertConfig,
) -> Callable[[Params, Int[Array, "B L"]], tuple[jax.Array, jax.Array]]:
    """`moments(params, tokens) -> [B, 3, N, H, d]` twice, mean squares and means of texts."""

    def moments(params: Params, tokens: Int[Array, "B L"]) -> tuple[jax.Array, jax.Array]:
        x = jnp.moveaxis(queries_keys_values(config, params, tokens), 2, 0).astype(jnp.float32)
        return (x**2).mean(3), x.mean(3)

    return moments


def _in_bands(subject: Subject, found: Bool[np.ndarray, "3 N H d"], count: int) -> list[int] | None:
    """How many massive dimensions of queries and keys each band of frequencies has; None without
    rotations."""
    assert subject.model is not None
    number = np.zeros(count, int)
    layers = rotations(subject.model, subject.params)
    for layer, one in enumerate(layers):
        if one is None:
            continue
        here = found[:2, layer][:, :, one.pairs].sum((0, -1))  # [H, F]
        bands = np.asarray(properties.bands(one.frequencies, count=count))
        np.add.at(number, np.broadcast_to(bands, here.shape), here)
    return number.tolist() if any(layers) else None


def _effects(
    subject: Subject, moments: _Moments, found: Bool[np.ndarray, "2 N H d"], settings: Settings
) -> _Effects | None:
    """None for a model without massive values or a masked-LM head."""
    params = masked_lm(subject)
    if params is None or not found.any():
        return None
    assert subject.model is not None
    keys = jax.random.split(jax.random.key(settings.config.seed), _DRAWS)
    others = np.stack([properties.random_others(key, found) for key in keys])
    which = np.concatenate([np.zeros_like(found)[None], found[None], others])
    means = jnp.asarray(moments.means[:2], jnp.float32)
    loss = _changed_loss(subject.model, means)
    losses = changed_losses(loss, params, which, texts(subject, settings))
    return _Effects(float(losses[0].mean()), differences(losses))


def _changed_loss(config: BertConfig, means: Float[Array, "2 N H d"]) -> ChangedLoss:
    """The loss with some dimensions of queries and keys at their mean."""

    def loss(params, which, tokens, targets):
        bert = with_constants(params["bert"], which, means)
        return token_losses(config, {**params, "bert": bert}, tokens, targets)

    return loss


def _listed(norms: np.ndarray, found: np.ndarray) -> list[Json]:
    """By layer, for JSON."""
    return [
        {
            "share": float(massive.mean()),
            "largest": np.asarray(properties.largest_ratio(m)).tolist(),
            "overlap": for_json(properties.overlap(massive)),
            "agreement": for_json(properties.agreement(m)),
            "massive": [np.flatnonzero(head).tolist() for head in massive],
        }
        for m, massive in zip(norms, found, strict=True)
    ]


def _cells(norms: np.ndarray, found: np.ndarray) -> list[str]:
    """Of queries, keys or values `[N, H, d]`."""

    def mean(values: Array) -> str:
        known = np.asarray(values)[~np.isnan(values)]
        return f"{known.mean():.2f}" if known.size else "–"

    largest = float(np.max(properties.largest_ratio(norms)))
    return [
        f"{found.mean():.2%}",
        f"{largest:.2f}",
        mean(properties.overlap(found)),
        mean(properties.agreement(norms)),
    ]


def _effect_numbers(effects: _Effects) -> Json:
    """For JSON."""
    mean, error = (np.asarray(one).tolist() for one in effects.changes)
    return {
        "loss": effects.loss,
        "massive": {"change": mean[0], "error": error[0]},
        "others": {"change": mean[1:], "error": error[1:]},
    }


def _effect_cells(
    name: str, found: np.ndarray, in_bands: list[int] | None, effects: _Effects | None
) -> list[str]:
    cells = [name, str(int(found.sum())), " / ".join(map(str, in_bands)) if in_bands else "–"]
    if effects is None:
        return [*cells, "–", "–", "–"]
    mean, error = effects.changes
    return [
        *cells,
        f"{effects.loss:.3f}",
        signed(Estimate(mean[0], error[0])),
        f"{mean[1:].min():+.3f} to {mean[1:].max():+.3f}",
    ]


def _map(subject: Subject, moments: _Moments, settings: Settings) -> Path:
    """M over its head's mean, of every head."""
    ratios = moments.norms / np.maximum(moments.norms.mean(-1, keepdims=True), 1e-30)
    return figures.head_profiles(
        [figures.HeadProfile(what, one) for what, one in zip(_WHAT, ratios, strict=True)],
        settings.figure(f"massive_values_{subject.name}"),
        title=f"Size of the dimensions of heads: {subject.name}",
        columns="dimension of the head",
        label="M over its head's mean",
        limits=(0.0, min(float(ratios.max()), settings.config.massive)),
        vector=settings.config.vector,
    )
