"""Parts on hidden states and attention weights on texts, by layer: the positional basis, the
position probe, and attention flow (sinks, reach and rollout)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.common.files import Json
from pe_jax.common.shapes import Float, Int
from pe_jax.models import BertConfig, attended, weights_map
from pe_jax.properties import Probe
from pe_jax.trainer import figures
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report import render
from pe_jax.trainer.reports.property_report.matrices import product_panel
from pe_jax.trainer.reports.property_report.render import (
    Figure,
    Findings,
    product_figure,
)
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.property_report.texts import (
    batch_size,
    by_text,
    states_of_texts,
    texts,
)
from pe_jax.trainer.reports.tables import Row, Value

_SHARES = ("position", "context", "residual", "floor")
_SHAPE = ("stable_rank", "dimensions", "relative_norm", "smoothness", "coherence")
# Of the probe's texts together: all layers are in memory at a time.
_MAX_TOKENS = 2**14
_LEAST_TEXTS = 4  # To train on, choose by and test on.
_EVIDENCE = 0.1  # An R² below it says nothing that could decay.
_WINDOW = 5  # Positions on either side that count as near.

# Name in the JSON file -> title of the panel.
_HEADS = {
    "first": "attention to the first token",
    "last": "attention to the last token",
    "largest": "attention to the largest sink",
    "effective_keys": "effective number of keys",
    "distance": "mean distance |j − i|",
}
_ROLLOUT = {
    "first": "rollout: share of the first token",
    "own": "rollout: share of the token itself",
    "near": f"rollout: share within ± {_WINDOW}",
}

Statistics = dict[str, jax.Array]


def _listed(findings: Findings, key: str, between: str) -> str:
    """Return the different values of a number of all subjects, in their order."""
    values = [str(numbers[key]) for numbers in findings.numbers.values()]
    return between.join(dict.fromkeys(values))


@render.part(
    "Positional basis",
    lambda findings, config: (
        "Hidden states as mean + position + text + rest (Song & Zhong, 2023) after 0 layers "
        f"(the input of the first), 1, 2, …, of {_listed(findings, 'count', ' or ')} texts "
        f"({_listed(findings, 'texts', ' and ')}). Percentages of the variance; floor: the "
        "share subtracted from position, which the mean of so many texts keeps of the rest. "
        "Then of position, where it is above its floor: its stable rank; the dimensions that "
        "hold 95 % of it; its norm over that of the hidden states; its share in the ten lowest "
        "frequencies; its mean |cos| with texts."
    ),
    [
        "model",
        "layers",
        ("position %", ".1f"),
        ("text %", ".1f"),
        ("rest %", ".1f"),
        ("floor %", ".1f"),
        ("stable rank", ".1f"),
        ("dim. 95 %", ".0f"),
        ("rel. norm", ".2f"),
        ("smooth", ".2f"),
        ("|cos|", ".2f"),
    ],
)
def positional_basis(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure the decomposition in every layer."""
    states, positions = states_of_texts(subject, config)
    # A layer at a time: all of them may not fit into memory.
    layers = [vars(properties.positional_basis(np.asarray(layer))) for layer in states]
    rows: list[Row] = []
    panels = []
    for i, basis in enumerate(layers):
        gram = basis.pop("gram")
        # Otherwise most of the position is noise.
        is_clear = basis["position"] > basis["floor"]
        shares = [100 * basis[share] for share in _SHARES]
        shape = [basis[name] if is_clear else None for name in _SHAPE]
        rows.append([subject.name, str(i), *shares, *shape])
        if is_clear:
            title = "input"
            if i:
                title = f"after {i} layer{'s' * (i > 1)}"
            panels.append(product_panel(title, gram, positions))
    bars = {
        "position": np.array([basis["position"] for basis in layers]),
        "text": np.array([basis["context"] for basis in layers]),
    }
    pictures = [
        Figure(
            "positional_basis",
            figures.layer_shares,
            [(subject.name, bars)],
            title="Shares of the variance of hidden states",
            label="share of the variance; the rest: tokens",
        )
    ]
    if panels:
        title = f"Dot products of the positional basis: {subject.name}"
        name = f"positional_basis_gram_{subject.name}"
        pictures.append(product_figure(name, panels, title))
    source = texts(subject, config).source
    numbers = {"texts": source, "count": states.shape[1], "layers": layers}
    return Findings({subject.name: numbers}, rows, pictures)


