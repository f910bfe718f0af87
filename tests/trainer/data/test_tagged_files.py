"""Sentences of words with labels: reading files and tfds, and their inputs."""

import types

import numpy as np
import pytest
from helpers.byte_level import byte_level

from pe_jax.interop.token_windows import token_windows
from pe_jax.trainer import data
from pe_jax.trainer.data import tagging
from pe_jax.trainer.data.rows import pad_rows
from pe_jax.trainer.data.tagging import (
    Columns,
    check_labels,
    encode_sentences,
    read_sentences,
    scheme_of,
)

COLUMNS = Columns(0, -1, ("tokens", "ner"))


@pytest.fixture
def read(tmp_path):
    """`read(text)`: the sentences of a file; bytes as they are."""

    def read(text, columns=COLUMNS):
        path = tmp_path / "a.conll"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_sentences(str(path), columns)

    return read


def pairs(sentences):
    return [list(zip(one.words, one.labels)) for one in sentences]


TWO = [[("Ann", "B-per"), ("is", "O")], [("here", "O")]]


@pytest.mark.parametrize(
    "text",
    [
        "Ann\tB-per\nis\tO\n\nhere\tO\n\n",
        "Ann\tB-per\nis\tO\n\nhere\tO",  # No last line break.
        "Ann B-per\nis O\n \t \n\nhere O\n",  # Blanks; an empty line with blanks.
        "Ann NNP x B-per\nis  VBZ\tx\tO\n\nhere RB x O\n".replace("\t", " "),
        b"\xef\xbb\xbfAnn\tB-per\r\nis\tO\r\n\r\nhere\tO\r\n",  # BOM and CRLF.
        "-DOCSTART- -X- O\n\nAnn x B-per\nis x O\n-DOCSTART- -X- O\nhere x O\n",
        "-DOCSTART-\tO\n\n\nAnn\tB-per\nis\tO\n\n\n\nhere\tO\n",
    ],
)
def test_forms_of_files(read, text):
    sentences = read(text)
    assert pairs(sentences) == TWO
    first = sentences[1].place(0)
    lines = text.decode() if isinstance(text, bytes) else text
    number = next(
        n for n, line in enumerate(lines.split("\n"), 1) if line.startswith("here")
    )
    assert first.endswith(f"a.conll:{number}")


def test_columns_by_number(read):
    sentences = read("1\tAnn\tPROPN\tNNP\n2\tis\tAUX\tVBZ\n", Columns(1, 2, ()))
    assert pairs(sentences) == [[("Ann", "PROPN"), ("is", "AUX")]]


def test_words_may_contain_spaces_and_odd_line_breaks(read):
    sentences = read("New York\tB-loc\na\u2028b\x85\tO\n")
    assert sentences[0].words == ("New York", "a\u2028b\x85")
    assert read("a\xa0b O\n")[0].words == ("a\xa0b",)


def test_several_files_follow_each_other(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tO")
    (tmp_path / "b.tsv").write_text("b\tO\n")
    sentences = read_sentences(f"{tmp_path}/*.tsv", COLUMNS)
    assert [sentence.words for sentence in sentences] == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("a\tO\nb\tx\tO\n", COLUMNS, r"a.conll:2 has 3 columns, separated by tabs, but line 1 has "
         r"2: 'b\\tx\\tO'"),
        ("a O\n\nb\n", COLUMNS, "a.conll:3 has 1 columns, separated by blanks, but line 1 has 2"),
        ("a\tO\nb \tO\n \tO\n", COLUMNS, "a.conll:3 has an empty word"),
        ("a\t\n", COLUMNS, "a.conll:1 has an empty label"),
        ("a\n", COLUMNS, "word_column=0 and config.data.label_column=-1 are the same column"),
        ("a O\n", Columns(0, 3, ()), "label_column=3, but .*a.conll:1 has 2 columns. Columns are 0 "
         "to 1, or -1"),
        ("\n \n", COLUMNS, "a.conll has no sentence"),
        (b"\xff\tO\n", COLUMNS, "a.conll is not UTF-8"),
    ],
)  # fmt: skip
def test_damaged_files(read, text, columns, message):
    with pytest.raises(ValueError, match=message):
        read(text, columns)


@pytest.mark.parametrize(
    ("labels", "scheme", "message"),
    [
        ("O I-x", "iob2", "a.conll:2: 'I-x' stands after 'O', which is impossible in iob2"),
        ("I-x", "iob2", "a.conll:1: 'I-x' stands at the beginning"),
        ("O B-x", "iob1", "a.conll:2: 'B-x' stands after 'O', which is impossible in iob1"),
        ("S-x B-x", "bioes", "a.conll:2: a sentence ends after 'B-x', which is impossible in bio"),
        ("B-x O", "bioes", "a.conll:2: 'O' stands after 'B-x'"),
        ("O NN", "iob2", "a.conll:2: the label 'NN' is no label of iob2, which are O, B-TYPE"),
        ("B-x I-x O B-x O I-y", "auto", "a.conll:6: 'I-y' stands after 'O'.* in iob2"),
    ],
)  # fmt: skip
def test_impossible_labels(read, labels, scheme, message):
    sentences = read("".join(f"w {label}\n" for label in labels.split()))
    with pytest.raises(ValueError, match=message):
        scheme_of(sentences, scheme)
    check_labels(sentences, "none")


def test_schemes_of_files(read):
    assert scheme_of(read("a B-x\nb I-x\n"), "auto") == "iob2"
    assert scheme_of(read("a NN\nb VB\n"), "auto") == "none"


