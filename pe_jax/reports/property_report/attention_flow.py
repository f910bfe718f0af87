"""Where attention goes on texts: sinks, reach and rollout, by layer and head."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.models import BertConfig, attended, weights_map
from pe_jax.properties import Estimate
from pe_jax.reports.property_report.section import Section, Settings
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import texts

_WINDOW = 5  # Positions on either side that count as near.

# Name in the JSON file -> heading of tables and panels.
_HEADS = {
    "first": "to the first",
    "last": "to the last",
    "largest": "to the largest",
    "effective_keys": "effective keys",
    "distance": "distance",
}
_ROLLOUT = {
    "first": "rollout: first",
    "own": "rollout: own",
    "near": f"rollout: ± {_WINDOW}",
}
_PANELS = {
    "first": "attention to the first token",
    "last": "attention to the last token",
    "largest": "attention to the largest sink",
    "effective_keys": "effective number of keys",
    "distance": "mean distance |j − i|",
}
_ROLLOUT_PANELS = {
    "first": "rollout: share of the first token",
    "own": "rollout: share of the token itself",
    "near": f"rollout: share within ± {_WINDOW}",
}

Statistics = dict[str, jax.Array]


def flow(subjects: list[Subject], settings: Settings) -> Section | None:
    """Statistics of the attention weights of all layers, means over texts."""
    subjects = [subject for subject in subjects if subject.model]
    if not subjects:
        return None
    numbers: Json = {}
    rows, sinks = [], {}
    for subject in subjects:
        by_head, mixed = _measure(subject, settings)
        even = _even(subject, settings)
        sinks[subject.name] = by_head["first"].mean
        read = texts(subject, settings)
        numbers[subject.name] = {
            "texts": len(read.tokens),
            "length": read.tokens.shape[1],
            "source": read.source,
            "heads": {name: one.mean.tolist() for name, one in by_head.items()},
            "layers": {name: one.mean.mean(-1).tolist() for name, one in by_head.items()},
            "rollout": {name: one.mean.tolist() for name, one in mixed.items()},
            "rollout_error": {name: one.error.tolist() for name, one in mixed.items()},
            "even": {name: one.tolist() for name, one in even.items()},
        }
        found = numbers[subject.name]
        rows += [[subject.name, str(i), *_cells(found, i)] for i in range(len(even["first"]))]
        flat = {name: float(one.mean()) for name, one in even.items()}
        rows.append([subject.name, "even", *_formatted(flat), *["–"] * len(_ROLLOUT)])
    lines = [
        "Attention weights on texts, means over queries, texts and the heads of a layer: the share",
        "that goes to the first token, to the last ([CLS] and [SEP], but in random words) and to",
        "the key that gets most in each text; exp of the entropy; the distance to what is attended",
        "to. Rollout: what outputs of a layer are made of, by the layers up to it (0.5 A + 0.5 I):",
        f"the first token, the token itself, and tokens within ± {_WINDOW}. Even: attention that",
        "is equal on all keys within reach. By head: attention_flow.json.",
        "",
        *table(["model", "layer", *_HEADS.values(), *_ROLLOUT.values()], rows),
    ]
    return Section("Attention flow", numbers, lines, _figures(numbers, sinks, settings))


def _cells(found: Json, layer: int) -> list[str]:
    """Of a layer: means of its heads, and the rollout."""
    heads = {name: found["layers"][name][layer] for name in _HEADS}
    return [*_formatted(heads), *(f"{found['rollout'][name][layer]:.3f}" for name in _ROLLOUT)]


def _formatted(heads: dict[str, float]) -> list[str]:
    masses = ("first", "last", "largest")
    return [f"{heads[name]:.3f}" if name in masses else f"{heads[name]:.1f}" for name in _HEADS]


def _measure(
    subject: Subject, settings: Settings
) -> tuple[dict[str, Estimate], dict[str, Estimate]]:
    """Over texts, `[N, H]` each by head and `[N]` each of the rollout."""
    assert subject.model is not None
    tokens = jnp.asarray(texts(subject, settings).tokens)
    size = tokens.shape[1] ** 2 * subject.model.num_heads * subject.model.num_layers
    # Bounds the memory of a batch's weights, and of the [L, L, d] that some encodings make.
    batch = max(1, min(16, 2**25 // size))
    by_head, mixed = _by_text(subject.model)(subject.params, tokens, batch)
    return _over_texts(by_head), _over_texts(mixed)


def _over_texts(statistics: Statistics) -> dict[str, Estimate]:
    each = {name: properties.over_texts(values) for name, values in statistics.items()}
    return {name: Estimate(*map(np.asarray, one)) for name, one in each.items()}


@functools.cache  # The same function for the same model, so that it is compiled once.
def _by_text(config: BertConfig) -> Callable[..., tuple[Statistics, Statistics]]:
    attend = weights_map(config)

    @functools.partial(jax.jit, static_argnums=2)
    def measure(params, tokens, batch):
        def of_batch(rows):
            weights = attend(params, rows)  # [B, N, H, L, L]
            mixed = properties.shares(properties.rollout(weights.mean(2)), window=_WINDOW)
            return statistics(weights), mixed._asdict()

        return properties.in_batches(of_batch, tokens, batch)

    return measure


def statistics(weights: jax.Array) -> Statistics:
    """Of weights `[*B, L, L]`, each `[*B]`."""
    return {
        **properties.sink_mass(weights)._asdict(),
        "effective_keys": properties.effective_keys(weights),
        "distance": properties.mean_distance(weights),
    }


def _even(subject: Subject, settings: Settings) -> dict[str, np.ndarray]:
    """Of attention that is even on all keys within reach, `[N]` each."""
    assert subject.model is not None
    length = texts(subject, settings).tokens.shape[1]
    allowed = np.asarray(attended(subject.model, length)) | np.eye(length, dtype=bool)
    found = statistics(jnp.asarray(allowed / allowed.sum(-1, keepdims=True), jnp.float32))
    return {name: np.asarray(one) for name, one in found.items()}


def _figures(numbers: Json, sinks: dict[str, np.ndarray], settings: Settings) -> list[Path]:
    panels = [
        figures.CurvePanel(
            title,
            "layer",
            {
                model: figures.Line(np.arange(len(found[part][name])), np.array(found[part][name]))
                for model, found in numbers.items()
            },
        )
        for part, titles in (("layers", _PANELS), ("rollout", _ROLLOUT_PANELS))
        for name, title in titles.items()
    ]
    return [
        figures.model_curves(
            panels,
            settings.figure("attention_flow"),
            title="Where attention goes, by layer: means over heads and texts",
            vector=settings.config.vector,
        ),
        figures.head_maps(
            sinks,
            settings.figure("attention_flow_heads"),
            title="Attention to the first token, by head",
            label="mean share of a query's attention",
            vector=settings.config.vector,
        ),
    ]
