"""From text to NumPy batches: corpora, tokenizer, pretraining examples. GLUE: `data.glue`, SQuAD:
`data.squad`, and their batches: `data.rows`."""

from pe_jax.data.corpora import Corpus, open_corpus
from pe_jax.data.pretraining import PretrainingExamples, batches
from pe_jax.data.sources import open_source, prepare_tokenizer, tokenize
from pe_jax.data.tokenized import TokenizedCorpus
from pe_jax.data.tokenizer import Vocabulary, load_tokenizer, train_tokenizer, vocabulary

__all__ = [
    "Corpus",
    "PretrainingExamples",
    "TokenizedCorpus",
    "Vocabulary",
    "batches",
    "load_tokenizer",
    "open_corpus",
    "open_source",
    "prepare_tokenizer",
    "tokenize",
    "train_tokenizer",
    "vocabulary",
]
