"""Part on attention weights on texts: sinks, reach and rollout, by layer and head."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import figures, properties
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.models import BertConfig, attended, weights_map
from pe_jax.properties import Estimate
from pe_jax.reports.property_report import render
from pe_jax.reports.property_report.render import Figure, Findings
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import texts
from pe_jax.reports.tables import Row

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


@render.part_of_each(
    "Attention flow",
    render.MODEL,
    (
        "Attention weights on texts, means over queries, texts and the heads of a layer: the share "
        "that goes to the first token, to the last ([CLS] and [SEP], except in random words) and "
        "to the key that gets most in each text; exp of the entropy; the distance to the attended "
        "keys. Rollout: the composition of a layer's outputs, through all layers up to it (0.5 A + "
        f"0.5 I): the first token, the token itself, and tokens within ± {_WINDOW}. Even: "
        "attention that is equal on all keys within reach. By head: attention_flow.json.",
        ["model", "layer", ("to the first", ".3f"), ("to the last", ".3f"),
         ("to the largest", ".3f"), ("effective keys", ".1f"), ("distance", ".1f"),
         ("rollout: first", ".3f"), ("rollout: own", ".3f"), (f"rollout: ± {_WINDOW}", ".3f")],
    ),
)  # fmt: skip
def attention_flow(subject: Subject, config: PropertiesConfig) -> Findings:
    """Measure statistics of the attention weights of all layers, means over texts."""
    name, model, read = subject.name, subject.bert, texts(subject, config)
    length = read.tokens.shape[1]
    # Bounds the memory of a batch's weights, and of the [L, L, d] that some encodings make.
    batch = max(1, min(16, 2**25 // (length**2 * model.num_heads * model.num_layers)))
    by_text = _statistics_by_text(model)(subject.params, jnp.asarray(read.tokens), batch)
    by_head, rollout = map(_means, by_text)  # [N, H] by head, [N] of the rollout.
    even = _even_attention(model, length)
    layers = {key: estimate.mean.mean(-1) for key, estimate in by_head.items()}
    numbers = {
        "texts": len(read.tokens),
        "length": length,
        "source": read.source,
        "heads": {key: estimate.mean.tolist() for key, estimate in by_head.items()},
        "layers": {key: values.tolist() for key, values in layers.items()},
        "rollout": {key: estimate.mean.tolist() for key, estimate in rollout.items()},
        "rollout_error": {key: estimate.error.tolist() for key, estimate in rollout.items()},
        "even": {key: values.tolist() for key, values in even.items()},
    }
    curves = {title: layers[key] for key, title in _HEADS.items()}
    curves |= {title: rollout[key].mean for key, title in _ROLLOUT.items()}
    count = len(even["first"])
    rows: list[Row] = [
        [name, str(i), *(values[i] for values in curves.values())] for i in range(count)
    ]
    rows.append([name, "even", *(even[key].mean() for key in _HEADS), *[None] * len(_ROLLOUT)])
    by_layer = Figure(
        "attention_flow",
        figures.model_curves,
        [
            figures.Curve(title, "layer", name, np.arange(count), values)
            for title, values in curves.items()
        ],
        title="Where attention goes, by layer: means over heads and texts",
    )
    sinks = Figure(
        "attention_flow_heads",
        figures.head_maps,
        [(name, by_head["first"].mean)],
        title="Attention to the first token, by head",
        label="mean share of a query's attention",
    )
    return Findings({name: numbers}, rows, [by_layer, sinks])


def _means(statistics: Statistics) -> dict[str, Estimate]:
    """Return means over texts."""
    means = {name: properties.mean_over_texts(values) for name, values in statistics.items()}
    return {name: Estimate(*map(np.asarray, mean)) for name, mean in means.items()}


@functools.cache  # The same function for the same model, so that it is compiled once.
def _statistics_by_text(config: BertConfig) -> Callable[..., tuple[Statistics, Statistics]]:
    """Return `measure(params, tokens [N, L], batch)`: statistics of each head, and of rollouts."""
    attend = weights_map(config)

    @functools.partial(jax.jit, static_argnums=2)
    def measure(params, tokens, batch):
        def measure_batch(rows):
            weights = attend(params, rows)  # [B, N, H, L, L]
            mixture = properties.rollout(weights.mean(2))
            return _statistics(weights), properties.mixture_shares(mixture, window=_WINDOW)

        return properties.in_batches(measure_batch, tokens, batch)

    return measure


def _statistics(weights: jax.Array) -> Statistics:
    """Return statistics of weights `[*B, L, L]`, each `[*B]`."""
    return {
        **properties.attention_sinks(weights),
        "effective_keys": properties.effective_keys(weights),
        "distance": properties.mean_distance(weights),
    }


def _even_attention(model: BertConfig, length: int) -> dict[str, np.ndarray]:
    """Return statistics of attention that is even on all keys within reach, `[N]` each."""
    allowed = np.asarray(attended(model, length)) | np.eye(length, dtype=bool)
    weights = jnp.asarray(allowed / allowed.sum(-1, keepdims=True), jnp.float32)
    return {name: np.asarray(values) for name, values in _statistics(weights).items()}
