"""A small text as token ids, its tokenizer and vocabulary."""

import pytest
from helpers.tiny_run import write_books

from pe_jax.trainer import data


@pytest.fixture(scope="session")
def books(tmp_path_factory):
    folder = tmp_path_factory.mktemp("books")
    corpus = data.open_corpus(str(write_books(folder)))
    tokenizer = data.prepare_tokenizer(corpus, "", 200, folder)
    return (
        data.tokenize(corpus, tokenizer, folder),
        tokenizer,
        data.vocabulary(tokenizer),
    )
