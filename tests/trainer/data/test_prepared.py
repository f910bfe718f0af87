"""Tokenized text in a folder: the arrays of the text, and errors that name the fault."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import tiny_run
from helpers.commands import call
from helpers.tiny_run import write_books

from pe_jax.trainer import data
from pe_jax.trainer.data import sources
from pe_jax.trainer.tasks.text_split import load_text


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Source, tokenizer, the text in the cache, the folder."""
    folder = tmp_path_factory.mktemp("prepared")
    source = str(write_books(folder))
    corpus = data.open_corpus(source)
    tokenizer = data.prepare_tokenizer(corpus, "", 150, folder / "cache")
    tokenizer.save(str(folder / "tokenizer.json"))
    local = data.tokenize(corpus, tokenizer, folder / "cache")
    code, out, err = call(
        "pe_jax/trainer/commands/prepare.py", f"--source={source}",
        f"--vocab={folder / 'tokenizer.json'}", f"--out={folder / 'out'}",
    )  # fmt: skip
    assert code == 0 and f"--config.data.source=tokenized:{folder / 'out'}" in out, err
    return source, tokenizer, local, folder / "out"


@pytest.fixture
def copy(prepared, tmp_path):
    return shutil.copytree(prepared[3], tmp_path / "copy")


def load(tmp_path, source, vocab="", **changes):
    return load_text(
        tiny_run.config(tmp_path, **{"data.source": source}, **changes).data, vocab
    )


def test_files_are_those_of_the_cache(prepared):
    _, _, local, folder = prepared
    for name in ("tokens.npy", "sentences.npy", "documents.npy"):
        assert (folder / name).read_bytes() == (local.folder / name).read_bytes()
    corpus = data.TokenizedCorpus(folder)
    assert corpus.checksum == local.checksum and corpus.empty == 0
    tokens = np.array(local.tokens)
    np.save(folder.parent / "saved.npy", tokens)  # What NumPy itself writes.
    assert (folder.parent / "saved.npy").read_bytes() == (
        folder / "tokens.npy"
    ).read_bytes()


def test_a_run_uses_the_tokenizer_of_the_folder(prepared, tmp_path):
    source, tokenizer, local, folder = prepared
    text = load(tmp_path, f"tokenized:{folder}")
    assert text.tokenizer.to_str() == tokenizer.to_str()
    np.testing.assert_array_equal(text.held_out_documents, local.split(0.25)[1])
    # A resumed run passes the tokenizer that it has saved.
    saved = str(folder / "tokenizer.json")
    text = load(tmp_path, f"tokenized:{folder}", saved, **{"data.validation": source})
    np.testing.assert_array_equal(text.held_out.tokens, local.tokens)
    text = load(
        tmp_path,
        source,
        **{"data.validation": f"tokenized:{folder}", "data.vocab_size": 150},
    )
    np.testing.assert_array_equal(text.train.tokens, text.held_out.tokens)


def test_another_tokenizer_is_refused(prepared, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nsea")
    with pytest.raises(
        ValueError, match=r"another tokenizer \(\d+ tokens\) than the run's \(7 "
    ):
        load(tmp_path, f"tokenized:{prepared[3]}", str(tmp_path / "vocab.txt"))


def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    words = [
        *"[PAD] [UNK] [CLS] [SEP] [MASK]".split(),
        *(f"w{n}" for n in range(66_000)),
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "a.txt").write_text("w5 w65999.\nw1 w2 w70000.")
    tokenizer = data.load_tokenizer(tmp_path / "vocab.txt")
    corpus = data.open_corpus(str(tmp_path / "a.txt"))
    tokens = data.prepare(corpus, tokenizer, tmp_path / "out").tokens
    assert tokens.dtype["id"] == np.uint32 and tokens[
        "id"
    ].max() == tokenizer.token_to_id("w65999")


def test_a_folder_that_is_not_complete(tmp_path, copy):
    for folder in (tmp_path / "nothing", "gs://bucket/text"):
        with pytest.raises(
            ValueError, match=r"holds no tokenized text: there is no local file .*"
        ):
            load(tmp_path, f"tokenized:{folder}")
    (copy / "sentences.npy").unlink()
    with pytest.raises(
        ValueError, match=r"sentences.npy is missing or damaged. Copy the folder"
    ):
        load(tmp_path, f"tokenized:{copy}")


@pytest.mark.parametrize(
    "name", ["tokens.npy", "documents.npy", "tokenizer.json", "about.json"]
)
def test_damage_is_named(tmp_path, copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is missing or damaged"):
        load(tmp_path, f"tokenized:{copy}")


def test_another_format_is_refused(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_FORMAT", "3")
    with pytest.raises(ValueError, match="has format '5', but this version reads '3'"):
        load(tmp_path, f"tokenized:{prepared[3]}")


def test_a_preparation_that_was_stopped_starts_again(prepared, tmp_path):
    source, tokenizer, local, _ = prepared
    corpus, out = data.open_corpus(source), tmp_path / "new" / "out"

    def texts(documents):
        yield from list(documents)[:3]
        raise KeyboardInterrupt

    stopped = corpus._replace(documents=lambda: texts(corpus.documents()))
    with pytest.raises(KeyboardInterrupt):
        data.prepare(stopped, tokenizer, out)
    assert not out.exists()
    assert data.prepare(corpus, tokenizer, out).checksum == local.checksum
    with pytest.raises(ValueError, match="must be a new folder"):
        data.prepare(corpus, tokenizer, out)
    empty = corpus._replace(documents=lambda: iter(["  "]))
    with pytest.raises(ValueError, match="contains no text"):
        data.prepare(empty, tokenizer, tmp_path / "empty")


def test_mistakes_of_the_command(prepared, tmp_path):
    vocab = f"--vocab={prepared[3] / 'tokenizer.json'}"
    for args, message in (
        (
            [f"--source={tmp_path}/*", vocab, "--out=x"],
            f"error: --source='{tmp_path}/*' matches no",
        ),
        (
            ["--source=pydoc", f"--vocab={tmp_path}/v", "--out=x"],
            "error: No tokenizer at",
        ),
        (["--source=pydoc", vocab], "--out must have a value"),
    ):
        code, _, err = call("pe_jax/trainer/commands/prepare.py", *args)
        assert code == 1 and message in err, err


def test_the_page_of_corpora(prepared, tmp_path, monkeypatch):
    """Its first block trains a vocabulary, its last reads the files; the one between them downloads
    Wikipedia, and is not run."""
    page = Path(__file__).parents[3] / "docs/corpora.md"
    vocabulary, download, read = re.findall(
        r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S
    )
    assert "download_and_prepare(" in download
    monkeypatch.chdir(tmp_path)
    Path("sample").mkdir()
    write_books(Path("sample"))
    exec(vocabulary, {})
    assert "[MASK]" in data.load_tokenizer("tokenizer.json").get_vocab()
    shutil.copytree(prepared[3], "TEXT")
    exec(read, found := {})
    np.testing.assert_array_equal(found["ids"], prepared[2].tokens["id"])
    about = json.loads(Path("TEXT/about.json").read_text())
    assert about["tokens"] == len(found["ids"])
