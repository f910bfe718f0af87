"""Sentences of a document, and the documents that are held out."""

import pytest

from pe_jax.trainer import data
from pe_jax.trainer.data import tokenized
from pe_jax.trainer.data.tokenized import sentences


def test_sentences():
    text = (
        'He said "Stop." Then he left. It cost 3.5 pounds! (Really?) Yes.\nA new line'
    )
    assert list(sentences(text)) == [
        'He said "Stop."',
        "Then he left.",
        "It cost 3.5 pounds!",
        "(Really?)",
        "Yes.",
        "A new line",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello there. is it? yes.", ["hello there.", "is it?", "yes."]),
        (
            "Первое. Второе и т. д. стоит! «Да».",
            ["Первое.", "Второе и т. д. стоит!", "«Да»."],
        ),
        ("Das ist neu. Ändert es? Ö!", ["Das ist neu.", "Ändert es?", "Ö!"]),
        ("第一句。他说「好。」然后？", ["第一句。", "他说「好。」", "然后？"]),
        ("पहला। दूसरा।", ["पहला।", "दूसरा।"]),
    ],
    ids=["lower-case", "Russian", "German", "Chinese", "Hindi"],
)
def test_sentences_of_any_script(text, expected):
    assert sentences(text) == expected


def test_text_without_stops_is_cut_into_windows():
    words = "word " * 100
    assert " ".join(sentences(words)) == words.strip()
    assert max(map(len, sentences(words))) <= 100
    assert "".join(sentences("ไทย" * 200)) == "ไทย" * 200
    assert sentences("a" * 300) == ["a" * 300]  # A document of one sentence.


def test_the_rule_for_any_script_changes_no_english_text():
    for document in data.open_corpus("pydoc").documents():
        english = filter(None, map(str.strip, tokenized._ENGLISH_END.split(document)))
        assert sentences(document) == list(english)


def test_splits(books):
    corpus = books[0]
    train, held_out = corpus.split(0.25)
    assert held_out.tolist() == [3, 7, 11]
    assert sorted([*train, *held_out]) == list(range(12))
    with pytest.raises(
        ValueError, match=r"held_out=0.05 .* 12 document.*data.validation"
    ):
        corpus.split(0.05)
    assert len(corpus.split(0.4)[1]) == 4  # Not every second one.
