"""The picture of a trained model of the comparison."""

from __future__ import annotations

from pathlib import Path

from pe_jax.properties import picture
from pe_jax.properties.encoding_measures import mirrored, one_layer, position_vectors
from pe_jax.properties.pictures import Picture, from_proximities
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report.logits import attention_among_copies
from pe_jax.trainer.reports.property_report.subjects import from_run


def trained_picture(folder: Path) -> Picture:
    """Return the picture of the first layer of a run: of P·Pᵀ where the encoding adds vectors to
    the input, else of the logits of inputs that repeat one of 50 words, mean over words."""
    subject = from_run(folder)
    if position_vectors(subject.encoding, subject.bert.hidden_size):
        return picture(subject.encoding, subject.position, lengths=[64])
    encoding, params = one_layer(subject.encoding, subject.position)
    phi = attention_among_copies(
        subject, PropertiesConfig(length=64, words=50), "logits"
    )
    return from_proximities(encoding, params, "logits", {64: mirrored(encoding, phi)})
