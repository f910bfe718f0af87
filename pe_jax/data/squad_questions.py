"""SQuAD: questions about a context whose answers are spans of the context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from pe_jax.data.prepared import open_prepared

_FEATURES = ("id", "question", "context", "answers")


class Answer(NamedTuple):
    """A span of the context: its text, and the index of its first character (code point)."""

    text: str
    start: int


class Question(NamedTuple):
    """A question, its context, and its gold answers, empty if it is unanswerable."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


def load_questions(name: str, split: str, data_dir: str = "") -> list[Question]:
    """The questions of a prepared tfds dataset with SQuAD's features, read without TensorFlow.

    The "plausible answers" of v2.0's unanswerable questions are not answers, and not read.

    Args:
      name: as tfds writes it: `squad/v1.1`, `squad/v2.0`, `squad_shifts` ...
      data_dir: the folder of tfds datasets; empty means tfds's own default.

    Raises:
      ValueError: if there is no such dataset or split, or it lacks a feature.
    """
    builder = open_prepared(name, split, data_dir)
    missing = [feature for feature in _FEATURES if feature not in builder.info.features]
    if missing:
        raise ValueError(
            f"{name!r} has no feature {', '.join(missing)} but {sorted(builder.info.features)}: "
            "a dataset of questions needs those of SQuAD."
        )
    contexts: dict[str, str] = {}  # One string shared by all questions on a context.
    questions = []
    for example in builder.as_data_source(split):
        context = _text(example["context"])
        answers = example["answers"]
        questions.append(
            Question(
                _text(example["id"]),
                _text(example["question"]),
                contexts.setdefault(context, context),
                tuple(
                    Answer(_text(text), int(start))
                    for text, start in zip(answers["text"], answers["answer_start"], strict=True)
                ),
            )
        )
    return questions


def _text(value: bytes | str) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def read_official(path: str | Path) -> list[Question]:
    """The questions of a JSON file in the format of the official SQuAD, v1.1 or v2.0.

    Raises:
      ValueError: for a file that is missing, or of another format.
    """
    try:
        articles = json.loads(Path(path).read_text(encoding="utf-8"))["data"]
        return [
            Question(
                str(qa["id"]),
                qa["question"],
                paragraph["context"],
                tuple(Answer(a["text"], a["answer_start"]) for a in qa["answers"]),
            )
            for article in articles
            for paragraph in article["paragraphs"]
            for qa in paragraph["qas"]
        ]
    except OSError as error:
        raise ValueError(f"Cannot read the questions of {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not in SQuAD's format (data, paragraphs, qas, each with id, question and "
            f"answers): {type(error).__name__} {error}."
        ) from error
