"""Pipeline from text to NumPy batches: corpora, tokenizer, pretraining examples.

GLUE is in `data.glue`, SQuAD in `data.squad`, and their batches in `data.rows`.
"""

from pe_jax.interop.special_tokens import Vocabulary, vocabulary
from pe_jax.interop.tokenizer import load_tokenizer, train_tokenizer
from pe_jax.trainer.data.corpora import open_corpus
from pe_jax.trainer.data.packed import PackedExamples
from pe_jax.trainer.data.pretraining import Examples, PretrainingExamples, batches
from pe_jax.trainer.data.sources import (
    TOKENIZED,
    open_source,
    prepare,
    prepare_tokenizer,
    tokenize,
)
from pe_jax.trainer.data.tokenized import TokenizedCorpus, pieces
from pe_jax.trainer.data.variable_length import VariableLengthExamples

__all__ = [
    "TOKENIZED",
    "Examples",
    "PackedExamples",
    "PretrainingExamples",
    "TokenizedCorpus",
    "VariableLengthExamples",
    "Vocabulary",
    "batches",
    "load_tokenizer",
    "open_corpus",
    "open_source",
    "pieces",
    "prepare",
    "prepare_tokenizer",
    "tokenize",
    "train_tokenizer",
    "vocabulary",
]
