"""Labelled spans of texts: words, offsets, windows of long texts, and transformers' pipeline."""

import string

import numpy as np
import pytest
from helpers.byte_level import byte_level
from helpers.sentence_folders import encoder_folder, tagger_folder

from pe_jax.interop import TextSpan, load_encoder
from pe_jax.interop.text_tagging import tag_texts
from pe_jax.trainer import data

LABELS = ("O", "B-per", "I-per", "B-loc", "I-loc")
PLAIN = ("NOUN", "VERB", "ADJ")


@pytest.fixture(scope="module")
def word_piece(tmp_path_factory):
    """A tokenizer of letters, and pieces of more."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [*string.ascii_lowercase, *(f"##{x}" for x in string.ascii_lowercase)]
    file = tmp_path_factory.mktemp("words") / "vocab.txt"
    file.write_text("\n".join([*special, *letters, *".,-'"]) + "\n")
    return data.load_tokenizer(file)


def by_first_letter(tokenizer, classes):
    """Probabilities that say of a token what its id is, and the shapes of the batches."""
    shapes = []

    def probabilities(inputs):
        shapes.append(inputs.tokens.shape)
        ids = np.asarray(inputs.tokens)
        chosen = np.zeros((*ids.shape, len(classes)), np.float32)
        for letter, index in classes.items():
            number = tokenizer.token_to_id(letter)
            chosen[..., list(classes).index(letter)] = np.where(ids == number, 0.8, 0.1)
            assert index == list(classes).index(letter)
        return chosen

    return probabilities, shapes


def tag(tokenizer, text, classes, labels, longest=None, batch_size=4):
    probabilities, shapes = by_first_letter(tokenizer, classes)
    (spans,) = tag_texts(
        probabilities, tokenizer, [text], labels, longest=longest, batch_size=batch_size
    )
    return spans, shapes


LETTERS = {"o": 0, "p": 1, "q": 2, "l": 3, "m": 4}


def place(span):
    """What a span has besides its score."""
    return span.label, span.start, span.end, span.text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("o pa qb o", [("per", "pa qb")]),
        ("pa, qb", [("per", "pa"), ("per", "qb")]),  # The comma is a word outside.
        ("pa pb lo", [("per", "pa"), ("per", "pb"), ("loc", "lo")]),
        ("o qa mb", [("per", "qa"), ("loc", "mb")]),  # As conlleval reads it.
        ("p\u00e9a  q\u0301", [("per", "p\u00e9a  q\u0301")]),  # Accents in both forms.
        ("\U0001f600 p\u00e9 \U0001f468\u200d\U0001f4bb le", [("per", "p\u00e9"), ("loc", "le")]),
        (" \n\tpa \n", [("per", "pa")]),
        ("[SEP] pa", [("per", "pa")]),
        ("", []),
        ("   ", []),
    ],
)  # fmt: skip
def test_spans_and_their_characters(word_piece, text, found):
    spans, _ = tag(word_piece, text, LETTERS, LABELS)
    assert [(span.label, span.text) for span in spans] == found
    for span in spans:
        assert text[span.start : span.end] == span.text
        assert span.score == pytest.approx(0.8)


def test_plain_labels_give_a_span_a_word(word_piece):
    classes = {"n": 0, "v": 1, "a": 2}
    spans, _ = tag(word_piece, "nab nil  vic a", classes, PLAIN)
    assert [place(span) for span in spans] == [
        ("NOUN", 0, 3, "nab"),
        ("NOUN", 4, 7, "nil"),
        ("VERB", 9, 12, "vic"),
        ("ADJ", 13, 14, "a"),
    ]


@pytest.mark.parametrize("longest", [3, 4, 6, 11])
def test_long_texts_lose_no_word(word_piece, longest):
    words = ["pab", "qa", "o", "lobe", "mx", "p"] * 11
    text = " ".join(words)
    want, shapes = tag(word_piece, text, LETTERS, LABELS)
    assert shapes[0][1] > 100
    got, shapes = tag(word_piece, text, LETTERS, LABELS, longest)
    assert [place(span) for span in got] == [place(span) for span in want]
    assert len(got) == 33 and max(length for _, length in shapes) == longest


def test_a_window_without_room_is_refused(word_piece):
    with pytest.raises(ValueError, match="more than 2 special tokens, got 2"):
        tag(word_piece, "a", LETTERS, LABELS, longest=2)


def test_a_published_tagger(tmp_path, word_piece):
    """Its own probabilities, of several texts of other lengths in one batch."""
    folder = tagger_folder(tmp_path / "model", word_piece, LABELS)
    encoder = load_encoder(folder)
    texts = ["ab cd, ef", "", "g h\u00efj " * 9, "k"]
    found = encoder.tag(texts, batch_size=3)
    assert [len(spans) for spans in found][1] == 0 and sum(map(len, found)) > 5
    assert isinstance(found[0], list) and isinstance(found[2][0], TextSpan)
    for text, spans in zip(texts, found):
        alone = encoder.tag(text)
        assert [place(span) for span in alone] == [place(span) for span in spans]
        for one, other in zip(alone, spans):
            assert one.score == pytest.approx(other.score, abs=1e-5)
    assert encoder.tag([]) == []
    with pytest.raises(TypeError, match=r"texts\[1\] must be a str, got tuple"):
        encoder.tag(["a", ("a", "b")])


def test_words_of_byte_level_tokenizers_begin_after_the_space(tmp_path):
    """A word is what the pre-tokenizer splits off; the space before it is outside."""
    folder = tagger_folder(tmp_path / "model", byte_level(40), PLAIN, "roberta")
    text = "ab, cd\u00e9  \U0001f600ab"
    spans = load_encoder(folder).tag(text)
    words = ["ab", ",", "cd\u00e9", "\U0001f600", "ab"]
    assert [span.text for span in spans] == words
    assert [text[span.start : span.end] for span in spans] == words


def test_models_without_the_head_are_refused_by_name(tmp_path):
    encoder = load_encoder(encoder_folder(tmp_path / "model", classes=2))
    with pytest.raises(
        ValueError,
        match="no head that labels tokens: it was saved as BertForSequenceClassification, .* tag "
        "needs a class that ends with ForTokenClassification",
    ):
        encoder.tag("a")
    with pytest.raises(ValueError, match="was not loaded from a folder"):
        encoder.replace(folder=None).tag("a")


@pytest.mark.torch
def test_spans_are_those_of_the_pipeline(tmp_path, word_piece):
    """transformers with aggregation_strategy="first", on random weights."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    # Each fits the model, as the pipeline cuts longer ones.
    texts = [
        "Ab cde, f-g h'i",
        "m\u00e9n o\u0301p qr.",
        "\U0001f600 stu v w",
        "jk; l x y z",
    ]
    found = 0
    for seed in range(3):
        folder = tagger_folder(tmp_path / f"{seed}", word_piece, LABELS, seed=seed)
        pipeline = transformers.pipeline(
            "token-classification", str(folder), aggregation_strategy="first"
        )
        encoder = load_encoder(folder)
        for text in texts:
            spans = encoder.tag(text)
            theirs = pipeline(text)
            assert [(one.label, one.start) for one in spans] == [
                (other["entity_group"], other["start"]) for other in theirs
            ]
            for one, other in zip(spans, theirs, strict=True):
                assert one.score == pytest.approx(float(other["score"]), abs=1e-4)
                # The pipeline ends a word before its last combining accent.
                assert one.end - other["end"] in (0, 1)
            found += len(spans)
    assert found > 20