def test_tfds(monkeypatch):
    features = {
        "tokens": None,
        "ner": types.SimpleNamespace(feature=types.SimpleNamespace(names=["O", "B-x"])),
        "pos": types.SimpleNamespace(feature=types.SimpleNamespace()),
    }
    rows = {
        "train": [{"tokens": [b"Caf\xc3\xa9", b"a"], "ner": np.array([1, 0])}],
        "test": [{"tokens": [b"b"], "ner": [0]}, {"tokens": [], "ner": []}],
    }

    def open_dataset(name, split, data_dir, extra_name):
        return types.SimpleNamespace(
            info=types.SimpleNamespace(features=features),
            as_data_source=rows.__getitem__,
        )

    monkeypatch.setattr(tagging, "open_dataset", open_dataset)
    sentences = read_sentences("conll2003:train+test", COLUMNS)
    assert pairs(sentences) == [[("Café", "B-x"), ("a", "O")], [("b", "O")]]
    assert sentences[0].place(1) == "conll2003, train, example 0, word 2"
    with pytest.raises(
        ValueError, match=r"has the features tokens, ner, pos. Set config"
    ):
        read_sentences("conll2003:train", Columns(0, -1, ("tokens", "pos")))
    with pytest.raises(ValueError, match="'nowhere.conll' matches no file"):
        read_sentences("nowhere.conll", COLUMNS)


# --- inputs ---------------------------------------------------------------------------------------

PAD, UNK, CLS, SEP = 0, 1, 2, 3


@pytest.fixture
def tokenizer(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "##c", "-", "d", "e"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    return data.load_tokenizer(tmp_path / "vocab.txt")


def sentence(*words):
    return tagging.Sentence(words, tuple(f"L{n}" for n in range(len(words))), "s", 1)


def test_labels_are_at_first_pieces(tokenizer):
    """A word of several pieces, of none (a zero-width joiner), and one with a hyphen."""
    sentences = [
        sentence("abc", "\u200d", "d-e", "ab"),
        sentence("\u200d"),
        sentence("e"),
    ]
    labels = ["L0", "L1", "L2", "L3"]
    tagged = encode_sentences(sentences, tokenizer, 12, labels)
    assert tagged.row.tolist() == [0, 0, 0, 0, 1, 2]
    assert tagged.column.tolist() == [1, -1, 3, 6, -1, 1]
    batch = pad_rows(tagged.rows, np.arange(3), 9)
    assert batch["tokens"].tolist() == [
        [CLS, 5, 6, 8, 7, 9, 5, SEP, PAD],
        [CLS, SEP, *[PAD] * 7],
        [CLS, 9, SEP, *[PAD] * 6],
    ]
    assert batch["label"].tolist() == [
        [-1, 0, -1, 2, -1, -1, 3, -1, -1],
        [-1] * 9,
        [-1, 0, *[-1] * 7],
    ]
    assert batch["label"].dtype == np.int32
    # A label that the model does not know has no target, but a place.
    known = encode_sentences(sentences, tokenizer, 12, ["L1"])
    assert known.column.tolist() == tagged.column.tolist()
    assert set(known.rows.token_targets["label"].tolist()) == {-1}


def test_names_of_special_tokens_are_words(tokenizer):
    tagged = encode_sentences([sentence("[SEP]", "e")], tokenizer, 12, ["L0", "L1"])
    assert tagged.column.tolist() == [1, 4]  # [, sep and ] are three pieces.
    assert SEP not in tagged.rows.tokens[:-1]


def test_words_of_byte_level_tokenizers_have_a_space_before_them():
    """As in running text; the space is no piece of its own word or of the one before."""
    words = byte_level(40)
    tagged = encode_sentences([sentence("ab", "ab", "\U0001f600")], words, 20, ["L0"])
    encoding = words.encode("ab ab \U0001f600")
    assert tagged.rows.tokens.tolist() == encoding.ids
    begins = [encoding.offsets[column] for column in tagged.column]
    assert begins[0][0] == 0 and begins[1][0] in (2, 3)
    assert (tagged.column >= 0).all()


@pytest.mark.parametrize("room", [1, 2, 3, 4, 7, 10, 33])
def test_every_token_is_labelled_in_one_window_with_context(room):
    for count in range(0, 40):
        windows = token_windows(count, room)
        labelled = [n for one in windows for n in range(one.begin, one.end)]
        assert labelled == list(range(count))
        for one in windows:
            assert 0 <= one.start <= one.begin <= one.end <= one.stop <= count
            assert one.stop - one.start <= room
            if one.start:
                assert one.begin - one.start >= room // 4
            if one.stop < count:
                assert one.stop - one.end >= room // 4
        assert count > room or len(windows) == 1


def test_long_sentences_lose_no_word(tokenizer):
    """Each word has one place, where its first piece and its label are."""
    words = sentence(*["abc", "d", "d-e"] * 9)
    labels = [f"L{n}" for n in range(27)]
    tagged = encode_sentences([sentence("d"), words], tokenizer, 13, labels)
    assert tagged.rows.sizes().max() == 13 and len(tagged.rows.sizes()) > 4
    assert len(tagged.row) == 28 and (tagged.column > 0).all()
    at = tagged.rows.bounds[tagged.row] + tagged.column
    assert len(set(at.tolist())) == 28
    assert tagged.rows.tokens[at].tolist() == [8, *[5, 8, 8] * 9]
    targets = tagged.rows.token_targets["label"]
    assert targets[at].tolist() == [0, *range(27)] and (targets >= 0).sum() == 28
    with pytest.raises(
        ValueError, match="length=2 is too short: it must be at least 3"
    ):
        encode_sentences([words], tokenizer, 2, labels)
