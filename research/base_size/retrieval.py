"""Retrieval by sentence embeddings: at which place is the paragraph that answers a question?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pe_jax.interop import PublishedEncoder
from pe_jax.trainer.data.questions import read_questions


def pairs(source: Path, count: int) -> tuple[list[str], list[str]]:
    """Return questions and the paragraphs that answer them, evenly over a file of SQuAD: the first
    question of each paragraph."""
    by_paragraph: dict[str, str] = {}
    for question in read_questions(str(source), ""):
        by_paragraph.setdefault(question.context, question.question)
    if len(by_paragraph) < count:
        raise ValueError(
            f"{source} has {len(by_paragraph)} paragraphs with questions, and {count} are needed."
        )
    chosen = np.linspace(0, len(by_paragraph) - 1, count).astype(int)
    paragraphs = np.array(list(by_paragraph), object)[chosen]
    return [by_paragraph[text] for text in paragraphs], list(paragraphs)


def places(
    encoder: PublishedEncoder, questions: list[str], paragraphs: list[str]
) -> list[int]:
    """Return the place of each question's own paragraph among all, 1 for the most similar, by the
    cosine of their vectors."""
    question_vectors = encoder.encode(questions, normalize=True, dtype="bfloat16")
    paragraph_vectors = encoder.encode(paragraphs, normalize=True, dtype="bfloat16")
    similarity = question_vectors @ paragraph_vectors.T
    own = np.diag(similarity)
    ahead = (similarity > own[:, None]).sum(axis=1)
    return [1 + int(count) for count in ahead]
