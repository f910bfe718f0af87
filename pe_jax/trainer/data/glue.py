"""The nine GLUE tasks (Wang et al. 2018): their texts, labels, metrics and splits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from pe_jax.interop.special_tokens import require_cls, text_tokenizer, vocabulary
from pe_jax.trainer.data.rows import Rows, concatenate
from pe_jax.trainer.data.tfds import decode, examples, open_dataset


class GlueTask(NamedTuple):
    """A task: the names of its data in tfds, and of its official scores."""

    texts: tuple[str, ...]  # Of the one or two text features.
    labels: tuple[str, ...]  # Of the classes; empty for a regression.
    metrics: tuple[str, ...]  # Checkpoints are selected by the first one.
    # Name in the scores, and split, of each validation set.
    validation: tuple[tuple[str, str], ...] = (("validation", "validation"),)


# Where a task has two metrics, that of the paper's table 2 comes first.
GLUE: dict[str, GlueTask] = {
    "cola": GlueTask(
        texts=("sentence",),
        labels=("unacceptable", "acceptable"),
        metrics=("matthews",),
    ),
    "sst2": GlueTask(
        texts=("sentence",),
        labels=("negative", "positive"),
        metrics=("accuracy",),
    ),
    "mrpc": GlueTask(
        texts=("sentence1", "sentence2"),
        labels=("not_equivalent", "equivalent"),
        metrics=("f1", "accuracy"),
    ),
    "stsb": GlueTask(
        texts=("sentence1", "sentence2"),
        labels=(),
        metrics=("spearman", "pearson"),
    ),
    "qqp": GlueTask(
        texts=("question1", "question2"),
        labels=("not_duplicate", "duplicate"),
        metrics=("f1", "accuracy"),
    ),
    "mnli": GlueTask(
        texts=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        metrics=("accuracy",),
        validation=(
            ("mismatched", "validation_mismatched"),
            ("matched", "validation_matched"),
        ),
    ),
    "qnli": GlueTask(
        texts=("question", "sentence"),
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
    ),
    "rte": GlueTask(
        texts=("sentence1", "sentence2"),
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
    ),
    "wnli": GlueTask(
        texts=("sentence1", "sentence2"),
        labels=("not_entailment", "entailment"),
        metrics=("accuracy",),
    ),
}


class Examples(NamedTuple):
    """The N examples of a split."""

    texts: tuple[list[str], ...]  # `[N]` strings for each text feature of the task.
    labels: np.ndarray  # `[N]` int32 classes, or float32 values of a regression.

    def empty(self) -> np.ndarray:
        """Return `[N]` bool: True where one of the texts is empty or only white space."""
        rows = zip(*self.texts, strict=True)
        return np.array([not all(text.strip() for text in row) for row in rows], bool)

    def select(self, chosen: np.ndarray) -> Examples:
        """Return the examples where `chosen`, `[N]` bool, is True."""
        texts = tuple(list(itertools.compress(column, chosen)) for column in self.texts)
        return Examples(texts, self.labels[chosen])


def load_glue(name: str, split: str, data_dir: str = "") -> Examples:
    """Load examples of the prepared tfds dataset `glue/NAME`, read without TensorFlow.

    Args:
      name: a key of `GLUE`.
      data_dir: the folder of tfds datasets; empty means tfds's own default.

    Raises:
      ValueError: if there is no such dataset or split, or an example lacks a text or has an
        unknown label (as in the test splits of tfds).
    """
    dataset = f"glue/{name}"
    builder = open_dataset(dataset, split, data_dir, extra_name="finetuning")
    task = GLUE[name]
    texts: tuple[list[str], ...] = tuple([] for _ in task.texts)
    labels = []
    for place, example in examples(builder, dataset, split):
        for column, feature in zip(texts, task.texts, strict=True):
            column.append(decode(example, feature, place))
        labels.append(_label(example.get("label"), task, place))
    return Examples(texts, np.array(labels, np.int32 if task.labels else np.float32))


def _label(value: float | None, task: GlueTask, place: str) -> float:
    largest = len(task.labels) - 1 if task.labels else 5  # STS-B's scale ends at 5.
    if value is not None and 0 <= value <= largest:
        return value
    classes = f" ({', '.join(task.labels)})" if task.labels else ""
    raise ValueError(
        f"{place} has the label {value!r}, but labels are 0 to {largest}{classes}. Is it a test "
        "split?"
    )


def encode_examples(examples: Examples, tokenizer: Tokenizer, length: int) -> Rows:
    """Return rows `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`, or what the tokenizer
    puts around them; targets: `label`.

    Texts that are too long are truncated at their ends, the longer one first, as BERT does.

    Args:
      length: the largest number of tokens of a row, special tokens included.

    Raises:
      ValueError: if `length` leaves no token for a text, or the tokenizer has no [CLS].
    """
    special = vocabulary(tokenizer)
    encoder = text_tokenizer(tokenizer)
    columns = []
    for texts in examples.texts:
        encodings = encoder.encode_batch_fast(texts, add_special_tokens=False)
        columns.append([np.array(encoding.ids, np.int32) for encoding in encodings])
    template = require_cls(special.pair if len(columns) > 1 else special.single)
    room = length - template.size
    if room < len(columns):
        raise ValueError(
            f"config.data.length={length} is too short for {len(columns)} text(s): it must be at "
            f"least {template.size + len(columns)}."
        )
    rows = []
    second = []
    for parts in zip(*columns, strict=True):
        sizes = _truncated_sizes([len(part) for part in parts], room)
        row = template.join(*(part[:size] for part, size in zip(parts, sizes)))
        rows.append(row)
        second.append(template.type_start(sizes[0], len(row)))
    return concatenate(rows, second, special.pad, {"label": examples.labels})


def _truncated_sizes(sizes: Sequence[int], room: int) -> list[int]:
    """Return the sizes of texts truncated to `room`: the longer one first, the second if equal."""
    if len(sizes) == 1 or sum(sizes) <= room:
        return [min(size, room) for size in sizes]
    first, second = sizes
    half = room // 2
    if second <= half:
        return [room - second, second]
    first = min(first, room - half)
    return [first, room - first]
