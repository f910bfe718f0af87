"""The check at base size: pairs of questions and paragraphs, places, differences over questions."""

import json

import numpy as np
import pytest

from research.base_size import report, retrieval


class Encoder:
    """Gives each text the vector of its first word."""

    vectors = {"red": [1.0, 0.0], "blue": [0.0, 1.0], "violet": [0.6, 0.8]}

    def encode(self, texts, normalize, dtype):
        assert normalize and dtype == "bfloat16"
        return np.array([self.vectors[text.split()[0]] for text in texts])


def test_places_count_the_paragraphs_that_are_more_similar():
    questions = ["red ?", "blue ?", "violet ?"]
    paragraphs = ["red", "violet", "blue"]
    # "blue" is more similar to the third question's vector than "red", less than "violet".
    assert retrieval.places(Encoder(), questions, paragraphs) == [1, 2, 2]


def squad(paragraphs):
    entries = [
        {
            "context": f"Paragraph {number}.",
            "qas": [
                {
                    "id": f"{number}-{k}",
                    "question": f"Question {number} {k}?",
                    "answers": [],
                }
                for k in range(2)
            ],
        }
        for number in range(paragraphs)
    ]
    return {"version": "1.1", "data": [{"title": "T", "paragraphs": entries}]}


def test_pairs_are_first_questions_evenly_over_the_file(tmp_path):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(squad(5)), encoding="utf-8")
    questions, paragraphs = retrieval.pairs(path, 3)
    assert questions == ["Question 0 0?", "Question 2 0?", "Question 4 0?"]
    assert paragraphs == ["Paragraph 0.", "Paragraph 2.", "Paragraph 4."]
    with pytest.raises(ValueError, match="has 5 paragraphs with questions, and 6"):
        retrieval.pairs(path, 6)


def test_the_page_compares_the_same_questions():
    lines = [
        {
            "position": "rope",
            "places": [1, 2, 1, 4],
            "r2": 0.8,
            "curve": [[0, -0.4], [8, 0.6], [16, 0.8]],
        },
        {"position": "none", "places": [2, 4, 2, 4]},
    ]
    value, width = report.difference(lines[1], lines[0])
    changes = np.array([-0.5, -0.25, -0.5, 0.0])
    assert value == changes.mean()
    assert width == pytest.approx(1.96 * changes.std(ddof=1) / 2)
    page = report.page(lines)
    assert "among 4 paragraphs" in page
    assert "| `rope`   | 0.600        | 0.800 |" in page and "-31.2 ± 23.5" in page
