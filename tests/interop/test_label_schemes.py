"""Schemes of labels: spans, what is impossible, and which scheme a sequence has."""

import importlib.util
import itertools

import pytest

from pe_jax.interop.label_schemes import (
    detect_scheme,
    impossible_at,
    label_fault,
    lenient_spans,
    strict_spans,
)


def shown(spans):
    return " ".join(f"{span.type}{span.start}-{span.stop}" for span in spans)


@pytest.mark.parametrize(
    ("scheme", "labels", "strict", "lenient"),
    [
        ("iob2", "B-a I-a O B-a B-b", "a0-2 a3-4 b4-5", "a0-2 a3-4 b4-5"),
        # An I that continues nothing: no entity to the letter, one for conlleval.
        ("iob2", "O I-a I-a", "", "a1-3"),
        ("iob2", "B-a I-b O", "a0-1", "a0-1 b1-2"),
        ("iob2", "B-a I-b I-a", "a0-1", "a0-1 b1-2 a2-3"),
        ("iob1", "I-a I-a B-a I-b O I-b", "a0-2 a2-3 b3-4 b5-6", "a0-2 a2-3 b3-4 b5-6"),
        ("iob1", "O B-a O", "", "a1-2"),
        ("bioes", "S-a B-a I-a E-a S-b", "a0-1 a1-4 b4-5", "a0-1 a1-4 b4-5"),
        ("bioes", "B-a O E-a", "", "a0-1 a2-3"),
        ("bioes", "B-a I-a B-b E-b", "b2-4", "a0-2 b2-4"),
        ("bioes", "B-a E-b", "", "a0-1 b1-2"),
        ("bioes", "S-a I-a E-a", "a0-1", "a0-1 a1-3"),
    ],
)  # fmt: skip
def test_spans_by_hand(scheme, labels, strict, lenient):
    assert shown(strict_spans(labels.split(), scheme)) == strict
    assert shown(lenient_spans(labels.split())) == lenient


@pytest.mark.parametrize(
    ("scheme", "labels", "index"),
    [
        ("iob2", "B-a I-a O", None),
        ("iob2", "O I-a", 1),
        ("iob2", "B-b I-a", 1),
        ("iob2", "I-a", 0),
        ("iob1", "I-a B-a I-a I-b", None),
        ("iob1", "O B-a", 1),
        ("iob1", "I-b B-a", 1),
        ("bioes", "S-a B-a I-a E-a O", None),
        ("bioes", "B-a O", 1),
        ("bioes", "B-a", 1),
        ("bioes", "I-a", 0),
        ("bioes", "S-a E-a", 1),
        ("bioes", "B-a E-b", 1),
        ("bioes", "B-a S-a", 1),
        ("none", "I-a NN", None),
    ],
)
def test_what_is_impossible(scheme, labels, index):
    assert impossible_at(labels.split(), scheme) == index


def test_possible_sequences_have_the_same_spans_in_both_readings():
    for scheme, prefixes in (("iob2", "BI"), ("iob1", "BI"), ("bioes", "BIES")):
        labels = ["O", *(f"{prefix}-{name}" for prefix in prefixes for name in "ab")]
        possible = 0
        for sequence in itertools.product(labels, repeat=4):
            if impossible_at(sequence, scheme) is None:
                possible += 1
                assert strict_spans(sequence, scheme) == lenient_spans(sequence)
        assert possible > 20


@pytest.mark.parametrize(
    ("sequences", "scheme"),
    [
        (["B-a I-a O", "O O"], "iob2"),
        (["I-a B-a O"], "iob1"),
        (["I-a O"], "iob1"),
        (["B-a E-a", "S-b"], "bioes"),
        (["NN VB -LRB-", "O"], "none"),
        (["B-a I-a", "B-a O", "O I-a"], "iob2"),  # One mistake; its line is refused.
    ],
)
def test_schemes_are_detected(sequences, scheme):
    assert detect_scheme([labels.split() for labels in sequences]) == scheme


def test_other_schemes_are_refused():
    with pytest.raises(ValueError, match="B, L are of BILOU or BMES.*Convert them to"):
        detect_scheme([["B-a", "L-a"]])
    with pytest.raises(ValueError, match="'B-a' have a prefix, but 'person' has none"):
        detect_scheme([["B-a", "person"]])
    assert label_fault("E-a", "iob2").endswith("of iob2, which are O, B-TYPE, I-TYPE")
    assert label_fault("a", "bioes") and not label_fault("a", "none")


@pytest.mark.skipif(
    not importlib.util.find_spec("seqeval"), reason="seqeval is not installed"
)
def test_spans_are_those_of_seqeval():
    """Of all sequences of four labels of two types, possible or not."""
    from seqeval import scheme as schemes
    from seqeval.metrics.sequence_labeling import get_entities

    classes = {"iob1": schemes.IOB1, "iob2": schemes.IOB2, "bioes": schemes.IOBES}
    for name, scheme in classes.items():
        prefixes = "BIES" if name == "bioes" else "BI"
        labels = ["O", *(f"{prefix}-{tag}" for prefix in prefixes for tag in "ab")]
        length = 3 if name == "bioes" else 4
        for sequence in itertools.product(labels, repeat=length):
            sequence = list(sequence)
            entities = schemes.Tokens(sequence, scheme).entities
            theirs = [(each.start, each.end, each.tag) for each in entities]
            assert strict_spans(sequence, name) == theirs, (name, sequence)
            theirs = [
                (start, end + 1, tag) for tag, start, end in get_entities(sequence)
            ]
            assert lenient_spans(sequence) == theirs, (name, sequence)
