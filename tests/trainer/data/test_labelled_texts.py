"""Tables of texts with classes: what is read, and how errors name the place."""

import pytest

from pe_jax.trainer.data.labelled_texts import (
    class_names,
    read_labelled_texts,
    to_examples,
)

COLUMNS = (("text",), "label")


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'label,text\nyes,"one, and\nmore"\nno,"a ""word"""\n'),
        ("bom.csv", '\ufefftext,label\n"one, and\nmore",yes\n"a ""word""", no \n'),
        (
            "a.jsonl",
            '{"text": "one, and\\nmore", "label": "yes"}\n'
            '{"text": "a \\"word\\"", "label": "no", "id": 3}\n',
        ),
    ],
)
def test_tables_are_read(tmp_path, name, text):
    table = read_labelled_texts(written(tmp_path, name, text), *COLUMNS)
    assert table.texts == (["one, and\nmore", 'a "word"'],)
    assert table.labels == ["yes", "no"]


def test_quotes_of_tsv_are_characters_and_pairs_have_two_texts(tmp_path):
    path = written(tmp_path, "a.tsv", 'q\ta\ty\n"one\ttwo\t1\n')
    table = read_labelled_texts(path, ("q", "a"), "y")
    assert table.texts == (['"one'], ["two"]) and table.labels == ["1"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", r"a.txt must end in .csv, .tsv or .jsonl"),
        ("a.csv", "", "has no rows below its header"),
        ("a.csv", "text,label\n", "has no rows below its header"),
        ("a.csv", "texts,label\na,b\n", r"line 2 has no column 'text'. Did you mean texts\?"),
        ("a.csv", "text,label\na, b, c\n", "line 2 has more cells than the header"),
        ("a.csv", "text,label\na,b\nc\n", "line 3 ends before the column 'label'"),
        ("a.csv", "text,label\na, \n", "line 2 has no label in 'label'"),
        ("a.csv", 'text,label\na,b\n"c', "line 3: unexpected end of data"),
        ("a.csv", b"text,label\n\xff,b\n", "line 1: .* can't decode"),
        ("a.jsonl", "{}\n", "line 1 has no column 'text'. It has . "),
        ("a.jsonl", '{"text": "a", "label": 1}\n[]\n', "line 2 is no JSON object"),
        ("a.jsonl", '{"text": "a", "label": 1.5}\n', "'label' must be a text or an integer"),
        ("a.jsonl", '{"text": \n', "line 1: "),
    ],
)  # fmt: skip
def test_damaged_tables_are_named(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        read_labelled_texts(written(tmp_path, name, text), *COLUMNS)


def test_classes_are_in_order():
    assert class_names(["10", "9", "9", "10"], "a.csv", "label") == ("9", "10")
    assert class_names(["no", "yes", "no", "yes"], "a.csv", "label") == ("no", "yes")
    with pytest.raises(ValueError, match="All rows of a.csv have the label 'x'"):
        class_names(["x", "x"], "a.csv", "label")
    with pytest.raises(ValueError, match="9 different labels in 9 rows. Is 'label'"):
        class_names([str(n) for n in range(9)], "a.csv", "label")


def test_a_class_that_is_not_trained_on(tmp_path):
    path = written(tmp_path, "a.csv", "text,label\na,yes\nb,maybe\n")
    table = read_labelled_texts(path, *COLUMNS)
    assert to_examples(table, ["maybe", "yes"], path).labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="training data lacks: maybe"):
        to_examples(table, ["no", "yes"], path)
