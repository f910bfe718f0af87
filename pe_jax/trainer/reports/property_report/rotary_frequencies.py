"""Part on rotary frequencies: norms of their pairs of dimensions, and the loss without them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.common.files import Json
from pe_jax.common.shapes import Array, Float, Int
from pe_jax.encodings import with_factors
from pe_jax.models import BertConfig, queries_keys_values, rotations
from pe_jax.properties import Estimate
from pe_jax.trainer import figures
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report import render
from pe_jax.trainer.reports.property_report.render import Figure, Findings
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.property_report.texts import (
    ChangedLoss,
    by_text,
    changed_losses,
    loss_changes,
    masked_lm,
    scores_with_constants,
    texts,
)
from pe_jax.trainer.reports.tables import Row, Value
from pe_jax.trainer.training.pytrees import Params

_CHANGES = {"still": "not rotated", "dropped": "dropped"}

# A layer that rotates: "frequencies", "queries" and "keys" (mean ‖q‖, ‖k‖ of a pair), `[H, F]`.
_Layer = dict[str, Float[np.ndarray, "H F"]]


@render.part(
    "Use of rotary frequencies",
    "Pairs of dimensions in {config.bands} bands by their frequency ω (radians per position), band "
    "0 the fastest. ‖q‖, ‖k‖: of a pair, the mean over tokens, heads and layers. The changes are "
    "of the masked-LM loss (nats, ± standard error over texts) when a band does not rotate in any "
    "layer, and when its dimensions are 0. By head and layer: rotary_frequencies.json.",
    [
        "model",
        "band",
        ("fastest ω", ".3g"),
        ("slowest ω", ".3g"),
        ("‖q‖", ".3g"),
        ("‖k‖", ".3g"),
        ("not rotated", ".3f"),
        ("dropped", ".3f"),
    ],
    needs="a run, an encoding or a BERT with a rotary encoding",
)
def rotary_frequencies(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure norms by frequency, head and layer, and the loss without bands of frequencies.

    Raises:
      ValueError: for more bands than a layer has frequencies.
    """
    if subject.model is None or not any(rotations(subject.model, subject.params)):
        return Findings()
    name = subject.name
    count = config.bands
    layers = _rotating_layers(subject, config)
    bands = [_band([*layers.values()], band, count) for band in range(count)]
    effects = _band_effects(subject, config)
    numbers = {
        "texts": texts(subject, config).source,
        "layers": [{"layer": number} | layer for number, layer in layers.items()],
        "bands": bands,
        **effects,
    }
    rows: list[Row] = []
    for number, band in enumerate(bands):
        changes = _changes(effects, number)
        rows.append([name, str(number), *band.values(), *changes])
    norms = _norm_figure(subject, layers)
    if not effects:
        notes = {"Without a masked-LM head": [name]}
        return Findings({name: numbers}, rows, [norms], notes)
    rows.append([name, "all", *[None] * 4, *_changes(effects, count)])
    curves = []
    for kind, text in _CHANGES.items():
        curve = figures.Curve(
            f"{text}: change of the loss, nats",
            "band, fastest to slowest",
            *subject.label,
            x=np.arange(count),
            y=effects[kind]["change"][:count],
            error=effects[kind]["error"][:count],
        )
        curves.append(curve)
    title = "Masked-LM loss without bands of rotary frequencies"
    losses = Figure(
        "rotary_frequencies_loss", figures.model_curves, curves, title=title
    )
    notes = {"Losses": [f"{name} {effects['loss']:.3f}"]}
    return Findings({name: numbers}, rows, [losses, norms], notes)


def _changes(effects: Json, band: int) -> list[Value]:
    """Return the changes of the loss without a band; None where it was not measured."""
    if not effects:
        return [None] * len(_CHANGES)
    return [
        Estimate(mean=effects[kind]["change"][band], error=effects[kind]["error"][band])
        for kind in _CHANGES
    ]


def _rotating_layers(
    subject: MeasuredModel, config: PropertiesConfig
) -> dict[int, _Layer]:
    """Return frequencies and norms of the layers that rotate, by their numbers."""
    by_number = {}
    for number, rotation in enumerate(rotations(subject.bert, subject.params)):
        if rotation is not None:
            by_number[number] = rotation
    pairs = [pairs for pairs, _ in by_number.values()]
    least = min(map(len, pairs))
    if config.bands > least:
        raise ValueError(
            f"config.bands must be at most the {least} frequencies of {subject.name}, got "
            f"{config.bands}."
        )
    tokens = texts(subject, config).tokens
    norms = by_text(
        _pair_norms(subject.bert, tuple(by_number)), tokens, subject.params, pairs
    )
    layers = {}
    for (number, (_, w)), values in zip(by_number.items(), norms, strict=True):
        queries, keys = np.asarray(values, np.float64).mean(0)
        frequencies = np.broadcast_to(np.asarray(w), queries.shape)
        layers[number] = {"frequencies": frequencies, "queries": queries, "keys": keys}
    return layers


