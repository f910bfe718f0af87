"""Part on how Toeplitz a model is: positional logits of texts, and the share offsets explain."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from pe_jax import properties
from pe_jax.configs.properties import PropertiesConfig
from pe_jax.reports.property_report import render
from pe_jax.reports.property_report.render import Findings
from pe_jax.reports.property_report.subjects import Subject
from pe_jax.reports.property_report.texts import texts
from pe_jax.reports.tables import Row
from pe_jax.tasks.position_fit import inner_pairs, mean_logits


@render.part(
    "Share of positional logits that offsets explain",
    render.MODEL,
    (
        "Positional logits: the logits that enter the softmax, averaged over texts. Their variance "
        "along the keys of a query is what positions do to attention; the share is what a bias of "
        "the offset would reproduce, the heads weighted by their variance. σ: the root of the mean "
        "variance of the heads. Noise: the variance of the estimate, which is taken off, over the "
        "whole. By head: offset_share.json.",
        ["model", "layer", ("share", ".3f"), ("σ", ".2f"), ("noise", ".3f")],
    ),
)
def offset_share(subject: Subject, config: PropertiesConfig) -> Findings:
    """Measure the share by layer and head on `config.texts` texts."""
    tokens = texts(subject, config).tokens
    # A token meets itself on the diagonal, which is content.
    where = inner_pairs(tokens.shape[1]) & ~np.eye(tokens.shape[1], dtype=bool)
    phi = mean_logits(subject.bert, subject.params, jnp.asarray(tokens))
    whole, explained = map(np.asarray, properties.offset_variance(phi.mean, where, phi.error))
    observed = np.asarray(properties.offset_variance(phi.mean, where)[0])
    layers, rows = [], list[Row]()
    for i in range(len(whole)):
        total = whole[i].sum()
        numbers = {
            "share": float(explained[i].sum() / total),
            "deviation": float(np.sqrt(whole[i].mean())),
            "noise": float(1 - total / observed[i].sum()),
        }
        rows.append([subject.name, str(i), *numbers.values()])
        heads = {"share": explained[i] / whole[i], "deviation": np.sqrt(whole[i])}
        layers.append({**numbers, "heads": {name: x.tolist() for name, x in heads.items()}})
    return Findings({subject.name: {"texts": len(tokens), "layers": layers}}, rows)
