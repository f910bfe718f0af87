"""The table of published encoders agrees with the registry, and the pages with the table."""

from pathlib import Path

import pytest
import write_hf_table
from catalogue import published
from catalogue.published import ALL_FORMATS, PUBLISHED
from helpers.published_configs import ENCODERS as TEXTS
from helpers.published_configs import imported

from pe_jax.interop import from_hf
from pe_jax.interop.bert_import import current_config
from pe_jax.interop.hf_encoders import HEADS, format_of
from pe_jax.interop.hf_registry import ENCODERS

ROOT = Path(__file__).parents[2]
WITH_TEXT = [encoder for encoder in PUBLISHED if encoder.config]
WITHOUT_TEXT = [encoder for encoder in PUBLISHED if not encoder.config]


def names(encoders):
    return [encoder.name for encoder in encoders]


def test_each_format_has_a_published_encoder():
    assert {encoder.format for encoder in PUBLISHED} == {*ALL_FORMATS}
    assert {encoder.format.partition("/")[0] for encoder in PUBLISHED} == {*ENCODERS}
    assert len({*names(PUBLISHED)}) == len(PUBLISHED)
    assert len({encoder.config for encoder in WITH_TEXT}) == len(WITH_TEXT)


@pytest.mark.parametrize("encoder", WITH_TEXT, ids=names(WITH_TEXT))
def test_the_published_config_gives_the_encoding(encoder):
    assert not encoder.keys
    config = TEXTS[encoder.config]
    assert imported(config).name == encoder.encoding
    found = format_of(current_config(config, encoder.name))
    assert found is ALL_FORMATS[encoder.format]


@pytest.mark.parametrize("encoder", WITHOUT_TEXT, ids=names(WITHOUT_TEXT))
def test_the_defaults_of_the_class_give_the_encoding(encoder):
    model_type = encoder.format.partition("/")[0]
    config = {"model_type": model_type, **encoder.keys}
    assert from_hf(config).name == encoder.encoding
    assert format_of(config) is ALL_FORMATS[encoder.format]


def test_weights_were_tried_of_two_models():
    tried = [encoder for encoder in PUBLISHED if encoder.weights_tried]
    assert names(tried) == [
        "sentence-transformers/all-MiniLM-L6-v2",
        "sentence-transformers/all-mpnet-base-v2",
    ]


def test_the_table_of_heads():
    rows = {}
    for line in published.heads_table()[2:]:
        title, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[title] = cells
    assert len(rows) == len(ALL_FORMATS) and {*published.HEAD_TITLES} == {*HEADS}
    #                           masked LM, classifier, spans, tokens, pooler, next sentence
    assert rows["`t5`"][:6] == ["–", "–", "–", "yes", "–", "–"]
    assert rows["`eurobert`"][:6] == ["yes", "yes", "–", "yes", "–", "–"]
    # Exported, and in transformers 5.
    assert rows["`bert` with `alibi_starting_size`"][6:8] == ["–", "–"]
    assert rows["`nezha`"][6:8] == ["yes", "–"]


def test_a_card_names_encoders_whose_encoding_has_it_as_a_part():
    window = "\n".join(published.card_lines("window"))
    assert 'interop.load_encoder("answerdotai/ModernBERT-base")' in window
    assert "`answerdotai/ModernBERT-large`" in window
    assert "- `sijunhe/nezha-cn-base` (`nezha`)" in published.card_lines("nezha")
    assert published.card_lines("fox") == []


def test_the_pages_have_the_table():
    page = write_hf_table.PAGE.read_text(encoding="utf-8")
    assert write_hf_table.published_sections() in page, (
        "The page is out of date: python tools/write_hf_table.py"
    )
    cards = {}
    for file in ROOT.glob("docs/gallery/*.md"):
        for card in file.read_text(encoding="utf-8").split("\n## `")[1:]:
            cards[card.partition("`")[0]] = card
    shown = {key for key, card in cards.items() if "**Load it.**" in card}
    assert shown == {
        part for encoder in PUBLISHED for part in encoder.parts if part in cards
    }
    for key in shown:
        assert "\n".join(published.card_lines(key)) in cards[key], (
            "The cards are out of date: python tools/write_catalogue.py"
        )
