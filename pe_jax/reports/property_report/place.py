"""The masked-LM loss by the place of the token: are tokens at the ends predicted worse?"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import data, figures, properties
from pe_jax.console.markdown import table
from pe_jax.files import Json
from pe_jax.properties import Estimate
from pe_jax.reports.property_report.measures import signed
from pe_jax.reports.property_report.section import Section, Settings, for_json
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import batch_size, masked_lm, texts, token_losses
from pe_jax.shapes import Bool, Float

_SETS = 7  # Sets of places, masked one after the other: about 15 % each.


def place(subjects: list[Subject], settings: Settings) -> Section | None:
    """Losses of all tokens between the ends, each of them masked once."""
    scored = [subject for subject in subjects if masked_lm(subject)]
    if not scored:
        return None
    numbers: Json = {}
    rows, lines = [], {}
    for subject in scored:
        losses = _losses(subject, settings)
        found = properties.by_place(losses)
        edges = properties.bin_edges(losses.shape[1], len(found.bins.mean)) + 1
        by_place = properties.over_texts(losses)
        numbers[subject.name] = {
            "texts": len(losses),
            "source": texts(subject, settings).source,
            "loss": float(losses.mean()),
            "edges": edges.tolist(),
            "bins": _listed(found.bins),
            "first": _listed(found.first),
            "last": _listed(found.last),
            "places": _listed(by_place),
        }
        middle = (edges[:-1] + edges[1:] - 1) / 2
        lines[subject.name] = figures.Line(middle, *map(np.asarray, found.bins))
        rows.append(
            [subject.name, str(losses.shape[1] + 2), f"{losses.mean():.3f}",
             f"1–{edges[1] - 1}", signed(found.first), signed(found.last)]
        )  # fmt: skip
    skipped = [subject.name for subject in subjects if subject not in scored]
    text = [
        "Every token between the ends masked once, a seventh of a text at a time. The first and",
        "last bin of places less the middle half, in nats, ± standard error over texts. By bin and",
        "by place: place.json.",
        *([f"Without a masked-LM head: {', '.join(skipped)}."] if skipped else []),
        "",
        *table(
            ["model", "L", "loss, nats", "first places", "first − middle", "last − middle"], rows
        ),
    ]
    return Section("Loss by place", numbers, text, [_figure(lines, settings)])


def _losses(subject: Subject, settings: Settings) -> Float[np.ndarray, "N P"]:
    """Of each token between the ends of each text, when it is masked."""
    model, params = subject.model, masked_lm(subject)
    assert model and params and subject.tokenizer
    tokens = jnp.asarray(texts(subject, settings).tokens)
    mask = data.vocabulary(subject.tokenizer).mask
    count, length = tokens.shape

    @jax.jit
    def of_set(params, tokens, where):
        def score(rows):
            targets, where = rows
            losses = token_losses(model, params, jnp.where(where, mask, targets), targets)
            return jnp.where(where, losses, 0)

        return properties.in_batches(score, (tokens, where), batch_size(model, length))

    total = np.zeros((count, length), np.float64)
    for where in disjoint_sets(count, length, settings.config.seed):
        total += np.asarray(of_set(params, tokens, where))
    return total[:, 1:-1].astype(np.float32)


def disjoint_sets(count: int, length: int, seed: int) -> Bool[np.ndarray, "S N L"]:
    """Random sets of places of each text that together are all places but the ends, each place in
    one set."""
    inside = length - 2
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(inside), (count, 1)), axis=1)
    sets = min(_SETS, inside)
    chosen = order % sets == np.arange(sets)[:, None, None]
    return np.pad(chosen, ((0, 0), (0, 0), (1, 1)))


def _listed(one: Estimate) -> Json:
    return {"mean": for_json(one.mean), "error": for_json(one.error)}


def _figure(lines: dict[str, figures.Line], settings: Settings) -> Path:
    panel = figures.CurvePanel("masked-LM loss, nats", "place of the masked token", lines)
    return figures.model_curves(
        [panel],
        settings.figure("place"),
        title="Loss by the place of the token, shaded ± its standard error over texts",
        vector=settings.config.vector,
    )