@render.part(
    "Position probe",
    "The position of a token predicted from its hidden state after 0 layers (the input of the "
    "first), 1, 2, … (Haviv et al., 2022), by ridge regression and by a network of one hidden "
    "layer: trained on half of the texts, penalty and steps chosen on a quarter, R² (guessing the "
    "mean: 0) and mean absolute error of the last quarter. Decay: R² after all layers over the "
    "best. After each layer: position_probe.json.",
    [
        "model",
        "probe",
        ("R², input", ".3f"),
        ("best R²", ".3f"),
        ("layers", "d"),
        ("error, positions", ".1f"),
        "of length",
        ("R², last", ".3f"),
        ("decay", ".2f"),
    ],
)
def position_probe(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure R² and errors in every layer, of a linear map and of a small network."""
    name = subject.name
    states, positions = states_of_texts(subject, config)
    train, choose, test = split(states, positions, config.seed)
    probes = {
        "linear": properties.linear_probe(train, choose, test, ridge=config.ridge),
        "network": properties.mlp_probe(
            jax.random.key(config.seed), train, choose, test
        ),
    }
    numbers: Json = {
        "texts": texts(subject, config).source,
        "positions": len(positions),
        "tokens": [len(answers) for _, answers in (train, choose, test)],
        "error_of_a_guess": np.abs(test[1] - test[1].mean()).mean(),
    }
    curves: list[figures.Curve] = []
    rows: list[Row] = []
    for kind, probe in probes.items():
        numbers[kind] = vars(probe)
        rows.append([name, kind, *_summary(probe, len(positions))])
        curve = figures.Curve(
            f"R² on other texts, {kind}",
            "layers passed",
            *subject.label,
            x=np.arange(len(probe.r2)),
            y=probe.r2,
        )
        curves.append(curve)
    title = "Position read off a token's hidden state"
    figure = Figure("position_probe", figures.model_curves, curves, title=title)
    return Findings({name: numbers}, rows, [figure])


def split(
    states: Float[np.ndarray, "M N T D"], positions: Int[np.ndarray, " T"], seed: int
) -> list[tuple[Float[np.ndarray, "M K D"], Int[np.ndarray, " K"]]]:
    """Return tokens of half of the texts, of a quarter and of another, drawn at random: their
    states and positions. Where there are many texts, some tokens of each.

    Raises:
      ValueError: for fewer than four texts.
    """
    _, count, length, _ = states.shape
    if count < _LEAST_TEXTS:
        raise ValueError(
            f"The position probe needs {_LEAST_TEXTS} texts, got {count}: raise config.texts, or "
            "give more text with --config.text."
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(count)
    places = np.argsort(rng.random((count, length)), axis=1)  # Different in each text.
    places = places[:, : max(1, _MAX_TOKENS // count)]

    def tokens(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen = places[texts]
        vectors = []
        for layer in states:
            of_tokens = layer[texts[:, None], chosen]
            vectors.append(of_tokens.reshape(-1, layer.shape[-1]))
        return np.stack(vectors), positions[chosen].reshape(-1)

    half = count // 2
    return [tokens(texts) for texts in np.split(order, [half, half + count // 4])]


def _summary(probe: Probe, length: int) -> list[Value]:
    """Return the cells of a probe: of the input, of the best layer, and of the last."""
    if np.isnan(probe.r2).all():
        return [None] * 7
    best = int(np.nanargmax(probe.r2))
    error = probe.mean_absolute_error[best]
    decay = None
    if probe.r2[best] > _EVIDENCE:
        decay = probe.r2[-1] / probe.r2[best]
    return [
        probe.r2[0],
        probe.r2[best],
        best,
        error,
        f"{100 * error / length:.1f} %",
        probe.r2[-1],
        decay,
    ]


@render.part(
    "Attention flow",
    "Attention weights on texts, means over queries, texts and the heads of a layer: the share "
    "that goes to the first token, to the last ([CLS] and [SEP], except in random words) and "
    "to the key that gets most in each text; exp of the entropy; the distance to the attended "
    "keys. Rollout: the composition of a layer's outputs, through all layers up to it (0.5 A + "
    f"0.5 I): the first token, the token itself, and tokens within ± {_WINDOW}. Even: "
    "attention that is equal on all keys within reach. By head: attention_flow.json.",
    [
        "model",
        "layer",
        ("to the first", ".3f"),
        ("to the last", ".3f"),
        ("to the largest", ".3f"),
        ("effective keys", ".1f"),
        ("distance", ".1f"),
        ("rollout: first", ".3f"),
        ("rollout: own", ".3f"),
        (f"rollout: ± {_WINDOW}", ".3f"),
    ],
)
def attention_flow(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure statistics of the attention weights of all layers, means over texts."""
    model = subject.bert
    read = texts(subject, config)
    length = read.tokens.shape[1]
    statistics = by_text(
        _statistics_by_text(model),
        read.tokens,
        subject.params,
        batch=batch_size(length**2 * model.num_heads * model.num_layers),
    )
    # [N, H] and [N].
    by_head, rollout = jax.tree.map(properties.mean_over_texts, statistics)
    heads = {key: np.asarray(estimate.mean) for key, estimate in by_head.items()}
    layers = {key: mean.mean(-1) for key, mean in heads.items()}
    allowed = np.asarray(attended(model, length)) | np.eye(length, dtype=bool)
    uniform = allowed / allowed.sum(-1, keepdims=True)
    even = _statistics(jnp.asarray(uniform, jnp.float32))
    numbers = {
        "texts": len(read.tokens),
        "length": length,
        "source": read.source,
        "heads": heads,
        "layers": layers,
        "rollout": {key: estimate.mean for key, estimate in rollout.items()},
        "rollout_error": {key: estimate.error for key, estimate in rollout.items()},
        "even": even,
    }
    by_title = {title: layers[key] for key, title in _HEADS.items()}
    for key, title in _ROLLOUT.items():
        by_title[title] = np.asarray(rollout[key].mean)
    x = np.arange(model.num_layers)
    rows: list[Row] = []
    for i in x:
        values = [of_layer[i] for of_layer in by_title.values()]
        rows.append([subject.name, str(i), *values])
    even_means = [float(even[key].mean()) for key in _HEADS]
    rows.append([subject.name, "even", *even_means, None, None, None])
    by_layer = Figure(
        "attention_flow",
        figures.model_curves,
        [
            figures.Curve(title, "layer", *subject.label, x, y)
            for title, y in by_title.items()
        ],
        title="Where attention goes, by layer: means over heads and texts",
    )
    sinks = Figure(
        "attention_flow_heads",
        figures.matrix_grid,
        [figures.Panel(subject.name, heads["first"], 0, "layer", "head")],
        title="Attention to the first token, by head",
        label="mean share of a query's attention",
        limits=(0.0, 1.0),
    )
    return Findings({subject.name: numbers}, rows, [by_layer, sinks])


@functools.cache  # The same function for the same model, so that it is compiled once.
def _statistics_by_text(
    config: BertConfig,
) -> Callable[..., tuple[Statistics, Statistics]]:
    """Return `measure(params, tokens [B, L])`: statistics of each head, and of rollouts."""
    attend = weights_map(config)

    def measure(params, tokens):
        weights = attend(params, tokens)  # [B, N, H, L, L]
        mixture = properties.rollout(weights.mean(2))
        return _statistics(weights), properties.mixture_shares(mixture, window=_WINDOW)

    return measure


def _statistics(weights: jax.Array) -> Statistics:
    """Return statistics of weights `[*B, L, L]`, each `[*B]`."""
    return {
        **properties.attention_sinks(weights),
        "effective_keys": properties.effective_keys(weights),
        "distance": properties.mean_distance(weights),
    }
