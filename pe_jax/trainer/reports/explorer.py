"""Entries of the explorer: untrained encodings, and the layers of trained runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax import properties
from pe_jax.encodings import PositionEncoding, from_name
from pe_jax.models import kernel_map
from pe_jax.properties.encoding_measures import SIZES, mirrored
from pe_jax.properties.pictures import LENGTHS, from_proximities
from pe_jax.trainer.reports.explorer_page import Entry, without_repetition
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel
from pe_jax.trainer.reports.property_report.texts import batch_size

WORD_PAIRS = 16


def base_size(name: str) -> PositionEncoding:
    """Build an encoding in the sizes of BERT-base.

    Raises:
      ValueError: for a name that cannot be read, or an unknown encoding.
    """
    return from_name(name, **SIZES, max_length=max(LENGTHS))


def untrained(
    title: str, name: str = "", options: Mapping[str, Any] | None = None
) -> Entry:
    """Return the entry of an encoding of `base_size`, with parameters as they are drawn.

    Args:
      title: the encoding as configs write it.
      name: its name in the list of choices, which entries with other `options` share; by default
        `title`, without options.
    """
    encoding = base_size(title)
    picture = properties.picture(encoding, lengths=_lengths(encoding))
    return Entry(
        name=name or title,
        options=dict(options or {}),
        title=title,
        note=formulas(encoding),
        picture=without_repetition(picture),
    )


def formulas(encoding: PositionEncoding) -> str:
    """Return the formulas of the parts of an encoding, a sentence each."""
    cards = [part.metadata for part in encoding._all_parts]
    return " ".join(dict.fromkeys(f"{card.formula}." for card in cards if card))


def layers_of_run(subject: MeasuredModel) -> list[Entry]:
    """Return an entry for each layer of a trained run, on lengths up to 512 that it can read.

    Proximities are the mean logits, times √d, of 16 pairs of random words that fill the inputs, see
    `properties.offset_kernel`; numbers are means over the heads.

    Raises:
      ValueError: if the vocabulary has fewer than two whole words.
    """
    model = subject.bert
    encoding = subject.encoding
    words = jnp.asarray(subject.words, jnp.int32)
    rng = jax.random.key(0)
    matrices: dict[int, jax.Array] = {}  # Length -> [N, H, L, L].
    for length in _lengths(encoding):
        tokens = properties.random_words(rng, words, count=WORD_PAIRS, length=length)
        batch = batch_size(2 * length**2 * model.num_heads * model.num_layers, 8)
        kernel = properties.offset_kernel(
            kernel_map(model), subject.params, tokens, batch=batch
        )
        matrices[length] = kernel.mean
    note = f"{encoding.name}, step {subject.step:,}, trained on up to {subject.length} tokens."
    entries = []
    for i in range(model.num_layers):
        layer = encoding.layer(i)
        picture = from_proximities(
            layer,
            encoding.layer_params(subject.position, i),
            "logits of trained heads",
            {length: mirrored(layer, phi[i]) for length, phi in matrices.items()},
        )
        entry = Entry(
            name=subject.name,
            options={"layer": i},
            title=f"{subject.name}, layer {i}",
            note=note,
            picture=without_repetition(picture),
        )
        entries.append(entry)
    return entries


def _lengths(encoding: PositionEncoding) -> list[int]:
    """Return the lengths that an encoding has positions for, or else the longest that it has."""
    longest = encoding.max_length
    if longest is None:
        return list(LENGTHS)
    return [length for length in LENGTHS if length <= longest] or [longest]
