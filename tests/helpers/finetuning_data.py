"""Generated sentences with labels, and questions with answers, to fine-tune on."""

import json

import numpy as np

from helpers import tiny_run


def examples(count, seed):
    """Two words each; the label is whether the first of them is greater."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        words = rng.choice(tiny_run.WORDS, rng.integers(2, 12))
        found.append({"sentence": " ".join(words).encode(), "label": int(words[0] > words[1])})
    return found


def questions(path, count, seed, answers=True):
    """Official JSON: where is a word of the context?"""
    rng = np.random.default_rng(seed)
    qas = []
    for number in range(count):
        words = [str(word) for word in rng.choice(tiny_run.WORDS, 12, replace=False)]
        at = int(rng.integers(12))
        gold = {"text": words[at], "answer_start": len(" ".join([*words[:at], ""]))}
        gold = [gold] if answers or number % 2 else []
        one = {"id": f"q{number}", "question": f"where {words[at]}", "answers": gold}
        qas.append({"context": " ".join(words), "qas": [one]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": qas}]}))
    return str(path)
