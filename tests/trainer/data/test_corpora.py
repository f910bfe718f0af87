"""Documents of files, buckets and tfds datasets, and fingerprints of their content."""

import gzip
import io
import lzma
import sys
from glob import glob
from pathlib import Path

import numpy as np
import pytest
from etils.epath import testing
from helpers import tfds_dataset

from pe_jax.common import files
from pe_jax.trainer import data
from pe_jax.trainer.data import corpora
from pe_jax.trainer.data.tokenized import sentences


def test_pydoc_is_prose_and_each_paragraph_occurs_once():
    documents = list(data.open_corpus("pydoc").documents())
    paragraphs = [p for d in documents for p in d.split("\n")]
    assert len(documents) > 50
    assert sum(len(p.split()) for p in paragraphs) > 20_000
    assert len(set(paragraphs)) == len(paragraphs)
    assert not any(">>>" in p[:3] for p in paragraphs)


@pytest.mark.parametrize(
    "open_as", [open, gzip.open, lzma.open], ids=["", ".gz", ".xz"]
)
def test_text_and_json_lines(tmp_path, open_as):
    ending = {open: "", gzip.open: ".gz", lzma.open: ".xz"}[open_as]
    with open_as(tmp_path / f"a.txt{ending}", "wt") as file:
        file.write("One line.\nIts second.\n \n\nAnother document.\n")
    with open_as(tmp_path / f"b.jsonl{ending}", "wt") as file:
        file.write('{"text": "Från JSON."}\n\n{"text": "Two."}\n')
    assert list(data.open_corpus(str(tmp_path / "*")).documents()) == [
        "One line.\nIts second.",
        "Another document.",
        "Från JSON.",
        "Two.",
    ]


def test_fingerprints_follow_content(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One.")
    first = data.open_corpus(str(path)).checksum()
    path.write_text("Two.")
    assert data.open_corpus(str(path)).checksum() != first
    path.write_text("One.")
    assert data.open_corpus(str(path)).checksum() == first


def test_text_in_a_bucket(tmp_path, monkeypatch):
    """The documents and fingerprint of the same local files; what is missing is one line."""
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("Three.\n")
    local = data.open_corpus(str(tmp_path / "*.txt*"))

    def inside(path):
        return str(path).replace("gs://bucket/text", str(tmp_path))

    functions = {
        "glob": lambda _, pattern: [
            f"gs://bucket/text/{Path(path).name}" for path in glob(inside(pattern))
        ],
        "open": lambda original, path, *_, **__: io.BytesIO(
            Path(inside(path)).read_bytes()
        ),
        "exists": lambda original, path: Path(inside(path)).exists(),
        "isdir": lambda original, path: Path(inside(path)).is_dir(),
    }
    with testing.mock_epath(**functions):
        monkeypatch.setattr(files, "_STORES", {"gs": "json"})
        corpus = data.open_corpus("gs://bucket/text/*.txt*")
        assert (
            [*corpus.documents()] == [*local.documents()] == ["One.", "Two.", "Three."]
        )
        assert corpus.checksum() == local.checksum()
        with pytest.raises(ValueError, match="works for local files only"):
            data.open_corpus("gs://bucket/**/*.txt")
    monkeypatch.setattr(files, "_STORES", {"gs": "not_installed"})
    with pytest.raises(
        ValueError, match=r"gs://bucket/x.txt needs the package not_installed"
    ):
        data.open_corpus("gs://bucket/x.txt")


def test_fingerprints_follow_the_type_of_the_file(tmp_path):
    content = '{"text": "One. Two."}\n'
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_text(content)
    text, lines = (
        data.open_corpus(str(tmp_path / name)) for name in ("a.txt", "a.jsonl")
    )
    assert text.checksum() != lines.checksum()


def test_sources_that_do_not_exist(tmp_path):
    with pytest.raises(ValueError, match=r"source=.*nothing.* matches no file.*pydoc"):
        data.open_corpus(str(tmp_path / "nothing*.txt"))
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(ValueError, match=r"a\.csv.*must end in \.txt, \.jsonl"):
        data.open_corpus(str(tmp_path / "a.csv"))
    (tmp_path / "b.jsonl").write_text('{"text": "fine"}\n{"body": "x"}\n')
    with pytest.raises(
        ValueError, match=r"line 2: no text under the key 'text'; it has \['body'\]"
    ):
        list(data.open_corpus(str(tmp_path / "b.jsonl")).documents())
    (tmp_path / "c.jsonl").write_text('{"text": \n')
    with pytest.raises(ValueError, match="line 1: not valid JSON"):
        list(data.open_corpus(str(tmp_path / "c.jsonl")).documents())
    with pytest.raises(ValueError, match="tfds:NAME:SPLIT"):
        data.open_corpus("tfds:wikipedia")


def test_tfds_without_tensorflow(tmp_path):
    """A real tfds dataset, written and read as array_record; TensorFlow is never imported."""
    examples = [
        {"body": "First text. Again.", "number": 1},
        {"body": "Ünïcode.", "number": 2},
    ]

    def features(kinds):
        return {"body": kinds.Text(), "number": kinds.Scalar(np.int32)}

    tfds_dataset.write(tmp_path, "TinyText", features, {"train": examples})
    assert "tensorflow" not in sys.modules
    source = "tfds:tiny_text:train"
    corpus = data.open_corpus(source, feature="body", data_dir=str(tmp_path))
    assert sorted(corpus.documents()) == ["First text. Again.", "Ünïcode."]
    assert corpus.checksum() == corpus.checksum()
    with pytest.raises(ValueError, match="the feature 'number' is .*, not text"):
        data.open_corpus(source, feature="number", data_dir=str(tmp_path))
    with pytest.raises(
        ValueError, match=r"no feature 'text'; it has \['body', 'number'\]"
    ):
        data.open_corpus(source, data_dir=str(tmp_path))
    with pytest.raises(ValueError, match="no split 'valid'"):
        data.open_corpus("tfds:tiny_text:valid", feature="body", data_dir=str(tmp_path))


def test_wiki40b_is_read_without_its_markup():
    text = "\n_START_ARTICLE_\nOrkney\n_START_SECTION_\nSea\n_START_PARAGRAPH_\nA._NEWLINE_B."
    assert list(sentences(corpora._WIKI40B_MARKUP.sub("\n", text))) == [
        "Orkney",
        "Sea",
        "A.",
        "B.",
    ]
