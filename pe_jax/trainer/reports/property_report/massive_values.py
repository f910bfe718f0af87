"""Part on massive values of queries and keys, and the masked-LM loss without them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.common.files import Json
from pe_jax.common.shapes import Array, Bool, Float, Int
from pe_jax.models import BertConfig, queries_keys_values, rotations
from pe_jax.properties import Estimate
from pe_jax.trainer import figures
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report import render
from pe_jax.trainer.reports.property_report.render import Figure, Findings
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.property_report.texts import (
    by_text,
    changed_losses,
    loss_changes,
    masked_lm,
    scores_with_constants,
    texts,
)
from pe_jax.trainer.reports.tables import Row, Value
from pe_jax.trainer.training.pytrees import Params

_PROJECTIONS = ("queries", "keys", "values")
_DRAWS = 4  # Of as many other dimensions, to compare the massive ones with.


@render.part(
    "Massive values",
    "M: root mean square over tokens of a dimension; massive: above {config.massive:g} times its "
    "head's mean. Overlap: massive dimensions that two heads of a layer have in common, over those "
    "that either has. Agreement: correlation of M between heads. Means over layers; by layer: "
    "massive_values.json.",
    [
        "model",
        "of",
        ("massive", ".2%"),
        ("largest M / mean", ".2f"),
        ("overlap", ".2f"),
        ("agreement", ".2f"),
    ],
    (
        "Massive dimensions of queries and keys in {config.bands} bands of rotary frequencies, the "
        "fastest first; the change of the masked-LM loss (nats, ± standard error over texts) when "
        "they are their mean at every token, and when as many others of the same heads are (least "
        f"and greatest of {_DRAWS} draws).",
        [
            "model",
            ("massive q, k", "d"),
            "in bands",
            ("loss", ".3f"),
            ("massive", ".3f"),
            "others",
        ],
    ),
)
def massive_values(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure the share of massive dimensions, by layer and head, and the loss without them."""
    name = subject.name
    read = texts(subject, config)
    moments = by_text(_moments(subject.bert), read.tokens, subject.params)
    squares, means = (np.asarray(x, np.float64).mean(0) for x in moments)
    norms = np.sqrt(squares)  # M, the root mean square over tokens: [3, N, H, d].
    massive = np.asarray(properties.is_massive(norms, config.massive))
    bands = _count_by_band(subject, massive, config.bands)
    numbers: Json = {"texts": read.source}
    rows: list[Row] = []
    for projection, m, chosen in zip(_PROJECTIONS, norms, massive, strict=True):
        by_layer = {
            "share": chosen.mean((1, 2)),
            "largest": properties.peak_to_mean(m),
            "overlap": properties.massive_overlap(chosen),
            "agreement": properties.profile_correlation(m),
            "massive": [[np.flatnonzero(head) for head in layer] for layer in chosen],
        }
        layers = zip(*by_layer.values())
        numbers[projection] = [dict(zip(by_layer, values)) for values in layers]
        row: Row = [
            name,
            projection,
            chosen.mean(),
            np.max(by_layer["largest"]),
            _mean(by_layer["overlap"]),
            _mean(by_layer["agreement"]),
        ]
        rows.append(row)
    effects = _massive_effects(subject, means[:2], massive[:2], config)
    more_rows: list[Row] = []
    if effects or bands:
        in_bands = " / ".join(map(str, bands)) if bands else None
        count = int(massive[:2].sum())
        more_rows.append([name, count, in_bands, *_loss_cells(effects)])
    if bands:
        numbers["bands"] = bands
    numbers |= effects
    ratios = norms / np.maximum(norms.mean(-1, keepdims=True), 1e-30)
    figure = Figure(
        f"massive_values_{name}",
        figures.head_profiles,
        list(zip(_PROJECTIONS, ratios)),
        title=f"Size of the dimensions of heads: {name}",
        columns="dimension of the head",
        label="M over its head's mean",
        limits=(0.0, min(float(ratios.max()), config.massive)),
    )
    return Findings({name: numbers}, rows, [figure], more_rows=more_rows)


def _loss_cells(effects: Json) -> list[Value]:
    """Return the loss, its change without the massive values, and the range without others."""
    if not effects:
        return [None] * 3
    massive = effects["massive"]
    change = Estimate(mean=massive["change"], error=massive["error"])
    others = effects["others"]["change"]
    range_of_others = f"{min(others):+.3f} to {max(others):+.3f}"
    return [effects["loss"], change, range_of_others]


@functools.cache
def _moments(config: BertConfig) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return `moments(params, tokens) -> [B, 3, N, H, d]` twice, mean squares and means."""

    def moments(
        params: Params, tokens: Int[Array, "B L"]
    ) -> tuple[jax.Array, jax.Array]:
        x = queries_keys_values(config, params, tokens)  # [3, N, B, L, H, d]
        x = jnp.moveaxis(x, 2, 0).astype(jnp.float32)
        return (x**2).mean(3), x.mean(3)

    return moments


def _mean(by_layer: Float[Array, " N"]) -> Value:
    known = np.asarray(by_layer)[~np.isnan(by_layer)]
    return known.mean() if known.size else None


def _count_by_band(
    subject: MeasuredModel, massive: Bool[np.ndarray, "3 N H d"], count: int
) -> list[int] | None:
    """Return the number of massive dimensions in each band; None without rotations."""
    layers = rotations(subject.bert, subject.params)
    if not any(layers):
        return None
    by_band = np.zeros(count, int)
    for layer, rotation in enumerate(layers):
        if rotation is None:
            continue
        pairs, frequencies = rotation
        queries_and_keys = massive[:2, layer]
        in_pairs = queries_and_keys[:, :, pairs].sum((0, -1))  # [H, F]
        bands = np.asarray(properties.frequency_bands(frequencies, count=count))
        np.add.at(by_band, np.broadcast_to(bands, in_pairs.shape), in_pairs)
    return by_band.tolist()


def _massive_effects(
    subject: MeasuredModel,
    means: Float[np.ndarray, "2 N H d"],
    massive: Bool[np.ndarray, "2 N H d"],
    config: PropertiesConfig,
) -> Json:
    """Return the loss, and what is added to it with massive dimensions of queries and keys at their
    mean, then with as many others, draw by draw. Empty without massive values or masked-LM head."""
    params = masked_lm(subject)
    if params is None or not massive.any():
        return {}
    draws = jax.random.split(jax.random.key(config.seed), _DRAWS)
    others = [properties.random_other_dimensions(rng, massive) for rng in draws]
    chosen = np.stack([np.zeros_like(massive), massive, *others])
    constants = jnp.asarray(means, jnp.float32)

    def loss(params, chosen, tokens, targets):
        return scores_with_constants(
            subject.bert, params, chosen, constants, tokens, targets
        )

    losses = changed_losses(loss, params, chosen, texts(subject, config))
    change = jax.tree.map(np.asarray, loss_changes(losses))
    return {
        "loss": losses[0].mean(),
        "massive": {"change": change.mean[0], "error": change.error[0]},
        "others": {"change": change.mean[1:], "error": change.error[1:]},
    }
