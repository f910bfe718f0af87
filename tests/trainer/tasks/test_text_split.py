"""Documents and tokens of a text that cannot be used are reported, or refused."""

import pytest
from helpers import tiny_run

from pe_jax.interop.tokenizer import SPECIAL_TOKENS
from pe_jax.trainer.tasks.text_split import load_text


def load(tmp_path, documents, vocab="", **changes):
    """`load_text` of these documents."""
    (tmp_path / "text.jsonl").write_text(
        "".join(f'{{"text": "{d}"}}\n' for d in documents)
    )
    source = {"data.source": str(tmp_path / "text.jsonl")}
    return load_text(tiny_run.config(tmp_path, **source, **changes).data, vocab)


def test_the_documents_that_are_dropped_are_counted(tmp_path):
    text = load(
        tmp_path, ["The sea is wide. A ship is not."] * 7 + ["One."] * 2 + [""] * 3
    )
    assert text.summary() == (
        "12 read, 7 used (22.2% held out); dropped 2, of a single sentence, which makes no pair; "
        "dropped 3, empty"
    )
    with pytest.raises(
        ValueError, match=r"text.jsonl: 8 of 12 documents, \d+% of the text, are a"
    ):
        load(tmp_path, ["The sea is wide"] * 8 + ["The. Sea."] * 4)


def test_a_vocabulary_that_does_not_fit_the_text(tmp_path, capsys):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, *tiny_run.WORDS, "."]) + "\n")
    load(tmp_path, ["The sea. The ship."] * 8, str(vocab))
    assert "[UNK]" not in capsys.readouterr().err
    load(tmp_path, ["The sea. The xylophone."] * 8, str(vocab))
    assert "text.jsonl: 16.7% of the tokens are [UNK]" in capsys.readouterr().err
    with pytest.raises(
        ValueError, match=r"66\.7% of the tokens are \[UNK\].*--config.data.vocab"
    ):
        load(tmp_path, ["Das Meer. Ein Schiff."] * 8, str(vocab))
