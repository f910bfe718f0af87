"""Tagging: a label for each word of a sentence, such as a named entity or a part of speech."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from pe_jax.common.shapes import Array
from pe_jax.interop.label_schemes import OUTSIDE
from pe_jax.models import BertConfig, BertForTokens
from pe_jax.trainer.configs.finetuning import TaggingConfig
from pe_jax.trainer.data.tagging import (
    LABEL,
    Columns,
    Sentence,
    TaggedRows,
    check_labels,
    default_label,
    encode_sentences,
    label_counts,
    read_sentences,
    scheme_of,
)
from pe_jax.trainer.tasks.finetuning_task import (
    HELD_OUT,
    INPUTS,
    VALIDATION,
    FinetuningTask,
    score_name,
    split_off,
)
from pe_jax.trainer.tasks.losses import cross_entropy
from pe_jax.trainer.tasks.tag_scores import tag_scores, write_predictions
from pe_jax.trainer.training.pytrees import Batch, Params, Scalars, Sums
from pe_jax.trainer.training.step import Task, cache_by_arguments, make_task

TEST = "test"
_NOT_FINITE = -1  # In place of a label.


@cache_by_arguments
def token_task(model: BertConfig, outputs: int) -> Task:
    """Cross-entropy over the labels of the first tokens of words, and their accuracy in points.

    Batches: tokens, token_type_ids `[B, L]` int32, mask `[B, L]` bool, label `[B, L]` int32, -1
    where a token has none. The outputs are the likeliest label of each token, `[B, L]` int32.
    """

    def counts(batch: Batch) -> Sums:
        labelled = (batch[LABEL] >= 0).sum().astype(jnp.float32)
        return {"loss": labelled, "accuracy": labelled}

    def sums(logits: Array, batch: Batch) -> Sums:
        is_labelled = batch[LABEL] >= 0
        loss, right = cross_entropy(logits, jnp.maximum(batch[LABEL], 0))
        return {
            "loss": jnp.where(is_labelled, loss, 0.0).sum(),
            "accuracy": 100 * jnp.where(is_labelled, right, 0.0).sum(),
        }

    task = make_task(BertForTokens(model, outputs), INPUTS, counts, sums)

    def likeliest(params: Params, batch: Batch) -> jax.Array:
        logits = task.outputs(params, batch)
        is_finite = jnp.isfinite(logits).all(-1)
        return jnp.where(is_finite, logits.argmax(-1), _NOT_FINITE).astype(jnp.int32)

    return task._replace(outputs=likeliest)


def load_tagging_task(
    config: TaggingConfig, model: BertConfig, tokenizer: Tokenizer
) -> FinetuningTask:
    """Return the sentences of the files of `config.data`, a head, and scores.

    Raises:
      ValueError: if files do not exist or have another format, or a label is impossible.
    """
    data = config.data
    columns = Columns(data.word_column, data.label_column, data.features)
    whole = read_sentences(data.train, columns, data.data_dir)
    scheme = scheme_of(whole, config.scheme)
    sources = {VALIDATION: data.validation, TEST: data.test}
    sets = {}
    for name, source in sources.items():
        if source:
            sets[name] = read_sentences(source, columns, data.data_dir)
            check_labels(sets[name], scheme)
    is_kept = split_off(len(whole), data.held_out)
    train = [sentence for sentence, kept in zip(whole, is_kept) if not kept]
    if data.held_out:
        sets[HELD_OUT] = [sentence for sentence, kept in zip(whole, is_kept) if kept]
    counts = label_counts(train)
    labels = sorted(counts, key=lambda label: (label != OUTSIDE, label))
    missing = default_label(train, scheme)

    def encode(sentences: Sequence[Sentence]) -> TaggedRows:
        return encode_sentences(sentences, tokenizer, data.length, labels)

    train_rows = encode(train)
    held_out = {name: encode(sentences) for name, sentences in sets.items()}
    words = {}
    gold = {}
    for name, sentences in sets.items():
        words[name] = [sentence.words for sentence in sentences]
        gold[name] = [sentence.labels for sentence in sentences]

    def score(name: str, tags: np.ndarray) -> tuple[Scalars, dict[str, str]]:
        predicted = _labels_of_words(held_out[name], tags, labels, missing)
        lines = write_predictions(words[name], gold[name], predicted)
        scores = tag_scores(gold[name], predicted, scheme)
        return scores, {predictions_file(name): lines}

    baseline = {}
    for name, sentences in sets.items():
        answers = _most_frequent(train, sentences)
        for metric, value in tag_scores(gold[name], answers, scheme).items():
            baseline[score_name(metric, name)] = value
    metric = next(iter(tag_scores(gold[VALIDATION], gold[VALIDATION], scheme)))
    return FinetuningTask(
        dataset=data.validation,
        trained_on=data.train,
        objective=token_task(model, len(labels)),
        per_token=True,
        train=train_rows.rows,
        held_out={name: tagged.rows for name, tagged in held_out.items()},
        score=score,
        baseline=baseline,
        metric=metric,
        held_out_metric=score_name(metric, HELD_OUT) if data.held_out else "",
        notes=_notes(scheme, labels, {"training": train_rows, **held_out}),
        labels=tuple(labels),
        scheme=scheme,
    )


def predictions_file(held_out: str) -> str:
    """Return the name of the file of predictions for a held-out set; see `prediction_path`."""
    return f"{held_out}.conll"


def _labels_of_words(
    tagged: TaggedRows, tags: np.ndarray, labels: Sequence[str], missing: str
) -> list[list[str]]:
    """Return the predicted labels of each sentence.

    Args:
      tags: int32 [N, L], of the tokens of each input.
      missing: the label of a word without a token.

    Raises:
      ValueError: for tags of logits that were not finite.
    """
    of_words = tags[tagged.row, tagged.column]
    has_token = tagged.column >= 0
    broken = int((of_words[has_token] == _NOT_FINITE).sum())
    if broken:
        raise ValueError(
            f"{broken} of {len(of_words)} predictions are not finite, so they cannot be scored. "
            "The model's weights are broken."
        )
    words = zip(of_words.tolist(), has_token.tolist(), strict=True)
    names = [labels[tag] if present else missing for tag, present in words]
    by_sentence = []
    begin = 0
    for sentence in tagged.sentences:
        end = begin + len(sentence.words)
        by_sentence.append(names[begin:end])
        begin = end
    return by_sentence


def _most_frequent(
    train: Sequence[Sentence], sentences: Sequence[Sentence]
) -> list[list[str]]:
    """Return for each word its most frequent label in training, or the most frequent of all."""
    by_word: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    for sentence in train:
        for word, label in zip(sentence.words, sentence.labels, strict=True):
            by_word[word][label] += 1
    answers = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    ((most_frequent, _),) = label_counts(train).most_common(1)
    return [
        [answers.get(word, most_frequent) for word in sentence.words]
        for sentence in sentences
    ]


def _notes(
    scheme: str, labels: Sequence[str], tagged_sets: dict[str, TaggedRows]
) -> list[str]:
    """Return sentences on the sets, and on what a model cannot predict in them."""
    notes = [f"scheme {scheme}, {len(labels)} labels"]
    for name, tagged in tagged_sets.items():
        purpose = (
            "training data kept to select by" if name == HELD_OUT else f"{name} data"
        )
        count = len(tagged.sentences)
        note = f"{count:,} sentences of {len(tagged.row):,} words in {purpose}"
        windows = len(tagged.rows.sizes())
        if windows > count:
            note += f", as {windows:,} inputs: long sentences are split"
        empty = int((tagged.column < 0).sum())
        if empty:
            note += f"; {empty:,} words without a token count as the default label"
        unknown = label_counts(tagged.sentences)
        for label in labels:
            del unknown[label]
        if unknown:
            names = ", ".join(f"{label} {n}" for label, n in sorted(unknown.items()))
            note += f"; labels that no training word has count as errors: {names}"
        notes.append(note)
    return notes
