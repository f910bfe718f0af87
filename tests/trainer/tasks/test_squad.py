"""Questions, their windows, the answers decoded from logits, and the official scores."""

import json
import shlex
import string
import sys
import unicodedata
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from helpers import tfds_dataset

from pe_jax.trainer.data import load_tokenizer, squad
from pe_jax.trainer.data.questions import (
    Answer,
    Question,
    load_questions,
    read_official,
)
from pe_jax.trainer.data.rows import pad_rows
from pe_jax.trainer.data.squad import max_context
from pe_jax.trainer.tasks import squad_scores
from pe_jax.trainer.tasks.squad_answers import best_answers
from pe_jax.trainer.tasks.squad_scores import score

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, CLS, SEP = 0, 2, 3
A = 5  # Id of the letter a; b is 6, and so on.


def make_tokenizer(folder, characters=string.ascii_lowercase):
    """Each character is a token, at the start of a word and within."""
    words = [*SPECIAL, *characters, *(f"##{c}" for c in characters)]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return load_tokenizer(folder / "vocab.txt")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("vocab"))


def ask(context, *answers, id="1", question="x y"):
    """A question; answers as texts, found in the context, or as (text, start)."""
    found = (a if isinstance(a, tuple) else (a, context.index(a)) for a in answers)
    return Question(id, question, context, tuple(Answer(*a) for a in found))


# Ten tokens; with two of the question, a length of 10 leaves room for five, and a stride of 2 makes
# windows of tokens 0-4, 2-6, 4-8 and 6-9.
LETTERS = "a b c d e f g h i j"

AT = ["data", 0, "paragraphs", 0]  # Of a paragraph in the official format.


# --- reading --------------------------------------------------------------------------------------


def test_a_tfds_dataset_without_tensorflow(tmp_path):

    def features(kinds):
        spans = {"text": kinds.Text(), "answer_start": np.int32}
        return {
            "id": np.str_,
            "title": kinds.Text(),
            "context": kinds.Text(),
            "question": kinds.Text(),
            "is_impossible": np.bool_,
            "answers": kinds.Sequence(spans),
            "plausible_answers": kinds.Sequence(spans),
        }

    none = {"text": [], "answer_start": []}
    spans = {"text": ["東京", "東"], "answer_start": [4, 4]}
    example = {"title": "T", "context": "Ünï 東京.", "question": "Où?"}
    answered = {
        "id": "a",
        "is_impossible": False,
        "answers": spans,
        "plausible_answers": none,
    }
    impossible = {
        "id": "b",
        "is_impossible": True,
        "answers": none,
        "plausible_answers": spans,
    }
    folder = str(tmp_path)
    examples = [example | answered, example | impossible]
    tfds_dataset.write(folder, "TinyQuestions", features, {"validation": examples})
    tfds_dataset.write(
        folder,
        "TinyTexts",
        lambda kinds: {"id": np.str_, "context": kinds.Text()},
        {"train": [{"id": "a", "context": "x"}]},
    )
    assert "tensorflow" not in sys.modules
    questions = sorted(load_questions("tiny_questions", "validation", folder))
    assert questions == [
        Question("a", "Où?", "Ünï 東京.", (Answer("東京", 4), Answer("東", 4))),
        Question("b", "Où?", "Ünï 東京.", ()),
    ]
    assert questions[0].context is questions[1].context
    with pytest.raises(ValueError, match=r"no split 'train' .*splits: validation"):
        load_questions("tiny_questions", "train", folder)
    with pytest.raises(
        ValueError,
        match=r"lacks the features question, answers; it has \['context', 'id'\]",
    ):
        load_questions("tiny_texts", "train", folder)
    with pytest.raises(ValueError, match="no tfds dataset 'no_such_questions'"):
        load_questions("no_such_questions", "train", folder)


