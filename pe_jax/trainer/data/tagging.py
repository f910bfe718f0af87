"""Tagging: sentences of words with a label each, from files of columns or tfds, and their inputs.

A file has a word a line, in columns that are separated by tabs, or else by blanks, and an empty
line after each sentence. Lines that begin with `-DOCSTART-` are no words. The label of a word is
predicted at its first token.

Shapes: W words of all sentences, T tokens of all inputs.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from pe_jax.common.files import Json
from pe_jax.interop.label_schemes import (
    NONE,
    OUTSIDE,
    detect_scheme,
    impossible_at,
    label_fault,
)
from pe_jax.interop.special_tokens import text_tokenizer, vocabulary
from pe_jax.interop.token_windows import token_windows
from pe_jax.interop.words import tokenize_texts
from pe_jax.trainer.data.corpora import matching_paths
from pe_jax.trainer.data.rows import Rows, concatenate
from pe_jax.trainer.data.tfds import decode, examples, open_dataset

LABEL = "label"  # The name of labels in a batch.
_DOCUMENT = "-DOCSTART-"


class Sentence(NamedTuple):
    """Words, with a label each.

    Attributes:
      source: the file, or the example of tfds.
      line: of the first word in the file; the others follow. None for tfds.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]
    source: str
    line: int | None

    def place(self, index: int) -> str:
        """Return where a word is, for messages."""
        if self.line is None:
            return f"{self.source}, word {index + 1}"
        return f"{self.source}:{self.line + index}"


class Columns(NamedTuple):
    """Where words and labels are: columns of files, and features of tfds."""

    word: int
    label: int
    features: tuple[str, ...]


def read_sentences(source: str, columns: Columns, data_dir: str = "") -> list[Sentence]:
    """Read the sentences of a source.

    Args:
      source: a path or glob of files, or `NAME:SPLIT` or `NAME:SPLIT+SPLIT` of tfds.
      data_dir: the folder of tfds datasets; empty means tfds's own default.

    Raises:
      ValueError: for a source that does not exist or has no sentence, or a line of other columns.
    """
    paths = matching_paths(source)
    if paths:
        sentences = [sentence for path in paths for sentence in _read(path, columns)]
    else:
        sentences = _read_tfds(source, columns, data_dir)
    if not sentences:
        raise ValueError(f"{source} has no sentence. Give another source.")
    return sentences


def check_labels(sentences: Iterable[Sentence], scheme: str) -> None:
    """Raise ValueError, which names the line, for labels that are impossible under a scheme."""
    for sentence in sentences:
        for index, label in enumerate(sentence.labels):
            if fault := label_fault(label, scheme):
                raise ValueError(
                    f"{sentence.place(index)}: the label {label!r} {fault}. Set "
                    "config.data.scheme, or config.data.label_column."
                )
        wrong = impossible_at(sentence.labels, scheme)
        if wrong is not None:
            raise ValueError(_impossible(sentence, wrong, scheme))


def _impossible(sentence: Sentence, index: int, scheme: str) -> str:
    """Return the message for what `impossible_at` has found."""
    end = len(sentence.labels)
    after = f"after {sentence.labels[index - 1]!r}" if index else "at the beginning"
    what = f"{sentence.labels[index]!r} stands" if index < end else "a sentence ends"
    return (
        f"{sentence.place(min(index, end - 1))}: {what} {after}, which is impossible in {scheme}. "
        "Correct the line, or set config.data.scheme."
    )


def scheme_of(sentences: Sequence[Sentence], scheme: str) -> str:
    """Return the scheme of training data, "auto" detected; raises as `check_labels`."""
    if scheme == "auto":
        scheme = detect_scheme(sentence.labels for sentence in sentences)
    check_labels(sentences, scheme)
    return scheme


def label_counts(sentences: Iterable[Sentence]) -> collections.Counter[str]:
    """Return how often each label occurs."""
    return collections.Counter(
        label for sentence in sentences for label in sentence.labels
    )


# --- files ----------------------------------------------------------------------------------------


