"""Parts on attention logits by position: identical word probing (paper, 3.1, eq. 5, figure 3),
offset kernels of every encoding, and the share of texts' logits that offsets explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.common.files import Json
from pe_jax.common.shapes import Bool, Int
from pe_jax.encodings import Params
from pe_jax.models import BertConfig, attended, attention_map, kernel_map
from pe_jax.properties import Estimate
from pe_jax.trainer import figures
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report import matrices, render
from pe_jax.trainer.reports.property_report.matrices import (
    Numbers,
    cells,
    logit_panels,
    violations,
)
from pe_jax.trainer.reports.property_report.render import Figure, Findings, logit_figure
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel, once
from pe_jax.trainer.reports.property_report.texts import batch_size, texts
from pe_jax.trainer.reports.tables import Row

_WEIGHT_METRICS = ("forward_share", "chen_locality", "chen_symmetry")


class _Inputs(NamedTuple):
    """Random inputs of the offset kernel."""

    draw: Callable[..., jax.Array]
    texts: int  # In each sample.
    description: str


# By `config.kernel`.
_INPUTS = {
    "words": _Inputs(
        properties.random_words,
        texts=2,
        description="pairs of random words: every query is one, every key the other",
    ),
    "texts": _Inputs(
        properties.random_texts,
        texts=1,
        description="texts of random words, as the model attends within them",
    ),
}


@once
def attention_among_copies(
    subject: MeasuredModel,
    config: PropertiesConfig,
    quantity: Literal["logits", "weights"],
) -> jax.Array:
    """Return Ā `[H, L, L]` of one layer, the mean over random words: logits or weights.

    Raises:
      ValueError: if the vocabulary has no whole words.
    """
    model = subject.bert
    if not len(subject.words):
        raise ValueError(
            f"The vocabulary of {subject.name} has no whole words to probe with."
        )
    rng = np.random.default_rng(config.seed)
    count = min(config.words, len(subject.words))
    words = rng.choice(subject.words, count, replace=False).astype(np.int32)
    length = min(config.length, subject.length)
    attend = attention_map(model, layer=config.layer, what=quantity)
    batch = batch_size(length**2 * model.num_heads)
    return properties.identical_words(
        attend, subject.params, words, length=length, batch=batch
    )


@render.part(
    "Identical words",
    lambda findings, config: (
        f"Copies of one word fill the input; attention {config.attention} of layer "
        f"{config.layer}, averaged over "
        f"{min(numbers['words'] for numbers in findings.numbers.values())} random words and "
        "the heads. The violations are of that matrix; forward share (-1 to 1), locality and "
        "symmetry (Chen et al. 2023, 1 = it holds) are of the softmaxed weights. By head: "
        "words.json."
    ),
    [
        "model",
        render.VIOLATIONS,
        ("forward share", ".3f"),
        ("Chen locality", ".3f"),
        ("Chen symmetry", ".3f"),
    ],
)
def identical_words(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure Ā, averaged over the heads and by head, and the attention weights."""
    logits = np.asarray(attention_among_copies(subject, config, "logits"))
    weights = np.asarray(attention_among_copies(subject, config, "weights"))
    shown = weights if config.attention == "weights" else logits

    def metrics(phi: np.ndarray, weights: np.ndarray) -> Numbers:
        numbers = violations(phi, config.windows)
        for name in _WEIGHT_METRICS:
            numbers[name] = float(getattr(properties, name)(weights))
        return numbers

    mean = metrics(shown.mean(0), weights.mean(0))
    numbers = {
        "words": min(config.words, len(subject.words)),
        "spread": shown.mean(0).std(),
        "average": mean,
        "heads": [metrics(*head) for head in zip(shown, weights, strict=True)],
    }
    row = [subject.name, *cells(mean, config.windows), *map(mean.get, _WEIGHT_METRICS)]
    panels = logit_panels(subject.name, shown, config.heads)
    title = f"Attention {config.attention} among identical words, layer {config.layer}"
    figure = logit_figure("figure3_words", panels, title, config.attention)
    return Findings({subject.name: numbers}, [row], [figure])


