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
    """Build an encoding in the sizes of BERT-base; raises a ValueError for an unknown name."""
    return from_name(name, **SIZES, max_length=max(LENGTHS))


def untrained(
    title: str, name: str = "", options: Mapping[str, Any] | None = None
) -> Entry:
    """Return the entry of an encoding of `base_size`, with parameters as they are drawn: `title` as
    configs write it, and as the list of choices shows it, by default the same without options."""
    encoding = base_size(title)
    return Entry(
        name=name or title, options=dict(options or {}), title=title, note=formulas(encoding),
        picture=without_repetition(properties.picture(encoding, lengths=_lengths(encoding))),
    )  # fmt: skip


def formulas(encoding: PositionEncoding) -> str:
    """Return the formulas of the parts of an encoding, a sentence each."""
    cards = [part.metadata for part in encoding._all_parts]
    return " ".join(dict.fromkeys(f"{card.formula}." for card in cards if card))


def layers_of_run(subject: MeasuredModel) -> list[Entry]:
    """Return an entry for each layer of a trained run, on lengths up to 512 that it can read.
    Proximities are the mean logits, times √d, of 16 pairs of random words that fill the inputs, see
    `properties.offset_kernel`; numbers are means over the heads."""
    model = subject.bert
    words, rng = jnp.asarray(subject.words, jnp.int32), jax.random.key(0)
    matrices: dict[int, jax.Array] = {}
    for length in _lengths(subject.encoding):
        tokens = properties.random_words(rng, words, count=WORD_PAIRS, length=length)
        batch = batch_size(2 * length**2 * model.num_heads * model.num_layers, 8)
        kernel = properties.offset_kernel(
            kernel_map(model), subject.params, tokens, batch=batch
        )
        matrices[length] = kernel.mean  # [N, H, L, L]
    step, name = f"step {subject.step:,}", subject.encoding.name
    note = f"{name}, {step}, trained on up to {subject.length} tokens."

    def entry(i: int) -> Entry:
        encoding = subject.encoding.layer(i)
        params = subject.encoding.layer_params(subject.position, i)
        phi = {length: mirrored(encoding, x[i]) for length, x in matrices.items()}
        picture = from_proximities(encoding, params, "logits of trained heads", phi)
        return Entry(
            name=subject.name, options={"layer": i}, title=f"{subject.name}, layer {i}", note=note,
            picture=without_repetition(picture),
        )  # fmt: skip

    return [entry(i) for i in range(model.num_layers)]


def _lengths(encoding: PositionEncoding) -> list[int]:
    """Return the lengths that an encoding has positions for, or else the longest that it has."""
    longest = encoding.max_length
    return [n for n in LENGTHS if longest is None or n <= longest] or [longest or 0]
