"""Parts on the dimensions of queries and keys: rotary frequencies in use, massive values, and the
masked-LM loss without them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import figures, properties
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.encodings import with_factors
from pe_jax.files import Json
from pe_jax.models import BertConfig, queries_keys_values, rotations, with_constants
from pe_jax.properties import Estimate
from pe_jax.reports.property_report import render
from pe_jax.reports.property_report.render import Figure, Findings
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import (
    ChangedLoss,
    by_text,
    changed_losses,
    loss_changes,
    masked_lm,
    texts,
    token_scores,
)
from pe_jax.reports.tables import Row, Value, for_json
from pe_jax.shapes import Array, Bool, Float, Int
from pe_jax.training.pytrees import Params

_CHANGES = {"still": "not rotated", "dropped": "dropped"}
_PROJECTIONS = ("queries", "keys", "values")
_DRAWS = 4  # Of as many other dimensions, to compare the massive ones with.

# Of a layer that rotates: "frequencies" `[H, F]`, and "queries" and "keys", ‖q‖ and ‖k‖ of each
# pair as means over tokens.
_Layer = dict[str, Float[np.ndarray, "H F"]]


@render.part(
    "Use of rotary frequencies",
    "a run, an encoding or a BERT with a rotary encoding",
    (
        "Pairs of dimensions in {config.bands} bands by their frequency ω (radians per position), "
        "band 0 the fastest. ‖q‖, ‖k‖: of a pair, the mean over tokens, heads and layers. The "
        "changes are of the masked-LM loss (nats, ± standard error over texts) when a band does "
        "not rotate in any layer, and when its dimensions are 0. By head and layer: "
        "rotary_frequencies.json.",
        ["model", "band", ("fastest ω", ".3g"), ("slowest ω", ".3g"), ("‖q‖", ".3g"),
         ("‖k‖", ".3g"), ("not rotated", ".3f"), ("dropped", ".3f")],
    ),
)  # fmt: skip
def rotary_frequencies(subject: Subject, config: PropertiesConfig) -> Findings:
    """Measure norms by frequency, head and layer, and the loss without bands of frequencies.

    Raises:
      ValueError: for more bands than frequencies.
    """
    if subject.model is None or not any(rotations(subject.model, subject.params)):
        return Findings()
    name, count = subject.name, config.bands
    layers = _rotating_layers(subject, config)
    bands = [_band([*layers.values()], band, count) for band in range(count)]
    effects = _band_effects(subject, config)
    listed = [
        {"layer": number} | {key: values.tolist() for key, values in layer.items()}
        for number, layer in layers.items()
    ]
    numbers = {"texts": texts(subject, config).source, "layers": listed, "bands": bands, **effects}
    changes: list[Row] = [[None] * len(_CHANGES)] * count
    if effects:
        pairs = [zip(effects[kind]["change"], effects[kind]["error"]) for kind in _CHANGES]
        changes = [[Estimate(*pair) for pair in row] for row in zip(*pairs)]
    rows: list[Row] = [
        [name, str(number), *band.values(), *changes[number]] for number, band in enumerate(bands)
    ]
    norms = _norm_figure(subject, layers)
    if not effects:
        return Findings({name: numbers}, rows, [norms], {"Without a masked-LM head": [name]})
    rows.append([name, "all", *[None] * 4, *changes[count]])
    curves = [
        figures.Curve(
            f"{text}: change of the loss, nats",
            "band, fastest to slowest",
            name,
            np.arange(count),
            np.array(effects[kind]["change"][:count]),
            np.array(effects[kind]["error"][:count]),
        )
        for kind, text in _CHANGES.items()
    ]
    title = "Masked-LM loss without bands of rotary frequencies"
    losses = Figure("rotary_frequencies_loss", figures.model_curves, curves, title=title)
    notes = {"Losses": [f"{name} {effects['loss']:.3f}"]}
    return Findings({name: numbers}, rows, [losses, norms], notes)


def _rotating_layers(subject: Subject, config: PropertiesConfig) -> dict[int, _Layer]:
    every = enumerate(rotations(subject.bert, subject.params))
    by_number = {number: rotation for number, rotation in every if rotation}
    pairs = [pairs for pairs, _ in by_number.values()]
    least = min(map(len, pairs))
    if config.bands > least:
        raise ValueError(
            f"config.bands must be at most the {least} frequencies of {subject.name}, got "
            f"{config.bands}."
        )
    tokens = texts(subject, config).tokens
    norms = by_text(_pair_norms(subject.bert, tuple(by_number)), tokens, subject.params, pairs)
    layers = {}
    for (number, (_, w)), values in zip(by_number.items(), norms, strict=True):
        queries, keys = np.asarray(values, np.float64).mean(0)
        frequencies = np.broadcast_to(np.asarray(w), queries.shape)
        layers[number] = {"frequencies": frequencies, "queries": queries, "keys": keys}
    return layers


@functools.cache
def _pair_norms(config: BertConfig, layers: tuple[int, ...]) -> Callable[..., list[jax.Array]]:
    """Return `norms(params, pairs, tokens) -> [B, 2, H, F]` of each of the layers."""

    def norms(
        params: Params, pairs: list[Int[Array, "F 2"]], tokens: Int[Array, "B L"]
    ) -> list[jax.Array]:
        both = queries_keys_values(config, params, tokens)[:2]  # [2, N, B, L, H, d]
        return [
            jnp.moveaxis(properties.pair_norms(both[:, layer], dimensions).mean(2), 1, 0)
            for layer, dimensions in zip(layers, pairs, strict=True)
        ]

    return norms


def _band(layers: list[_Layer], band: int, count: int) -> dict[str, float]:
    """Return the frequencies of a band, and the mean norms of its pairs over layers and heads."""
    frequencies = [layer["frequencies"] for layer in layers]
    bands = [np.asarray(properties.frequency_bands(w, count=count)) for w in frequencies]

    def inside(key: str) -> np.ndarray:
        return np.concatenate([layer[key][b == band] for layer, b in zip(layers, bands)])

    speeds = np.abs(inside("frequencies"))
    return {
        "fastest": float(speeds.max()),
        "slowest": float(speeds.min()),
        "queries": float(inside("queries").mean()),
        "keys": float(inside("keys").mean()),
    }


def _band_effects(subject: Subject, config: PropertiesConfig) -> Json:
    """Return the loss, and what each band, then all together, add to it when they do not rotate
    and when they are dropped. Empty for a model without a masked-LM head."""
    params = masked_lm(subject)
    if params is None:
        return {}
    count = config.bands
    chosen = np.concatenate([np.eye(count, dtype=bool), np.ones((1, count), bool)])
    none = np.zeros_like(chosen)
    still = np.concatenate([none[:1], chosen, none])
    dropped = np.concatenate([none[:1], none, chosen])
    loss = _loss_without_bands(subject.bert, count)
    losses = changed_losses(loss, params, (still, dropped), texts(subject, config))
    mean, error = (np.asarray(values).reshape(2, count + 1) for values in loss_changes(losses))
    return {"loss": float(losses[0].mean())} | {
        kind: {"change": mean[i].tolist(), "error": error[i].tolist()}
        for i, kind in enumerate(_CHANGES)
    }


def _loss_without_bands(config: BertConfig, count: int) -> ChangedLoss:
    """Return the loss without the rotation of some bands, and without the dimensions of some."""
    shape = config.num_heads, config.head_size

    def loss(params, change, tokens, targets):
        still, dropped = change  # [count] each: which bands.

        def factors(frequencies: jax.Array) -> jax.Array:
            return jnp.where(still[properties.frequency_bands(frequencies, count=count)], 0.0, 1.0)

        def dropped_dimensions(rotation: tuple[np.ndarray, Array] | None) -> jax.Array:
            none = jnp.zeros(shape, bool)
            if rotation is None:
                return none
            pairs, frequencies = rotation
            chosen = dropped[properties.frequency_bands(frequencies, count=count)]
            return none.at[:, pairs].set(chosen[..., None])

        constant = jnp.stack(list(map(dropped_dimensions, rotations(config, params["bert"]))))
        both = jnp.stack([constant, constant])
        scaled = dataclasses.replace(config, position=with_factors(config.encoding(), factors))
        return _scores_with_constants(scaled, params, both, jnp.zeros(both.shape), tokens, targets)

    return loss


def _scores_with_constants(
    config: BertConfig,
    params: Params,
    which: Bool[Array, "2 N H d"],
    values: Float[Array, "2 N H d"],
    tokens: Int[Array, "B L"],
    targets: Int[Array, "B L"],
) -> Float[Array, "B L"]:
    """Return the loss of every token with some dimensions of queries and keys constant."""
    changed = dataclasses.replace(config, attention_bias=True, num_key_heads=None)
    params = {**params, "bert": with_constants(params["bert"], which, values)}
    return token_scores(changed, params, tokens, targets)[0]


def _norm_figure(subject: Subject, layers: dict[int, _Layer]) -> Figure:
    """Return a map of norms over their head's mean, from the fastest pair to the slowest; blank
    where a layer has none."""
    heads, count = subject.bert.num_heads, max(x["keys"].shape[-1] for x in layers.values())
    shown = np.full((2, subject.bert.num_layers, heads, count), np.nan)
    for number, layer in layers.items():
        order = np.argsort(-np.abs(layer["frequencies"]), axis=-1, kind="stable")
        norms = np.stack([layer["queries"], layer["keys"]])
        norms = np.take_along_axis(norms, order[None], axis=-1)
        shown[:, number, :, : norms.shape[-1]] = _over_mean(norms)
    return Figure(
        f"rotary_frequencies_{subject.name}",
        figures.head_profiles,
        [("queries", shown[0]), ("keys", shown[1])],
        title=f"Norms by rotary frequency: {subject.name}",
        columns="pair, fastest to slowest",
        label="mean norm of a pair over its head's mean",
        limits=(0.0, float(np.nanmax(shown))),
    )


def _over_mean(norms: Float[np.ndarray, "*B d"]) -> Float[np.ndarray, "*B d"]:
    return norms / np.maximum(norms.mean(-1, keepdims=True), 1e-30)


@render.part(
    "Massive values",
    render.MODEL,
    (
        "M: root mean square over tokens of a dimension; massive: above {config.massive:g} times "
        "its head's mean. Overlap: massive dimensions that two heads of a layer have in common, "
        "over those that either has. Agreement: correlation of M between heads. Means over layers; "
        "by layer: massive_values.json.",
        ["model", "of", ("massive", ".2%"), ("largest M / mean", ".2f"), ("overlap", ".2f"),
         ("agreement", ".2f")],
    ),
    (
        "Massive dimensions of queries and keys in {config.bands} bands of rotary frequencies, the "
        "fastest first; the change of the masked-LM loss (nats, ± standard error over texts) when "
        "they are their mean at every token, and when as many others of the same heads are (least "
        f"and greatest of {_DRAWS} draws).",
        ["model", ("massive q, k", "d"), "in bands", ("loss", ".3f"), ("massive", ".3f"), "others"],
    ),
)  # fmt: skip
def massive_values(subject: Subject, config: PropertiesConfig) -> Findings:
    """Measure the share of massive dimensions, by layer and head, and the loss without them."""
    name, read = subject.name, texts(subject, config)
    squares, means = (
        np.asarray(moment, np.float64).mean(0)
        for moment in by_text(_moments(subject.bert), read.tokens, subject.params)
    )
    norms = np.sqrt(squares)  # M, the root mean square over tokens: [3, N, H, d].
    massive = np.asarray(properties.is_massive(norms, config.massive))
    bands = _count_by_band(subject, massive, config.bands)
    numbers: Json = {"texts": read.source}
    rows: list[Row] = []
    for projection, m, chosen in zip(_PROJECTIONS, norms, massive, strict=True):
        largest = np.asarray(properties.peak_to_mean(m))
        overlap, agreement = properties.massive_overlap(chosen), properties.profile_correlation(m)
        numbers[projection] = [
            {
                "share": float(chosen[layer].mean()),
                "largest": largest[layer].tolist(),
                "overlap": for_json(overlap[layer]),
                "agreement": for_json(agreement[layer]),
                "massive": [np.flatnonzero(head).tolist() for head in chosen[layer]],
            }
            for layer in range(len(m))
        ]
        cells = [chosen.mean(), largest.max(), _mean(overlap), _mean(agreement)]
        rows.append([name, projection, *cells])
    effects = _massive_effects(subject, means[:2], massive[:2], config)
    more_rows: list[Row] = []
    if effects or bands:
        in_bands = " / ".join(map(str, bands)) if bands else None
        more_rows.append([name, int(massive[:2].sum()), in_bands, *_effect_cells(effects)])
    numbers |= ({"bands": bands} if bands else {}) | effects
    ratios = _over_mean(norms)
    figure = Figure(
        f"massive_values_{name}",
        figures.head_profiles,
        list(zip(_PROJECTIONS, ratios, strict=True)),
        title=f"Size of the dimensions of heads: {name}",
        columns="dimension of the head",
        label="M over its head's mean",
        limits=(0.0, min(float(ratios.max()), config.massive)),
    )
    return Findings({name: numbers}, rows, [figure], more_rows=more_rows)


@functools.cache
def _moments(
    config: BertConfig,
) -> Callable[[Params, Int[Array, "B L"]], tuple[jax.Array, jax.Array]]:
    """Return `moments(params, tokens) -> [B, 3, N, H, d]` twice, mean squares and means."""

    def moments(params: Params, tokens: Int[Array, "B L"]) -> tuple[jax.Array, jax.Array]:
        x = jnp.moveaxis(queries_keys_values(config, params, tokens), 2, 0).astype(jnp.float32)
        return (x**2).mean(3), x.mean(3)

    return moments


def _mean(by_layer: Float[Array, " N"]) -> Value:
    """Return the mean over the layers that have a number."""
    finite = np.asarray(by_layer)[~np.isnan(by_layer)]
    return finite.mean() if finite.size else None


def _count_by_band(
    subject: Subject, massive: Bool[np.ndarray, "3 N H d"], count: int
) -> list[int] | None:
    """Return how many massive dimensions of queries and keys each band of frequencies has; None
    without rotations."""
    number = np.zeros(count, int)
    layers = rotations(subject.bert, subject.params)
    for layer, rotation in enumerate(layers):
        if rotation is not None:
            pairs, frequencies = rotation
            in_pairs = massive[:2, layer][:, :, pairs].sum((0, -1))  # [H, F]
            bands = np.asarray(properties.frequency_bands(frequencies, count=count))
            np.add.at(number, np.broadcast_to(bands, in_pairs.shape), in_pairs)
    return number.tolist() if any(layers) else None


def _massive_effects(
    subject: Subject,
    means: Float[np.ndarray, "2 N H d"],
    massive: Bool[np.ndarray, "2 N H d"],
    config: PropertiesConfig,
) -> Json:
    """Return the loss, and what is added to it with massive dimensions of queries and keys at their
    mean, then with as many others, draw by draw. Empty for a model without massive values or a
    masked-LM head."""
    params = masked_lm(subject)
    if params is None or not massive.any():
        return {}
    draws = jax.random.split(jax.random.key(config.seed), _DRAWS)
    others = np.stack([properties.random_other_dimensions(rng, massive) for rng in draws])
    chosen = np.concatenate([np.zeros_like(massive)[None], massive[None], others])
    constants = jnp.asarray(means, jnp.float32)

    def loss(params, chosen, tokens, targets):
        return _scores_with_constants(subject.bert, params, chosen, constants, tokens, targets)

    losses = changed_losses(loss, params, chosen, texts(subject, config))
    change, error = (np.asarray(values).tolist() for values in loss_changes(losses))
    return {
        "loss": float(losses[0].mean()),
        "massive": {"change": change[0], "error": error[0]},
        "others": {"change": change[1:], "error": error[1:]},
    }


def _effect_cells(effects: Json) -> list[Value]:
    if not effects:
        return [None] * 3
    massive, others = effects["massive"], effects["others"]["change"]
    change = Estimate(massive["change"], massive["error"])
    return [effects["loss"], change, f"{min(others):+.3f} to {max(others):+.3f}"]