def test_a_dataset_that_is_not_prepared(tmp_path):
    """The error has the command that prepares it, run here up to the download."""
    pytest.importorskip("tensorflow_datasets", reason="the extra tfds is not installed")
    from pe_jax.trainer.data.tfds import open_dataset

    folder = str(tmp_path / "a folder")
    with pytest.raises(
        ValueError, match="it is not prepared in .*wiki40b/en/"
    ) as found:
        open_dataset("wiki40b/en", "train", folder)
    command = next(line for line in str(found.value).splitlines() if " -c " in line)
    *python, program = shlex.split(command)
    assert python == [sys.executable, "-P", "-c"]
    prepared = []
    with mock.patch("tensorflow_datasets.core.DatasetBuilder.download_and_prepare", autospec=True,
                    side_effect=lambda builder: prepared.append(builder)):  # fmt: skip
        exec(program, {})
    (builder,) = prepared
    assert (builder.info.full_name, builder.info.file_format.value) == (
        "wiki40b/en/1.3.0", "array_record")  # fmt: skip
    assert Path(builder.data_dir).is_relative_to(folder)


def test_the_official_format(tmp_path):
    qas = [
        {
            "id": "a",
            "question": "Où?",
            "answers": [{"text": "東京", "answer_start": 4}],
        },
        {
            "id": "b",
            "question": "Quoi?",
            "answers": [],
            "is_impossible": True,
            "plausible_answers": [{"text": "東", "answer_start": 4}],
        },
    ]
    articles = [{"title": "T", "paragraphs": [{"context": "Ünï 東京.", "qas": qas}]}]
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    assert read_official(path) == [
        Question("a", "Où?", "Ünï 東京.", (Answer("東京", 4),)),
        Question("b", "Quoi?", "Ünï 東京.", ()),
    ]
    for text, fault in (
        ("[1", "Expecting"),
        ("[]", r"the file is \[\], not an object"),
        ('{"a": 1}', "data is missing"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"not in SQuAD's format.*{fault}"):
            read_official(path)
    with pytest.raises(ValueError, match=r"Cannot read .*none\.json: No such file"):
        read_official(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("keys", "value", "fault"),
    [
        (["data"], None, "data is null, not a list"),
        (
            [*AT, "context"],
            None,
            r"data\[0\]\.paragraphs\[0\]\.context is null, not a text",
        ),
        ([*AT, "qas"], {}, r"paragraphs\[0\]\.qas is {}, not a list"),
        ([*AT, "qas", 0], "q", r'qas\[0\] is "q", not an object'),
        ([*AT, "qas", 0, "id"], 7, r"qas\[0\]\.id is 7, not a text"),
        (
            [*AT, "qas", 0, "answers", 0, "text"],
            None,
            r"answers\[0\]\.text is null, not a text",
        ),
        (
            [*AT, "qas", 0, "answers", 0, "answer_start"],
            True,
            "answer_start is true, not a whole",
        ),
        (
            [*AT, "qas", 0, "answers", 0, "answer_start"],
            1.5,
            "answer_start is 1.5, not a whole",
        ),
    ],
)
def test_odd_fields_of_the_official_format_are_named(tmp_path, keys, value, fault):
    qa = {"id": "a", "question": "b", "answers": [{"text": "c", "answer_start": 0}]}
    record = {"data": [{"paragraphs": [{"context": "c", "qas": [qa]}]}]}
    inner = record
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    (tmp_path / "a.json").write_text(json.dumps(record))
    with pytest.raises(
        ValueError, match=rf"a\.json is not in SQuAD's format .*{fault}"
    ):
        read_official(tmp_path / "a.json")


# --- windows --------------------------------------------------------------------------------------


def test_windows_by_hand(tokenizer):
    windows = squad.evaluation_windows(
        [ask(LETTERS)], tokenizer, 10, max_query=4, stride=2
    )
    x, y = A + 23, A + 24
    a, b, c, d, e, f, g, h, i, j = range(A, A + 10)
    batch = pad_rows(windows.rows, np.arange(4), windows.length)
    assert batch["tokens"].tolist() == [
        [CLS, x, y, SEP, a, b, c, d, e, SEP],
        [CLS, x, y, SEP, c, d, e, f, g, SEP],
        [CLS, x, y, SEP, e, f, g, h, i, SEP],
        [CLS, x, y, SEP, g, h, i, j, SEP, PAD],
    ]
    assert batch["token_type_ids"].tolist() == [[0] * 4 + [1] * 6] * 3 + [
        [0] * 4 + [1] * 5 + [0]
    ]
    assert batch["mask"].sum(axis=1).tolist() == [10, 10, 10, 9]
    assert windows.question.tolist() == [0, 0, 0, 0]
    assert windows.context_start.tolist() == [4, 4, 4, 4]
    assert windows.first.tolist() == [0, 2, 4, 6]
    assert windows.context_sizes.tolist() == [5, 5, 5, 4]
    (offsets,) = windows.offsets
    assert offsets.tolist() == [[n, n + 1] for n in range(0, 20, 2)]
    assert {array.dtype for array in (windows.rows.tokens, offsets)} == {
        np.dtype(np.int32)
    }


def test_the_window_with_the_most_context(tokenizer):
    """Token 3 has one token to the right in window 0 and one to the left in 1: the first wins.

    Token 7 has one at its side in windows 2 and 3, but window 2 has five tokens, 3 has four.
    """
    questions = [ask("j"), ask(LETTERS, id="2"), ask(LETTERS, id="3")]
    windows = squad.evaluation_windows(questions, tokenizer, 10, max_query=4, stride=2)
    rows, places = np.nonzero(max_context(windows))
    token = places - windows.context_start[rows] + windows.first[rows]
    best = {0: [0, 1, 2, 3], 1: [4, 5], 2: [6, 7], 3: [8, 9]}
    expected = [(0, 0)] + [
        (w + n, t) for n in (1, 5) for w, ts in best.items() for t in ts
    ]
    assert list(zip(rows.tolist(), token.tolist())) == expected


@pytest.mark.parametrize(
    ("tokens", "stride", "starts"),
    [
        (4, 2, [0]),
        (5, 2, [0]),
        (6, 2, [0, 2]),
        (7, 2, [0, 2]),
        (8, 2, [0, 2, 4]),
        (11, 99, [0, 5, 10]),
    ],
)
def test_where_windows_start(tokenizer, tokens, stride, starts):
    """Room for five; a larger stride would skip tokens."""
    question = ask(" ".join("a" * tokens))
    windows = squad.evaluation_windows(
        [question], tokenizer, 10, max_query=4, stride=stride
    )
    assert windows.first.tolist() == starts
    assert windows.first[-1] + windows.context_sizes[-1] == tokens


def test_a_long_question_is_cut(tokenizer):
    question = ask(LETTERS, question="z y x w v u t")
    windows = squad.evaluation_windows([question], tokenizer, 16, max_query=3)
    row = pad_rows(windows.rows, np.array([0]), windows.length)["tokens"][0]
    assert row.tolist() == [CLS, A + 25, A + 24, A + 23, SEP, *range(A, A + 10), SEP]


def test_contexts_are_kept_once(tokenizer):
    questions = [ask(LETTERS, id=str(n)) for n in range(3)] + [ask("k l")]
    windows = squad.evaluation_windows(questions, tokenizer, 30, max_query=4)
    first, second, third, other = windows.offsets
    assert first is second is third and (len(first), len(other)) == (10, 2)


def test_labels_by_hand(tokenizer):
    """Tokens 5 and 6, f g: whole in windows 1 and 2, over the border of 3 (and of 0: neither)."""
    questions = [
        ask(LETTERS, "f g"),
        ask(LETTERS, id="2"),
        ask(LETTERS, "d e f g h i", id="3"),
    ]
    windows, skipped = squad.training_windows(
        questions, tokenizer, 10, max_query=4, stride=2
    )
    starts, ends = windows.rows.targets.values()
    assert starts.tolist() == [0, 7, 5, 0] + [0] * 8  # Six tokens fit into no window.
    assert ends.tolist() == [0, 8, 6, 0] + [0] * 8
    assert starts.dtype == ends.dtype == np.int32
    assert skipped == {}


def test_an_answer_is_the_tokens_it_touches(tokenizer):
    """`b c` of `ab cd` touches tokens 1 and 2; with the space before it, `cd` is tokens 2 and 3."""
    questions = [ask("ab cd", "b c"), ask("ab cd", " cd"), ask("ab cd", "cd", "ab")]
    windows, _ = squad.training_windows(questions, tokenizer, 20, max_query=4)
    starts, ends = windows.rows.targets.values()
    assert (starts - 4).tolist() == [1, 2, 2]  # The first answer of the third.
    assert (ends - 4).tolist() == [2, 3, 3]


def test_questions_left_out_are_counted(tokenizer):
    questions = [
        ask("ab cd", "cd"),
        ask("ab cd", ("cd", 2)),
        ask("ab cd", ("cd", -2)),
        ask("ab cd", ("cd", 99)),
        ask("ab cd", ("", 3)),
        ask("ab cd", " "),
        ask("ab cd", "cd", question=" \u200b"),
        ask("", ("cd", 0)),
        ask(" \t", id="unanswerable"),
        ask("ab cd", id="unanswerable too"),
        ask("ab cd", ("dc", 0), "cd", id="the first answer counts"),
    ]
    windows, skipped = squad.training_windows(questions, tokenizer, 20, max_query=4)
    assert skipped == {
        "misplaced answer": 4,
        "empty answer": 2,
        "empty question": 1,
        "empty context": 2,
    }
    assert windows.questions == [questions[0], questions[9]]
    assert windows.rows.targets["start"].tolist() == [6, 0]
    with pytest.raises(
        ValueError, match=r"None of the 1 questions .*\{'misplaced answer': 1\}"
    ):
        squad.training_windows(questions[1:2], tokenizer, 20, max_query=4)


def test_evaluation_leaves_no_question_out(tokenizer):
    questions = [
        ask("", ("cd", 0), id="a"),
        ask("ab cd", ("cd", 2), id="b", question=""),
        ask("\t", id="c"),
    ]
    windows = squad.evaluation_windows(questions, tokenizer, 20, max_query=4)
    assert windows.context_sizes.tolist() == [0, 4, 0]
    logits = np.zeros((3, 20), np.float32)
    predictions = best_answers(windows, logits, logits)
    assert [(p.id, p.text) for p in predictions] == [("a", ""), ("b", "a"), ("c", "")]
    assert [p.null_difference for p in predictions] == [np.inf, 0, np.inf]


def test_no_questions(tokenizer):
    with pytest.raises(ValueError, match="no questions"):
        squad.evaluation_windows([], tokenizer, 384)


# --- answers --------------------------------------------------------------------------------------


def one_hot(windows, starts, ends):
    """Logits that encode the labels, and nothing in windows without the answer."""
    logits = np.zeros((2, len(starts), windows.length), np.float32)
    rows = np.flatnonzero(starts)
    logits[0, rows, starts[rows]] = 10
    logits[1, rows, ends[rows]] = 10
    return logits


UNICODE = [
    (
        "Ein Café, größer\tals\n\ndas  Zürcher Odéon.",
        "größer\tals\n\ndas  Zürcher Odéon",
    ),
    ("decomposed: Cafe\u0301 Ole\u0301 und mehr", "Cafe\u0301 Ole\u0301"),
    ("a 🎉 party 👨‍👩‍👧 tonight", "🎉 party 👨‍👩‍👧"),
    ("wide ＡＢＣ １２３ text", "ＡＢＣ １２３"),
    ("قال السلام عليكم ثم مضى", "السلام عليكم"),
    ("東京タワーは日本の塔です。", "日本の塔"),
    ("서울은 한국의 수도이다", "한국의"),
    ("the İstanbul of Ǆ and ﬃ", "İstanbul of Ǆ"),
    (
        "zero\u200bwidth and\u00a0hard\u2009spaces\r\nend",
        "zero\u200bwidth and\u00a0hard\u2009spaces",
    ),
    ("𝔘𝔫𝔦 beyond 𐍈 the plane 😀x", "beyond 𐍈 the plane"),
]


@pytest.mark.parametrize(("context", "answer"), UNICODE)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_labels_lead_back_to_the_answer(tmp_path, context, answer, known):
    """Whether the vocabulary has the characters or only [UNK] for them; in a second window too."""
    characters = sorted(
        set(unicodedata.normalize("NFD", context.lower())) - set(" \n\t\r")
    )
    tokenizer = make_tokenizer(
        tmp_path, characters if known else string.ascii_lowercase
    )
    before = "w o r d s " * 15
    questions = [ask(context, answer), ask(before + context, answer, id="2")]
    windows, skipped = squad.training_windows(
        questions, tokenizer, 64, max_query=4, stride=16
    )
    starts, ends = windows.rows.targets.values()
    assert skipped == {}
    predictions = best_answers(
        windows, *one_hot(windows, starts, ends), max_answer_tokens=60
    )
    assert [p.text for p in predictions] == [answer, answer]
    assert starts[windows.question == 1][0] == 0


def spans_one_by_one(windows, number, starts, ends, n_best, max_tokens):
    """(text, score) of all candidates of a question, best first, by trying every span."""
    marked, found = max_context(windows), []
    for w in np.flatnonzero(windows.question == number):
        begin, size = int(windows.context_start[w]), int(windows.context_sizes[w])
        places = range(begin, begin + size)
        allowed = sorted(
            (p for p in places if marked[w, p]), key=lambda p: -starts[w, p]
        )[:n_best]
        closing = sorted(places, key=lambda p: -ends[w, p])[:n_best]
        for s in allowed:
            for e in closing:
                if s <= e < s + max_tokens:
                    first, last = (int(windows.first[w]) + p - begin for p in (s, e))
                    offsets = windows.offsets[number]
                    text = windows.questions[number].context[
                        offsets[first, 0] : offsets[last, 1]
                    ]
                    found.append((float(starts[w, s]) + float(ends[w, e]), text))
    return [(text, score) for score, text in sorted(found, reverse=True)[:n_best]]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_best", [1, 3, 20, 400])
def test_answers_are_those_of_a_search_over_all_spans(tokenizer, seed, n_best):
    rng = np.random.default_rng(seed)
    letters = list(string.ascii_lowercase)
    questions = [
        ask(" ".join(rng.choice(letters, rng.integers(0, 40))), id=str(n))
        for n in range(8)
    ]
    length, stride, longest = (int(n) for n in rng.integers([10, 1, 1], [20, 7, 9]))
    windows = squad.evaluation_windows(
        questions, tokenizer, length, max_query=4, stride=stride
    )
    starts, ends = rng.normal(size=(2, len(windows.question), length)).astype(
        np.float32
    )
    predictions = best_answers(
        windows, starts, ends, n_best=n_best, max_answer_tokens=longest
    )
    nulls = starts[:, 0].astype(float) + ends[:, 0]
    for n, prediction in enumerate(predictions):
        expected = spans_one_by_one(windows, n, starts, ends, n_best, longest)
        text, score = expected[0] if expected else ("", -np.inf)
        null = nulls[windows.question == n].min()
        assert (prediction.text, prediction.null_difference) == (text, null - score)


def test_answers_by_hand(tokenizer):
    """Context a b c at positions 4 to 6: starts 3 0 1, ends 0 0 2; other positions do not count."""
    windows = squad.evaluation_windows([ask("a b c")], tokenizer, 8, max_query=4)
    starts = np.array([[2, 9, 9, 9, 3, 0, 1, 9]], np.float32)
    ends = np.array([[1, 9, 9, 9, 0, 0, 2, 9]], np.float32)
    (prediction,) = best_answers(windows, starts, ends)
    assert prediction == ("1", "a b c", 3 - 5)
    # Of at most two words "a" and "c" have 3: the earlier one wins.
    (prediction,) = best_answers(windows, starts, ends, max_answer_tokens=2, n_best=2)
    assert prediction == ("1", "a", 3 - 3)
    (prediction,) = best_answers(windows, starts, ends, max_answer_tokens=2, n_best=1)
    assert prediction == ("1", "", np.inf)  # From a to c alone.


def test_the_threshold_of_no_answer(tokenizer):
    """The null score is the least of the windows': 1 + 2, against 3 + 1 for the best span."""
    windows = squad.evaluation_windows(
        [ask(LETTERS)], tokenizer, 10, max_query=4, stride=5
    )
    starts, ends = np.zeros((2, 2, 10), np.float32)
    starts[:, 0], ends[:, 0] = [5, 1], [5, 2]
    starts[1, 4], ends[1, 5] = 3, 1  # f to g, in the second window.
    for threshold, text in ((None, "f g"), (-0.99, "f g"), (-1.0, "f g"), (-1.01, "")):
        (prediction,) = best_answers(windows, starts, ends, null_threshold=threshold)
        assert prediction.text == text
        assert prediction.null_difference == -1


def test_logits_that_are_not_finite(tokenizer):
    windows = squad.evaluation_windows([ask("a b c")], tokenizer, 8, max_query=4)
    logits = np.zeros((1, 8), np.float32)
    with pytest.raises(ValueError, match="end logits contain NaN"):
        best_answers(windows, logits, np.full((1, 8), np.nan))


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "normalised"),
    [
        ("The  Cat's\tan-imal, a Hat.", "cats animal hat"),
        (
            "A.D. theatre",
            "ad theatre",
        ),  # Punctuation is removed first: `a.` is no article then.
        ("a an the", ""),
        ("“Über” — 東京", "“über” — 東京"),  # Only ASCII punctuation is removed.
        ("the—end", "—end"),  # The dash stays, and ends the word.
        ("İ", "i̇"),
    ],
)
def test_normalised_answers(answer, normalised):
    assert squad_scores.normalise(answer) == normalised


