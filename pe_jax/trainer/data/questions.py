"""Questions that spans of a context answer, as SQuAD has them: from tfds or official files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from pe_jax.common.files import parse_json
from pe_jax.trainer.data.tfds import decode, examples, open_dataset

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


def read_questions(source: str, data_dir: str) -> list[Question]:
    """Questions of a source: `NAME:SPLIT` or `NAME:SPLIT+SPLIT` of tfds, or an official JSON file.

    Raises:
      ValueError: for a source that does not exist or has another format.
    """
    if source.endswith(".json"):
        return read_official(source)
    name, _, splits = source.partition(":")
    if not name or not splits:
        raise ValueError(
            "A source of questions must be NAME:SPLIT (tfds), such as squad/v1.1:train, or a "
            f".json file in SQuAD's format; got {source!r}."
        )
    questions: list[Question] = []
    for split in splits.split("+"):
        questions += load_questions(name, split, data_dir)
    return questions


def load_questions(name: str, split: str, data_dir: str = "") -> list[Question]:
    """Load the questions of a prepared tfds dataset with SQuAD's features, such as `squad/v1.1`.

    The "plausible answers" of v2.0's unanswerable questions are not answers, and not read.

    Raises:
      ValueError: if there is no such dataset or split, or it lacks a feature.
    """
    builder = open_dataset(name, split, data_dir, extra_name="finetuning")
    missing = [feature for feature in _FEATURES if feature not in builder.info.features]
    if missing:
        raise ValueError(
            f"{name!r} lacks the features {', '.join(missing)}; it has "
            f"{sorted(builder.info.features)}. A dataset of questions needs those of SQuAD."
        )
    contexts: dict[str, str] = {}  # One string shared by all questions on a context.
    questions = []
    for place, example in examples(builder, name, split):
        number = decode(example, "id", place)
        question = decode(example, "question", place)
        context = decode(example, "context", place)
        context = contexts.setdefault(context, context)
        answers = []
        gold = example["answers"]
        for text, start in zip(gold["text"], gold["answer_start"], strict=True):
            text = decode({"text": text}, "text", f"{place}, answers")
            answers.append(Answer(text, int(start)))
        questions.append(Question(number, question, context, tuple(answers)))
    return questions


def read_official(path: str | Path) -> list[Question]:
    """Read the questions of a JSON file in the format of the official SQuAD, v1.1 or v2.0.

    Raises:
      ValueError: for a file that is missing, or of another format; the message names the field.
    """
    try:
        record = parse_json(Path(path).read_text(encoding="utf-8"))
        return list(_official_questions(record))
    except OSError as error:
        raise ValueError(
            f"Cannot read the questions of {path}: {error.strerror}."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{path} is not in SQuAD's format (data, paragraphs, qas, each question with id, "
            f"question and answers): {error}."
        ) from error


def _official_questions(record: object) -> Iterator[Question]:
    for article, article_place in _entries(record, "data"):
        for paragraph, place in _entries(article, "paragraphs", article_place):
            context = _field(paragraph, "context", str, place)
            for qa, qa_place in _entries(paragraph, "qas", place):
                number = _field(qa, "id", str, qa_place)
                question = _field(qa, "question", str, qa_place)
                answers = tuple(_official_answers(qa, qa_place))
                yield Question(number, question, context, answers)


def _official_answers(qa: object, qa_place: str) -> Iterator[Answer]:
    for answer, place in _entries(qa, "answers", qa_place):
        text = _field(answer, "text", str, place)
        yield Answer(text, _field(answer, "answer_start", int, place))


_T = TypeVar("_T")


def _field(record: object, name: str, kind: type[_T], place: str) -> _T:
    """Return a field of the JSON object at `place` of the file."""
    if not isinstance(record, dict):
        raise ValueError(f"{place or 'the file'} is {_shown(record)}, not an object")
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        fault = "is missing"
        if name in record:
            fault = f"is {_shown(value)}, not {_KINDS[kind]}"
        raise ValueError(f"{_path(place, name)} {fault}")
    return value


def _entries(
    record: object, name: str, place: str = ""
) -> Iterator[tuple[object, str]]:
    """Yield the entries of a list in a JSON object, and their places, such as `data[0]`."""
    for number, entry in enumerate(_field(record, name, list, place)):
        yield entry, f"{_path(place, name)}[{number}]"


_KINDS: dict[type, str] = {str: "a text", int: "a whole number", list: "a list"}


def _path(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
