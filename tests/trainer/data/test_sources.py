"""Vocabularies and token ids of a text, and their cache."""

import numpy as np
import pytest
from helpers.tiny_run import write_books

from pe_jax.trainer import data
from pe_jax.trainer.data import corpora
from pe_jax.trainer.data.tokenized import sentences


def test_trained_and_loaded_tokenizers(tmp_path, books):
    _, tokenizer, vocabulary = books
    assert tokenizer.get_vocab_size() <= 200
    assert [tokenizer.id_to_token(i) for i in range(5)] == [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]
    assert not np.isin([0, 1, 2, 3, 4], vocabulary.ordinary).any()
    assert len(vocabulary.ordinary) == vocabulary.size - 5
    words = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name in ("vocab.txt", "tokenizer.json"):
        loaded = data.load_tokenizer(tmp_path / name)
        text = "The WHALE upon deckwater"
        assert loaded.encode(text).tokens == tokenizer.encode(text).tokens
    (tmp_path / "short.txt").write_text("[PAD]\n[UNK]\nthe")
    with pytest.raises(ValueError, match=r"lacks \[CLS\], \[SEP\], \[MASK\]"):
        data.load_tokenizer(tmp_path / "short.txt")
    with pytest.raises(ValueError, match="No tokenizer at"):
        data.load_tokenizer(tmp_path / "none.txt")


def test_training_a_tokenizer_is_deterministic(tmp_path):
    texts = list(data.open_corpus(str(write_books(tmp_path))).documents())
    first, second = (data.train_tokenizer(texts, 150).to_str() for _ in range(2))
    assert first == second


def test_the_cache_is_reused_and_holds_the_text(tmp_path, monkeypatch):
    path = write_books(tmp_path)
    corpus = data.open_corpus(str(path))
    tokenizer = data.prepare_tokenizer(corpus, "", 200, tmp_path / "cache")
    first = data.tokenize(corpus, tokenizer, tmp_path / "cache")
    ids = [tokenizer.encode(s).ids for d in corpus.documents() for s in sentences(d)]
    assert first.tokens["id"].tolist() == [i for sentence in ids for i in sentence]
    assert first.tokens["id"].dtype == np.uint16
    assert np.diff(first.sentences).tolist() == [len(sentence) for sentence in ids]
    assert np.diff(first.documents).tolist() == [30] * 12

    def fail(*args):
        raise AssertionError("read the text again")

    monkeypatch.setattr(corpora, "_read_json_lines", fail)
    again = data.open_corpus(str(path))
    assert data.tokenize(again, tokenizer, tmp_path / "cache").folder == first.folder
    path.write_text(path.read_text() + '{"text": "More. And more."}\n')
    with pytest.raises(AssertionError, match="read the text again"):
        data.tokenize(data.open_corpus(str(path)), tokenizer, tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith("tmp")]


def test_a_vocabulary_smaller_than_the_characters_is_refused(tmp_path):
    corpus = data.open_corpus(str(write_books(tmp_path)))
    with pytest.raises(
        ValueError, match=r"vocab_size=10 is too small .* are \d\d tokens"
    ):
        data.prepare_tokenizer(corpus, "", 10, tmp_path / "cache")


def test_an_empty_corpus(tmp_path, books):
    (tmp_path / "a.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="contains no text"):
        data.tokenize(data.open_corpus(str(tmp_path / "a.txt")), books[1], tmp_path)