def test_f1_by_hand():
    """Two words of two and of four are the same: precision 1/2, recall 1."""
    assert squad_scores.f1(
        "Norman conquest of England", "the Norman Conquest"
    ) == pytest.approx(2 / 3)
    assert squad_scores.f1("very very big", "very big big") == pytest.approx(2 / 3)
    assert (
        squad_scores.f1("x", "y")
        == squad_scores.f1("", "y")
        == squad_scores.f1("x", "the")
        == 0
    )
    assert squad_scores.f1("the", "") == 1
    assert squad_scores.f1("the", "", empty=0) == 0


CONQUEST = ask(
    "the Norman Conquest of England", "the Norman Conquest", "Conquest", id="a"
)


def test_scores_of_version_1():
    """Exact 1, 0, 0; F1 1, 2/3 and 0; an unknown id does not count."""
    questions = [CONQUEST, CONQUEST._replace(id="b"), CONQUEST._replace(id="c")]
    predictions = {
        "a": "conquest.",
        "b": "Norman Conquest of England",
        "c": "",
        "d": "x",
    }
    assert score(questions, predictions, "v1.1") == {
        "exact": pytest.approx(100 / 3),
        "f1": pytest.approx(100 * (1 + 2 / 3) / 3),
        "total": 3,
    }
    only_articles = ask("the end", "the")
    assert score([only_articles], {"1": ""}, "v1.1")["exact"] == 100
    assert score([only_articles], {"1": ""}, "v1.1")["f1"] == 0