def _read(path: Path, columns: Columns) -> Iterator[Sentence]:
    """Yield the sentences of a file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}). Convert it.") from error
    # Not splitlines: words of tweets contain other characters that it takes for line breaks.
    lines = text.split("\n")
    has_tabs = any("\t" in line for line in lines if line.strip())
    words: list[str] = []
    labels: list[str] = []
    count = 0
    first = 0
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(_DOCUMENT):
            if words:
                yield Sentence(
                    tuple(words), tuple(labels), str(path), number - len(words)
                )
            words = []
            labels = []
            continue
        cells = _cells(line, has_tabs)
        if not count:
            count = len(cells)
            first = number
            _check_columns(f"{path}:{number}", count, columns)
        if len(cells) != count:
            separator = "tabs" if has_tabs else "blanks"
            raise ValueError(
                f"{path}:{number} has {len(cells)} columns, separated by {separator}, but line "
                f"{first} has {count}: {line.strip()[:60]!r}. Correct the line."
            )
        word, label = cells[columns.word], cells[columns.label]
        if not word or not label:
            what = "word" if not word else "label"
            raise ValueError(
                f"{path}:{number} has an empty {what}: {line.strip()[:60]!r}. Correct the line."
            )
        words.append(word)
        labels.append(label)
    if words:
        yield Sentence(
            tuple(words), tuple(labels), str(path), len(lines) - len(words) + 1
        )


def _cells(line: str, has_tabs: bool) -> list[str]:
    if has_tabs:
        return [cell.strip(" \r") for cell in line.split("\t")]
    return re.split("[ \t]+", line.strip(" \t\r"))


def _check_columns(place: str, count: int, columns: Columns) -> None:
    for name in ("word", "label"):
        index = getattr(columns, name)
        if not -count <= index < count:
            raise ValueError(
                f"config.data.{name}_column={index}, but {place} has {count} columns. Columns are "
                f"0 to {count - 1}, or -1 for the last."
            )
    if columns.word % count == columns.label % count:
        raise ValueError(
            f"config.data.word_column={columns.word} and config.data.label_column={columns.label} "
            f"are the same column of {place}, which has {count}. Give another, or another file."
        )


# --- tfds -----------------------------------------------------------------------------------------


def _read_tfds(source: str, columns: Columns, data_dir: str) -> list[Sentence]:
    name, _, splits = source.partition(":")
    if not name or not splits:
        raise ValueError(
            f"{source!r} matches no file. Give a path or glob of files with a word and a label a "
            "line, or NAME:SPLIT of tfds, such as conll2003:train."
        )
    sentences = []
    for split in splits.split("+"):
        builder = open_dataset(name, split, data_dir, extra_name="finetuning")
        names = _class_names(builder.info.features, name, columns.features)
        for place, example in examples(builder, name, split):
            words, labels = (example[feature] for feature in columns.features)
            decoded = tuple(decode({"word": word}, "word", place) for word in words)
            named = tuple(names[label] for label in labels)
            if len(decoded) != len(named):
                raise ValueError(
                    f"{place} has {len(decoded)} words, but {len(named)} labels."
                )
            if decoded:
                sentences.append(Sentence(decoded, named, place, None))
    return sentences


def _class_names(features: Json, name: str, wanted: tuple[str, ...]) -> list[str]:
    """Return the names of the labels of a tfds dataset."""
    missing = [feature for feature in wanted if feature not in features]
    names = None if missing else getattr(features[wanted[1]].feature, "names", None)
    if missing or names is None:
        raise ValueError(
            f"{name!r} has the features {', '.join(features)}. Set config.data.features to those "
            f"of its words and of their labels, which are classes; got {wanted}."
        )
    return list(names)


# --- inputs ---------------------------------------------------------------------------------------


class TaggedRows(NamedTuple):
    """The inputs of sentences, and where each word is labelled.

    Attributes:
      sentences: in order.
      rows: with the target `LABEL` of each token: the index of a label, or -1 where there is none.
      row: int32 [W], the input in which a word is labelled.
      column: int32 [W], the position of its first token there; -1 for a word without a token.
    """

    sentences: Sequence[Sentence]
    rows: Rows
    row: np.ndarray
    column: np.ndarray


def encode_sentences(
    sentences: Sequence[Sentence],
    tokenizer: Tokenizer,
    length: int,
    labels: Sequence[str],
) -> TaggedRows:
    """Return the inputs of sentences; a long one is split into windows, see `token_windows`.

    Words are joined by spaces and tokenized as a text, as the model has read them in training.

    Args:
      length: of an input at most, special tokens included.
      labels: those that the model knows; others have no target.

    Raises:
      ValueError: if `length` leaves no room for a token.
    """
    special = vocabulary(tokenizer)
    template = special.single
    room = length - template.size
    if room < 1:
        raise ValueError(
            f"config.data.length={length} is too short: it must be at least {template.size + 1}."
        )
    texts = [" ".join(sentence.words) for sentence in sentences]
    index_of = {label: index for index, label in enumerate(labels)}
    inputs: list[np.ndarray] = []
    second = []
    targets = []
    places = []  # Of the words of each sentence, `[n, 2]`.
    tokenized = tokenize_texts(texts, text_tokenizer(tokenizer))
    for sentence, tokens in zip(sentences, tokenized, strict=True):
        pieces = _first_pieces(sentence.words, tokens.offsets)
        ids = np.array([index_of.get(label, -1) for label in sentence.labels], np.int32)
        place = np.full((len(pieces), 2), -1, np.int32)
        place[:, 0] = len(inputs)
        for window in token_windows(len(tokens.ids), room):
            is_here = (pieces >= window.begin) & (pieces < window.end)
            columns = pieces[is_here] - window.start + len(template.before)
            place[is_here] = np.stack(
                [np.full_like(columns, len(inputs)), columns], axis=1
            )
            row = template.join(tokens.ids[window.start : window.stop])
            target = np.full(len(row), -1, np.int32)
            target[columns] = ids[is_here]
            second.append(template.type_start(window.stop - window.start, len(row)))
            inputs.append(row)
            targets.append(target)
        places.append(place)
    rows = concatenate(inputs, second, special.pad, targets={})
    rows = rows._replace(token_targets={LABEL: np.concatenate(targets)})
    row, column = np.concatenate(places).T
    return TaggedRows(sentences, rows, row, column)


def _first_pieces(words: Sequence[str], offsets: np.ndarray) -> np.ndarray:
    """Return the index of the first token of each word, -1 for one without a token.

    Args:
      offsets: int32 [n, 2], of the tokens in the words joined by spaces.
    """
    sizes = np.array([len(word) + 1 for word in words])
    begins = np.cumsum(sizes) - sizes
    pieces = np.full(len(words), -1)
    tokens = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
    word_of_token = np.searchsorted(begins, offsets[tokens, 0], side="right") - 1
    found, first = np.unique(word_of_token, return_index=True)
    pieces[found] = tokens[first]
    return pieces


def default_label(sentences: Iterable[Sentence], scheme: str) -> str:
    """Return the label of a word without a token: "O", or of plain tags the most frequent one."""
    if scheme != NONE:
        return OUTSIDE
    ((label, _),) = label_counts(sentences).most_common(1)
    return label
