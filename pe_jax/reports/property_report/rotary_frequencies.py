"""Use of rotary frequencies: norms of queries and keys, and the loss without bands of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.encodings import with_factors
from pe_jax.files import Json
from pe_jax.models import (
    BertConfig,
    LayerRotation,
    queries_keys_values,
    rotations,
    with_constants,
)
from pe_jax.properties import Estimate
from pe_jax.reports.property_report.interventions import (
    ChangedLoss,
    by_text,
    changed_losses,
    differences,
)
from pe_jax.reports.property_report.measures import signed
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import masked_lm, texts, token_losses
from pe_jax.shapes import Array, Float, Int
from pe_jax.training.pytrees import Params

_KINDS = {"still": "not rotated", "dropped": "dropped"}


class _Layer(NamedTuple):
    """A layer that rotates.

    Attributes:
      number: of the layer.
      frequencies: ω, radians per position.
      norms: ‖q‖ and ‖k‖, the mean over tokens.
    """

    number: int
    frequencies: Float[np.ndarray, "H F"]
    norms: Float[np.ndarray, "2 H F"]


class _Effects(NamedTuple):
    """What becomes of the loss without some frequencies.

    Attributes:
      loss: of the model as it is, nats.
      still, dropped: what each band adds to it, and all bands together, `[bands + 1]`.
    """

    loss: float
    still: Estimate
    dropped: Estimate


def frequencies(subjects: list[Subject], settings: Settings) -> Section | None:
    """Norms by frequency, head and layer, and the loss without bands of frequencies."""
    subjects = [one for one in subjects if one.model and any(rotations(one.model, one.params))]
    if not subjects:
        return None
    count = settings.config.bands
    numbers: Json = {}
    rows, paths = [], []
    effects: dict[str, _Effects] = {}
    for subject in subjects:
        layers = _layers(subject, settings)
        bands = [_band(layers, band, count) for band in range(count)]
        numbers[subject.name] = {
            "texts": texts(subject, settings).source,
            "layers": [_listed(one) for one in layers],
            "bands": bands,
        }
        found = _effects(subject, settings)
        if found:
            effects[subject.name] = found
            numbers[subject.name] |= _effect_numbers(found)
        for band, one in enumerate(bands):
            sizes = [f"{one[name]:.3g}" for name in ("fastest", "slowest", "queries", "keys")]
            rows.append([subject.name, str(band), *sizes, *_cells(found, band)])
        if found:
            rows.append([subject.name, "all", *["–"] * 4, *_cells(found, count)])
        paths.append(_map(subject, layers, settings))
    if effects:
        paths.append(_chart(effects, settings))
    losses = [f"{name} {one.loss:.3f}" for name, one in effects.items()]
    missing = [one.name for one in subjects if one.name not in effects]
    lines = [
        f"Pairs of dimensions in {count} bands by their frequency ω (radians per position), band 0",
        "the fastest. ‖q‖, ‖k‖: of a pair, the mean over tokens, heads and layers. The changes are",
        "of the masked-LM loss (nats, ± standard error over texts) when a band does not rotate in",
        "any layer, and when its dimensions are 0. By head and layer: rotary_frequencies.json.",
        *([f"Losses: {', '.join(losses)}."] if losses else []),
        *([f"Without a masked-LM head: {', '.join(missing)}."] if missing else []),
        "",
        *table(
            ["model", "band", "fastest ω", "slowest ω", "‖q‖", "‖k‖", *_KINDS.values()],
            rows,
        ),
    ]
    return Section("Use of rotary frequencies", numbers, lines, paths)


def _layers(subject: Subject, settings: Settings) -> list[_Layer]:
    """Norms of the layers that rotate.

    Raises:
      ValueError: for more bands than frequencies.
    """
    assert subject.model is not None
    model = subject.model
    placed = {i: one for i, one in enumerate(rotations(model, subject.params)) if one}
    least = min(len(one.pairs) for one in placed.values())
    if settings.config.bands > least:
        raise ValueError(
            f"{subject.name} has {least} frequencies: config.bands is at most that, got "
            f"{settings.config.bands}."
        )
    pairs = tuple((i, tuple(map(tuple, one.pairs.tolist()))) for i, one in placed.items())
    found = by_text(_norms(model, pairs), texts(subject, settings).tokens, subject.params)
    return [
        _Layer(
            number,
            np.broadcast_to(np.asarray(one.frequencies), norms.shape[2:]),
            np.asarray(norms, np.float64).mean(0),
        )
        for (number, one), norms in zip(placed.items(), found, strict=True)
    ]


@functools.cache
def _norms(
    config: BertConfig, pairs: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
) -> Callable[[Params, Int[Array, "B L"]], list[jax.Array]]:
    """`norms(params, tokens) -> [B, 2, H, F]` of each layer, with its number and its pairs."""

    def norms(params: Params, tokens: Int[Array, "B L"]) -> list[jax.Array]:
        both = queries_keys_values(config, params, tokens)[:2]  # [2, N, B, L, H, d]
        each = (properties.pair_norms(both[:, layer], np.array(here)) for layer, here in pairs)
        return [jnp.moveaxis(one.mean(2), 1, 0) for one in each]

    return norms


def _effects(subject: Subject, settings: Settings) -> _Effects | None:
    """None for a model without a masked-LM head."""
    params = masked_lm(subject)
    if params is None:
        return None
    assert subject.model is not None
    count = settings.config.bands
    chosen = np.concatenate([np.eye(count, dtype=bool), np.ones((1, count), bool)])
    none = np.zeros_like(chosen)
    still = np.concatenate([none[:1], chosen, none])
    dropped = np.concatenate([none[:1], none, chosen])
    loss = _changed_loss(subject.model, count)
    losses = changed_losses(loss, params, (still, dropped), texts(subject, settings))
    mean, error = differences(losses)
    first = count + 1  # The changes of the first kind.
    return _Effects(
        float(losses[0].mean()),
        Estimate(mean[:first], error[:first]),
        Estimate(mean[first:], error[first:]),
    )


def _changed_loss(config: BertConfig, count: int) -> ChangedLoss:
    """The loss without the rotation of some bands, and without the dimensions of some."""
    shape = config.num_heads, config.head_size

    def loss(params, change, tokens, targets):
        still, dropped = change  # [count] each: which bands.
        of = lambda w: properties.bands(w, count=count)
        position = with_factors(config.encoding(), lambda w: jnp.where(still[of(w)], 0.0, 1.0))

        def without(layer: LayerRotation | None) -> jax.Array:
            kept = jnp.zeros(shape, bool)
            if layer is None:
                return kept
            return kept.at[:, layer.pairs].set(dropped[of(layer.frequencies)][..., None])

        which = jnp.stack([without(one) for one in rotations(config, params["bert"])])
        both = jnp.stack([which, which])
        bert = with_constants(params["bert"], both, jnp.zeros(both.shape))
        changed = dataclasses.replace(config, position=position)
        return token_losses(changed, {**params, "bert": bert}, tokens, targets)

    return loss


def _band(layers: list[_Layer], band: int, count: int) -> dict[str, float]:
    """The frequencies of a band, and the mean norms of its pairs over layers and heads."""
    inside = [np.asarray(properties.bands(one.frequencies, count=count)) == band for one in layers]
    both = list(zip(layers, inside, strict=True))
    speeds = np.concatenate([np.abs(one.frequencies[here]) for one, here in both])
    norms = np.concatenate([one.norms[:, here] for one, here in both], axis=1).mean(1)
    return {
        "fastest": float(speeds.max()),
        "slowest": float(speeds.min()),
        "queries": float(norms[0]),
        "keys": float(norms[1]),
    }


def _listed(layer: _Layer) -> Json:
    """By head and pair, for JSON."""
    return {
        "layer": layer.number,
        "frequencies": layer.frequencies.tolist(),
        "queries": layer.norms[0].tolist(),
        "keys": layer.norms[1].tolist(),
    }


def _effect_numbers(effects: _Effects) -> Json:
    """For JSON; the last change of each kind is that of all bands."""
    kinds = {kind: getattr(effects, kind) for kind in _KINDS}
    return {"loss": effects.loss} | {
        kind: {"change": one.mean.tolist(), "error": one.error.tolist()}
        for kind, one in kinds.items()
    }


def _cells(effects: _Effects | None, row: int) -> list[str]:
    if effects is None:
        return ["–"] * len(_KINDS)
    kinds = (getattr(effects, kind) for kind in _KINDS)
    return [signed(Estimate(one.mean[row], one.error[row])) for one in kinds]


def _map(subject: Subject, layers: list[_Layer], settings: Settings) -> Path:
    """Norms over their head's mean, from the fastest pair to the slowest; blank where a layer has
    none."""
    assert subject.model is not None
    heads, count = subject.model.num_heads, max(one.norms.shape[-1] for one in layers)
    shown = np.full((2, subject.model.num_layers, heads, count), np.nan)
    for one in layers:
        order = np.argsort(-np.abs(one.frequencies), axis=-1, kind="stable")
        norms = np.take_along_axis(one.norms, order[None], axis=-1)
        norms = norms / np.maximum(norms.mean(-1, keepdims=True), 1e-30)
        shown[:, one.number, :, : norms.shape[-1]] = norms
    titles = "queries", "keys"
    return figures.head_profiles(
        [figures.HeadProfile(title, one) for title, one in zip(titles, shown, strict=True)],
        settings.figure(f"rotary_frequencies_{subject.name}"),
        title=f"Norms by rotary frequency: {subject.name}",
        columns="pair, fastest to slowest",
        label="mean norm of a pair over its head's mean",
        limits=(0.0, float(np.nanmax(shown))),
        vector=settings.config.vector,
    )


def _chart(effects: dict[str, _Effects], settings: Settings) -> Path:
    """Changes of the loss by band."""
    count = settings.config.bands
    bands = np.arange(count)

    def line(one: Estimate) -> figures.Line:
        return figures.Line(bands, one.mean[:count], one.error[:count])

    return figures.model_curves(
        [
            figures.CurvePanel(
                f"{text}: change of the loss, nats",
                "band, fastest to slowest",
                {name: line(getattr(one, kind)) for name, one in effects.items()},
            )
            for kind, text in _KINDS.items()
        ],
        settings.figure("rotary_frequencies_loss"),
        title="Masked-LM loss without bands of rotary frequencies",
        vector=settings.config.vector,
    )