@functools.cache
def _pair_norms(
    config: BertConfig, layers: tuple[int, ...]
) -> Callable[..., list[jax.Array]]:
    """Return `norms(params, pairs, tokens) -> [B, 2, H, F]` of each of the layers."""

    def norms(
        params: Params, pairs: list[Int[Array, "F 2"]], tokens: Int[Array, "B L"]
    ) -> list[jax.Array]:
        both = queries_keys_values(config, params, tokens)[:2]  # [2, N, B, L, H, d]
        by_layer = []
        for layer, dimensions in zip(layers, pairs, strict=True):
            of_tokens = properties.pair_norms(both[:, layer], dimensions)
            by_layer.append(jnp.moveaxis(of_tokens.mean(2), 1, 0))
        return by_layer

    return norms


def _band(layers: list[_Layer], band: int, count: int) -> dict[str, float]:
    """Return the frequencies of a band, and the mean norms of its pairs over layers and heads."""
    inside: dict[str, list[np.ndarray]] = {"frequencies": [], "queries": [], "keys": []}
    for layer in layers:
        bands = properties.frequency_bands(layer["frequencies"], count=count)
        is_inside = np.asarray(bands) == band
        for key, values in inside.items():
            values.append(layer[key][is_inside])
    frequencies, queries, keys = map(np.concatenate, inside.values())
    speeds = np.abs(frequencies)
    return {
        "fastest": speeds.max(),
        "slowest": speeds.min(),
        "queries": queries.mean(),
        "keys": keys.mean(),
    }


def _band_effects(subject: MeasuredModel, config: PropertiesConfig) -> Json:
    """Return the loss, and what each band adds if not rotated or dropped; empty without a head."""
    params = masked_lm(subject)
    if params is None:
        return {}
    count = config.bands
    each_band = np.eye(count, dtype=bool)
    all_bands = np.ones((1, count), bool)
    chosen = np.concatenate([each_band, all_bands])
    none = np.zeros_like(chosen)
    still = np.concatenate([none[:1], chosen, none])
    dropped = np.concatenate([none[:1], none, chosen])
    loss = _loss_without_bands(subject.bert, count)
    losses = changed_losses(loss, params, (still, dropped), texts(subject, config))
    change = loss_changes(losses)
    means = np.asarray(change.mean).reshape(2, count + 1)
    errors = np.asarray(change.error).reshape(2, count + 1)
    effects: Json = {"loss": losses[0].mean()}
    for kind, mean, error in zip(_CHANGES, means, errors, strict=True):
        effects[kind] = {"change": mean, "error": error}
    return effects


def _loss_without_bands(config: BertConfig, count: int) -> ChangedLoss:
    """Return the loss without the rotation of some bands, and without the dimensions of some."""

    def loss(params, change, tokens, targets):
        still, dropped = change  # [count] each: which bands.

        def factors(frequencies: jax.Array) -> jax.Array:
            bands = properties.frequency_bands(frequencies, count=count)
            return jnp.where(still[bands], 0.0, 1.0)

        constant = []  # [H, d] of each layer.
        for rotation in rotations(config, params["bert"]):
            of_layer = jnp.zeros((config.num_heads, config.head_size), bool)
            if rotation is not None:
                pairs, frequencies = rotation
                bands = properties.frequency_bands(frequencies, count=count)
                of_layer = of_layer.at[:, pairs].set(dropped[bands][..., None])
            constant.append(of_layer)
        both = jnp.stack([jnp.stack(constant)] * 2)  # Of queries and of keys.
        scaled = dataclasses.replace(
            config, position=with_factors(config.encoding(), factors)
        )
        return scores_with_constants(
            scaled, params, both, jnp.zeros(both.shape), tokens, targets
        )

    return loss


def _norm_figure(subject: MeasuredModel, layers: dict[int, _Layer]) -> Figure:
    """Return a map of norms over their head's mean, the fastest pair first; blank where none."""
    model = subject.bert
    count = max(layer["keys"].shape[-1] for layer in layers.values())
    shown = np.full((2, model.num_layers, model.num_heads, count), np.nan)
    for number, layer in layers.items():
        order = np.argsort(-np.abs(layer["frequencies"]), axis=-1, kind="stable")
        norms = np.stack([layer["queries"], layer["keys"]])
        norms = np.take_along_axis(norms, order[None], axis=-1)
        norms /= np.maximum(norms.mean(-1, keepdims=True), 1e-30)
        shown[:, number, :, : norms.shape[-1]] = norms
    return Figure(
        f"rotary_frequencies_{subject.name}",
        figures.head_profiles,
        [("queries", shown[0]), ("keys", shown[1])],
        title=f"Norms by rotary frequency: {subject.name}",
        columns="pair, fastest to slowest",
        label="mean norm of a pair over its head's mean",
        limits=(0.0, float(np.nanmax(shown))),
    )
