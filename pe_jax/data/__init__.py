"""Text in, NumPy batches out: corpora, tokenizer, sentence pairs, masking, grain pipelines."""

from pe_jax.data.corpora import Corpus, open_corpus
from pe_jax.data.pipeline import PretrainingExamples, batches
from pe_jax.data.tokenized import TokenizedCorpus, prepare_tokenizer, tokenize
from pe_jax.data.tokenizer import Vocabulary, load_tokenizer, train_tokenizer, vocabulary

__all__ = [
    "Corpus",
    "PretrainingExamples",
    "TokenizedCorpus",
    "Vocabulary",
    "batches",
    "load_tokenizer",
    "open_corpus",
    "prepare_tokenizer",
    "tokenize",
    "train_tokenizer",
    "vocabulary",
]
