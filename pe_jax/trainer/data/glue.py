"""The nine GLUE tasks (Wang et al. 2018): their texts, labels, metrics and splits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from pe_jax.interop.special_tokens import require_cls, text_tokenizer, vocabulary
from pe_jax.trainer.data.rows import Rows, concatenate
from pe_jax.trainer.data.tfds import decode, examples, open_dataset


class GlueTask(NamedTuple):
    texts: tuple[str, ...]  # Names of the one or two text features.
    labels: tuple[str, ...]  # Names of the classes; empty for a regression.
    metrics: tuple[
        str, ...
    ]  # Names of the scores; checkpoints are selected by the first one.
    validation: tuple[tuple[str, str], ...] = (
        ("", "validation"),
    )  # Name in the scores and split.


_ENTAILMENT = ("entailment", "not_entailment")

# Metrics are the official ones; where there are two, that of the paper's table 2 comes first.
GLUE: dict[str, GlueTask] = {
    "cola": GlueTask(("sentence",), ("unacceptable", "acceptable"), ("matthews",)),
    "sst2": GlueTask(("sentence",), ("negative", "positive"), ("accuracy",)),
    "mrpc": GlueTask(
        ("sentence1", "sentence2"), ("not_equivalent", "equivalent"), ("f1", "accuracy")
    ),
    "stsb": GlueTask(("sentence1", "sentence2"), (), ("spearman", "pearson")),
    "qqp": GlueTask(
        ("question1", "question2"), ("not_duplicate", "duplicate"), ("f1", "accuracy")
    ),
    "mnli": GlueTask(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        ("accuracy",),
        (("mismatched", "validation_mismatched"), ("matched", "validation_matched")),
    ),
    "qnli": GlueTask(("question", "sentence"), _ENTAILMENT, ("accuracy",)),
    "rte": GlueTask(("sentence1", "sentence2"), _ENTAILMENT, ("accuracy",)),
    "wnli": GlueTask(
        ("sentence1", "sentence2"), ("not_entailment", "entailment"), ("accuracy",)
    ),
}


class Examples(NamedTuple):
    texts: tuple[list[str], ...]  # `[N]` strings for each text feature of the task.
    labels: np.ndarray  # `[N]` int32 classes, or float32 values of a regression.

    def empty(self) -> np.ndarray:
        """Return `[N]` bool: True where one of the texts is empty or only white space."""
        return np.array(
            [not all(map(str.strip, texts)) for texts in zip(*self.texts)], bool
        )

    def select(self, chosen: np.ndarray) -> Examples:
        """Return the examples where `chosen`, `[N]` bool, is True."""
        texts = tuple(list(itertools.compress(column, chosen)) for column in self.texts)
        return Examples(texts, self.labels[chosen])


def load_glue(name: str, split: str, data_dir: str = "") -> Examples:
    """Load examples of the prepared tfds dataset `glue/NAME`, NAME a key of `GLUE`.

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
        for column, name in zip(texts, task.texts):
            column.append(decode(example, name, place))
        labels.append(_label(example.get("label"), task, place))
    return Examples(texts, np.array(labels, np.int32 if task.labels else np.float32))


def _label(value: float | None, task: GlueTask, place: str) -> float:
    if task.labels and value is not None and 0 <= value < len(task.labels):
        return int(value)
    if not task.labels and value is not None and 0 <= value <= 5:  # STS-B's scale.
        return float(value)
    classes = f"0 to {len(task.labels) - 1} ({', '.join(task.labels)})"
    accepted = classes if task.labels else "0 to 5"
    raise ValueError(
        f"{place} has the label {value!r}, but labels are {accepted}. Is it a test split?"
    )


def encode_examples(examples: Examples, tokenizer: Tokenizer, length: int) -> Rows:
    """Return rows `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`, or what the tokenizer
    puts around them; targets: `label`.

    Texts that are too long are truncated at their ends, the longer one first, as BERT does.

    Args:
      length: the largest number of tokens of a row, special tokens included.
    """
    special, encoder = vocabulary(tokenizer), text_tokenizer(tokenizer)
    encode = functools.partial(encoder.encode_batch_fast, add_special_tokens=False)
    columns = [
        [np.array(x.ids, np.int32) for x in encode(texts)] for texts in examples.texts
    ]
    template = require_cls(special.pair if len(columns) > 1 else special.single)
    room = length - template.size
    if room < len(columns):
        raise ValueError(
            f"config.data.length={length} is too short for {len(columns)} text(s): it must be at "
            f"least {template.size + len(columns)}."
        )
    rows, second = [], []
    for parts in zip(*columns):
        sizes = _truncated_sizes([len(part) for part in parts], room)
        rows.append(template.join(*(part[:size] for part, size in zip(parts, sizes))))
        second.append(template.type_start(sizes[0], len(rows[-1])))
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