def test_scores_of_version_2():
    """Its answers gone by normalisation, `d` wants "", though the breakdown counts it as
    answerable."""
    questions = [
        CONQUEST,
        CONQUEST._replace(id="b"),
        CONQUEST._replace(id="c", answers=()),
        CONQUEST._replace(id="d", answers=(Answer("the", 0),)),
        CONQUEST._replace(id="f", answers=()),
    ]
    predictions = {
        "a": "Conquest",
        "b": "Norman Conquest of England",
        "c": "",
        "d": "",
        "f": "x",
    }
    expected = {
        "exact": pytest.approx(100 * 3 / 5),
        "f1": pytest.approx(100 * (3 + 2 / 3) / 5),
        "total": 5,
        "HasAns_exact": pytest.approx(100 * 2 / 3),
        "HasAns_f1": pytest.approx(100 * (2 + 2 / 3) / 3),
        "HasAns_total": 3,
        "NoAns_exact": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
    }
    assert score(questions, predictions, "v2.0") == expected
    twice = score(
        [*questions, questions[0]], predictions, "v2.0"
    )  # Counts once, as there.
    assert twice == expected
    answered = score(questions[:2], predictions, "v2.0")
    assert "NoAns_exact" not in answered and answered["HasAns_total"] == 2


def test_scores_that_cannot_be():
    with pytest.raises(
        ValueError, match="'a' has no answer, which v1.1 does not allow"
    ):
        score([CONQUEST._replace(answers=())], {"a": "x"}, "v1.1")
