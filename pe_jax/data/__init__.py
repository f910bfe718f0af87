"""From text to NumPy batches: corpora, tokenizer, pairs, masking, grain pipelines, questions."""

from pe_jax.data.corpora import Corpus, open_corpus
from pe_jax.data.pipeline import PretrainingExamples, batches
from pe_jax.data.sources import Source, open_source
from pe_jax.data.squad_questions import Answer, Question, load_questions, read_official
from pe_jax.data.tokenized import TokenizedCorpus, prepare_tokenizer, tokenize
from pe_jax.data.tokenizer import Vocabulary, load_tokenizer, train_tokenizer, vocabulary
from pe_jax.data.windows import TrainingWindows, Windows, evaluation_windows, training_windows

__all__ = [
    "Answer",
    "Corpus",
    "PretrainingExamples",
    "Question",
    "Source",
    "TokenizedCorpus",
    "TrainingWindows",
    "Vocabulary",
    "Windows",
    "batches",
    "evaluation_windows",
    "load_questions",
    "load_tokenizer",
    "open_corpus",
    "open_source",
    "prepare_tokenizer",
    "read_official",
    "tokenize",
    "train_tokenizer",
    "training_windows",
    "vocabulary",
]
