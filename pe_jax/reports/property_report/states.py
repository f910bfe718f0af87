"""Parts on hidden states by layer: the positional basis, and the position probe."""

from __future__ import annotations

import jax
import numpy as np

from pe_jax import figures, properties
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.files import Json
from pe_jax.properties import Probe
from pe_jax.reports.property_report import render
from pe_jax.reports.property_report.matrices import product_panel
from pe_jax.reports.property_report.render import Figure, Findings, product_figure
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import states_of_texts, texts
from pe_jax.reports.tables import Row, Value, for_json
from pe_jax.shapes import Float, Int

_SHARES = ("position", "context", "residual", "floor")
_SHAPE = ("stable_rank", "dimensions", "relative_norm", "smoothness", "coherence")
_MAX_TOKENS = 2**14  # Of the probe's texts together: all layers are in memory at a time.
_LEAST_TEXTS = 4  # To train on, choose by and test on.
_EVIDENCE = 0.1  # An R² below it says nothing that could decay.


def _about_basis(findings: Findings, config: PropertiesConfig) -> str:
    del config
    numbers = findings.numbers.values()
    counts = " or ".join(dict.fromkeys(str(model["count"]) for model in numbers))
    sources = " and ".join(dict.fromkeys(model["texts"] for model in numbers))
    return (
        "Hidden states as mean + position + text + rest (Song & Zhong, 2023) after 0 layers (the "
        f"input of the first), 1, 2, …, of {counts} texts ({sources}). Percentages of the "
        "variance; floor: the share subtracted from position, which the mean of so many texts "
        "keeps of the rest. Then of position, where it is above its floor: its stable rank; the "
        "dimensions that hold 95 % of it; its norm over that of the hidden states; its share in "
        "the ten lowest frequencies; its mean |cos| with texts."
    )


@render.part_of_each(
    "Positional basis",
    render.MODEL,
    (
        _about_basis,
        ["model", "layers", ("position %", ".1f"), ("text %", ".1f"), ("rest %", ".1f"),
         ("floor %", ".1f"), ("stable rank", ".1f"), ("dim. 95 %", ".0f"), ("rel. norm", ".2f"),
         ("smooth", ".2f"), ("|cos|", ".2f")],
    ),
)  # fmt: skip
def positional_basis(subject: Subject, config: PropertiesConfig) -> Findings:
    """Measure shares of position, text and the rest in the variance of hidden states, and the
    shape of the positions' share."""
    name = subject.name
    states, positions = states_of_texts(subject, config)
    # A layer at a time: all of them may not fit into memory.
    layers = [properties.positional_basis(np.asarray(layer)) for layer in states]
    findings, grams, listed = Findings(), [], []
    for i, basis in enumerate(layers):
        values = basis._asdict()
        listed.append({key: for_json(value) for key, value in values.items() if key != "gram"})
        is_clear = bool(basis.position > basis.floor)  # Otherwise most of pos is noise.
        shares = [100 * float(values[share]) for share in _SHARES]
        shape: list[Value] = [float(values[key]) if is_clear else None for key in _SHAPE]
        findings.rows.append([name, str(i), *shares, *shape])
        if is_clear:
            title = f"after {i} layer{'s' if i > 1 else ''}" if i else "input"
            grams.append(product_panel(title, basis.gram, positions))
    source, count = texts(subject, config).source, states.shape[1]
    findings.numbers[name] = {"texts": source, "count": count, "layers": listed}
    bars = {
        "position": np.array([basis.position for basis in layers]),
        "text": np.array([basis.context for basis in layers]),
    }
    shares_figure = Figure(
        "positional_basis",
        figures.layer_shares,
        [(name, bars)],
        title="Shares of the variance of hidden states",
        label="share of the variance; the rest: tokens",
    )
    findings.figures.append(shares_figure)
    if grams:
        title = f"Dot products of the positional basis: {name}"
        findings.figures.append(product_figure(f"positional_basis_gram_{name}", grams, title))
    return findings


@render.part_of_each(
    "Position probe",
    render.MODEL,
    (
        "The position of a token predicted from its hidden state after 0 layers (the input of the "
        "first), 1, 2, … (Haviv et al., 2022), by ridge regression and by a network of one hidden "
        "layer: trained on half of the texts, penalty and steps chosen on a quarter, R² (guessing "
        "the mean: 0) and mean absolute error of the last quarter. Decay: R² after all layers over "
        "the best. After each layer: position_probe.json.",
        ["model", "probe", ("R², input", ".3f"), ("best R²", ".3f"), ("layers", "d"),
         ("error, positions", ".1f"), "of length", ("R², last", ".3f"), ("decay", ".2f")],
    ),
)  # fmt: skip
def position_probe(subject: Subject, config: PropertiesConfig) -> Findings:
    """Measure R² and errors in every layer, of a linear map and of a small network."""
    name = subject.name
    states, positions = states_of_texts(subject, config)
    train, choose, test = split(states, positions, config.seed)
    probes = {
        "linear": properties.linear_probe(train, choose, test, ridge=config.ridge),
        "network": properties.mlp_probe(jax.random.key(config.seed), train, choose, test),
    }
    length = len(positions)
    numbers: Json = {
        "texts": texts(subject, config).source,
        "positions": length,
        "tokens": [len(answers) for _, answers in (train, choose, test)],
        "error_of_a_guess": float(np.abs(test[1] - test[1].mean()).mean()),
    }
    curves: list[figures.Curve] = []
    rows: list[Row] = []
    for kind, probe in probes.items():
        numbers[kind] = {key: for_json(values) for key, values in probe._asdict().items()}
        rows.append([name, kind, *_summary(probe, length)])
        panel, layers = f"R² on other texts, {kind}", np.arange(len(probe.r2))
        curves.append(figures.Curve(panel, "layers passed", name, layers, probe.r2))
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
    kept = min(length, max(1, _MAX_TOKENS // count))
    places = np.argsort(rng.random((count, length)), axis=1)[:, :kept]  # Different in each text.

    def tokens(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        index = texts[:, None], places[texts]
        chosen = np.stack([layer[index].reshape(-1, layer.shape[-1]) for layer in states])
        return chosen, positions[places[texts]].reshape(-1)

    return [*map(tokens, np.split(order, [count // 2, count // 2 + count // 4]))]


def _summary(probe: Probe, length: int) -> list[Value]:
    """Return the cells of a probe: of the input, of the best layer, and of the last."""
    if np.isnan(probe.r2).all():
        return [None] * 7
    best = int(np.nanargmax(probe.r2))
    error = probe.mean_absolute_error[best]
    decay = probe.r2[-1] / probe.r2[best] if probe.r2[best] > _EVIDENCE else None
    return [
        probe.r2[0], probe.r2[best], best, error, f"{100 * error / length:.1f} %", probe.r2[-1],
        decay,
    ]  # fmt: skip