@once
def kernel(subject: MeasuredModel, config: PropertiesConfig) -> Estimate:
    """Return Φ and its standard error `[N, H, L, L]` of all layers, NaN where nothing is attended
    to.

    Raises:
      ValueError: if the vocabulary has fewer than two whole words.
    """
    model = subject.bert
    if len(subject.words) < 2:
        raise ValueError(
            f"The vocabulary of {subject.name} has fewer than two whole words to pair."
        )
    inputs = _INPUTS[config.kernel]
    length = min(config.length, subject.length)
    tokens = inputs.draw(
        jax.random.key(config.seed),
        jnp.asarray(subject.words, jnp.int32),
        count=_sample_count(config),
        length=length,
    )
    size = length**2 * model.num_heads * model.num_layers * inputs.texts
    return properties.offset_kernel(
        kernel_map(model),
        subject.params,
        tokens,
        where=_entries(subject, length)[:, None],
        batch=batch_size(size, 16 // inputs.texts),
    )


def _sample_count(config: PropertiesConfig) -> int:
    """Return the number of samples whose texts together are `config.words`."""
    return max(1, config.words // _INPUTS[config.kernel].texts)


def _entries(subject: MeasuredModel, length: int) -> np.ndarray:
    """Return the mask of entries that the layers have, `[N, L, L]`."""
    return np.asarray(attended(subject.bert, length))


def violations_by_layer(
    subject: MeasuredModel, config: PropertiesConfig, windows: Sequence[int]
) -> list[list[Numbers]]:
    """Return the violations of Φ by layer and head."""
    phi = kernel(subject, config).mean
    layers = []
    for matrix, entries in zip(phi, _entries(subject, phi.shape[-1]), strict=True):
        by_name = matrices.violations_of_each(matrix, windows, entries)
        heads = zip(*(values.tolist() for values in by_name.values()), strict=True)
        layers.append([dict(zip(by_name, values, strict=True)) for values in heads])
    return layers


@render.part(
    "Offset kernel",
    lambda findings, config: (
        f"Mean logits (times √d, before softmax) over {_sample_count(config)} "
        f"{_INPUTS[config.kernel].description}. Violations of Φ[i, j] off the diagonal and within "
        "reach, the mean over the heads; error: the standard error of Φ, its level left out, "
        "over Φ's standard deviation. By head, and as functions of the offset: "
        "offset_kernel.json."
    ),
    ["model", "layer", render.VIOLATIONS, ("error", ".2f")],
)
def offset_kernel(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure Φ by layer, of each head and their mean, and as a function of the offset."""
    name = subject.name
    estimate = jax.tree.map(np.asarray, kernel(subject, config))
    phi = estimate.mean
    entries = _entries(subject, phi.shape[-1])
    layers: list[Json] = []
    rows: list[Row] = []
    for i, heads in enumerate(violations_by_layer(subject, config, config.windows)):
        curve, spread = properties.offset_curve(phi[i], where=entries[i])
        mean = matrices.average(heads)
        noise = _noise(phi[i], estimate.error[i])
        layers.append(
            {
                "average": mean,
                "heads": heads,
                "error": noise,
                "curve": curve,
                "spread": spread,
            }
        )
        rows.append([name, str(i), *cells(mean, config.windows), noise.mean()])
    if len(phi) == 1:  # All models of one layer share a figure.
        pictures = _kernel_figures({name: phi[0]}, "", "", config)
    else:
        by_layer = {f"layer {i}": matrix for i, matrix in enumerate(phi)}
        pictures = _kernel_figures(by_layer, f"_{name}", f" of {name}", config)
    numbers = {
        "inputs": config.kernel,
        "samples": _sample_count(config),
        "layers": layers,
    }
    return Findings({name: numbers}, rows, pictures)


def _deviation(phi: np.ndarray) -> np.ndarray:
    """Return the standard deviation of each matrix of `[H, L, L]`, 0 for rounding errors."""
    deviation = np.nanstd(phi, (-2, -1))
    largest = np.nanmax(np.abs(phi), (-2, -1))
    return np.where(deviation > 1e-6 * largest, deviation, 0)


def _noise(phi: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the standard error over the standard deviation of each head; 0 if Φ is constant."""
    deviation = _deviation(phi)
    root = np.sqrt(np.nanmean(error**2, (-2, -1)))
    return np.divide(root, deviation, out=np.zeros_like(root), where=deviation > 0)


def _kernel_figures(
    kernels: dict[str, np.ndarray], suffix: str, subject: str, config: PropertiesConfig
) -> list[Figure]:
    """Return figures of the matrices, and of their means by offset, of titled Φ `[H, L, L]`."""
    panels = []
    for title, phi in kernels.items():
        panels += logit_panels(title, phi, config.heads)
    title = f"Offset kernel{subject}: mean logits of random words"
    curves = Figure(
        f"offset_kernel_curves{suffix}",
        figures.offset_curves,
        [_curve(title, phi) for title, phi in kernels.items()],
        title=f"Offset kernel{subject} by offset\n"
        "grey: single heads; blue: their mean, shaded ± its spread over positions",
        label="mean logit · √d, less its mean",
    )
    return [logit_figure(f"offset_kernel{suffix}", panels, title), curves]


def _curve(
    title: str, phi: np.ndarray
) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    """Return the panel of `figures.offset_curves` of a Φ."""
    entries = ~np.isnan(phi[0])
    shape = phi - np.nanmean(phi, (-2, -1), keepdims=True)
    # Rounding errors are not drawn as if they were a shape.
    shape[_deviation(phi) == 0] *= 0
    mean, spread = properties.offset_curve(shape.mean(0), where=entries)
    heads, _ = properties.offset_curve(shape, where=entries)
    return title, np.asarray(mean), np.asarray(spread), np.asarray(heads)


@render.part(
    "Share of positional logits that offsets explain",
    "Positional logits: the logits that enter the softmax, averaged over texts. Their variance "
    "along the keys of a query is what positions do to attention; the share is what a bias of the "
    "offset would reproduce, the heads weighted by their variance. σ: the root of the mean "
    "variance of the heads. Noise: the variance of the estimate, which is taken off, over the "
    "whole. By head: offset_share.json.",
    ["model", "layer", ("share", ".3f"), ("σ", ".2f"), ("noise", ".3f")],
)
def offset_share(subject: MeasuredModel, config: PropertiesConfig) -> Findings:
    """Measure the share by layer and head on `config.texts` texts."""
    tokens = texts(subject, config).tokens
    # A token meets itself on the diagonal, which is content.
    where = _inner_pairs(tokens.shape[1])
    np.fill_diagonal(where, False)
    phi = _mean_logits(subject.bert, subject.params, jnp.asarray(tokens))
    variances = properties.offset_variance(phi.mean, where, phi.error)
    whole, explained = map(np.asarray, variances)
    with_noise, _ = properties.offset_variance(phi.mean, where)
    observed = np.asarray(with_noise)
    layers = []
    rows: list[Row] = []
    for i, total in enumerate(whole.sum(1)):
        numbers = {
            "share": explained[i].sum() / total,
            "deviation": np.sqrt(whole[i].mean()),
            "noise": 1 - total / observed[i].sum(),
        }
        rows.append([subject.name, str(i), *numbers.values()])
        heads = {"share": explained[i] / whole[i], "deviation": np.sqrt(whole[i])}
        layers.append({**numbers, "heads": heads})
    return Findings({subject.name: {"texts": len(tokens), "layers": layers}}, rows)


def _inner_pairs(length: int) -> Bool[np.ndarray, "L L"]:
    """Return True at pairs of tokens between the first and the last: [CLS] and [SEP] are at the
    same positions in all texts, so that their effect could not be told from that of positions."""
    inside = np.zeros(length, bool)
    inside[1:-1] = True
    return inside & inside[:, None]


def _mean_logits(
    config: BertConfig, params: Params, tokens: Int[jax.Array, "B L"]
) -> Estimate:
    """Return mean logits over texts and their error, `[N, H, L, L]`, 0 outside `_inner_pairs`."""
    where = _inner_pairs(tokens.shape[1])
    phi = properties.offset_kernel(
        kernel_map(config), params, tokens[:, None], where=where, batch=4
    )
    return jax.tree.map(lambda x: jnp.where(where, x, 0) / config.head_size**0.5, phi)
