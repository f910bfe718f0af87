"""GLUE: texts and labels, inputs, metrics, the losses."""

import types

import jax
import numpy as np
import optax
import pytest
from helpers.random_params import random_params

from pe_jax.models import BertConfig, BertForClassification
from pe_jax.trainer import data
from pe_jax.trainer.data import glue
from pe_jax.trainer.data.glue import GLUE, Examples, encode_examples, load_glue
from pe_jax.trainer.tasks.glue import classification_task, glue_score

PAD, CLS, SEP = 0, 2, 3
MODEL = BertConfig(
    vocab_size=20,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_length=12,
)


@pytest.fixture
def prepared(monkeypatch):
    """`prepared[name, split] = examples` stands for a tfds dataset on disk."""
    sets = {}

    def open_dataset(name, split, data_dir="", extra_name="tfds"):
        return types.SimpleNamespace(as_data_source=lambda split: sets[name, split])

    monkeypatch.setattr(glue, "open_dataset", open_dataset)
    return sets


def test_reading(prepared):
    prepared["glue/mrpc", "train"] = [
        {"sentence1": b"Caf\xc3\xa9 one", "sentence2": b"two", "label": 1, "idx": 0},
        {"sentence1": b"three", "sentence2": b" \t", "label": 0, "idx": 1},
    ]
    found = load_glue("mrpc", "train")
    assert found.texts == (["Café one", "three"], ["two", " \t"])
    assert found.labels.tolist() == [1, 0] and found.labels.dtype == np.int32
    assert found.empty().tolist() == [False, True]
    assert found.select(~found.empty()).texts == (["Café one"], ["two"])


def test_a_regression_has_values(prepared):
    prepared["glue/stsb", "train"] = [
        {"sentence1": b"a", "sentence2": b"b", "label": 3.8}
    ]
    found = load_glue("stsb", "train")
    assert found.labels.dtype == np.float32 and found.labels[0] == np.float32(3.8)


@pytest.mark.parametrize(
    ("name", "example", "message"),
    [
        ("cola", {"sentence": b"x", "label": -1}, r"glue/cola, test, example 0 has the label "
         r"-1, but labels are 0 to 1 \(unacceptable, acceptable\). Is it a test split\?"),
        ("mnli", {"premise": b"x", "hypothesis": b"y", "label": 3}, "labels are 0 to 2"),
        ("stsb", {"sentence1": b"x", "sentence2": b"y", "label": 5.5}, "labels are 0 to 5"),
        ("stsb", {"sentence1": b"x", "sentence2": b"y", "label": float("nan")}, "label nan"),
        ("cola", {"sentence": b"x"}, "has the label None"),
        ("rte", {"sentence1": b"x", "label": 0}, r"no 'sentence2'; it has \['label', 'sentence1'"),
    ],
)  # fmt: skip
def test_bad_examples(prepared, name, example, message):
    prepared[f"glue/{name}", "test"] = [example]
    with pytest.raises(ValueError, match=message):
        load_glue(name, "test")


def test_the_nine_tasks_are_those_of_tfds():
    """Names of features and classes, in the order of their ids."""
    found = pytest.importorskip(
        "tensorflow_datasets.text.glue", reason="needs the extra tfds"
    )
    configs = found.Glue.builder_configs
    for name, task in GLUE.items():
        config = configs[name]
        assert set(task.texts) == set(config.text_features), name
        assert list(task.labels) == list(config.label_classes or []), name


@pytest.fixture
def tokenizer(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    return data.load_tokenizer(tmp_path / "vocab.txt")


def encoded(tokenizer, length, *texts):
    rows = encode_examples(
        Examples(tuple([t] for t in texts), np.zeros(1, np.int32)),
        tokenizer,
        length,
    )
    return rows.tokens.tolist(), rows.second[0]


def test_inputs_by_hand(tokenizer):
    assert encoded(tokenizer, 9, "a b") == ([CLS, 5, 6, SEP], 4)
    assert encoded(tokenizer, 9, "a b", "c") == ([CLS, 5, 6, SEP, 7, SEP], 4)
    assert encoded(tokenizer, 4, "a b c") == ([CLS, 5, 6, SEP], 4)
    assert encoded(tokenizer, 8, "a b c d", "e f") == (
        [CLS, 5, 6, 7, SEP, 9, 10, SEP],
        5,
    )
    assert encoded(tokenizer, 9, "", "c") == ([CLS, SEP, 7, SEP], 2)
    with pytest.raises(
        ValueError, match="config.data.length=4 is too short .* at least 5"
    ):
        encoded(tokenizer, 4, "a", "b")


def test_cutting_takes_tokens_off_the_longer_text():
    for first in range(9):
        for second in range(9):
            for room in range(2, 12):
                sizes = [first, second]
                while (
                    sum(sizes) > room
                ):  # One token at a time, as BERT's own code does.
                    sizes[0 if sizes[0] > sizes[1] else 1] -= 1
                assert glue._truncated_sizes([first, second], room) == sizes


def test_metrics_by_hand():
    labels, answers = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 0, 1])
    # True positives 2, false positives 1, false negatives 1, true negatives 1.
    assert glue_score("accuracy", labels, answers) == pytest.approx(60)
    assert glue_score("f1", labels, answers) == pytest.approx(100 * 2 / 3)
    matthews = (2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2)
    assert glue_score("matthews", labels, answers) == pytest.approx(100 * matthews)
    values, guesses = np.array([0.0, 1.0, 5.0]), np.array([1.0, 2.0, 2.5])
    assert glue_score("spearman", values, guesses) == pytest.approx(100)
    assert glue_score("pearson", values, guesses) == pytest.approx(
        100 * np.corrcoef(values, guesses)[0, 1]
    )
    # Constant answers.
    assert glue_score("matthews", labels, np.ones(5, int)) == 0
    assert glue_score("f1", labels, np.zeros(5, int)) == 0
    assert glue_score("pearson", values, np.ones(3)) == 0
    assert glue_score("spearman", values, np.ones(3)) == 0


def make_batch(rows=4, length=8, classes=3, padded=0):
    rng = np.random.default_rng(0)
    valid = np.arange(length + padded) < rng.integers(3, length + 1, rows)[:, None]
    tokens = np.zeros((rows, length + padded), np.int32)
    tokens[:, :length] = rng.integers(5, 20, (rows, length))
    return {
        "tokens": np.where(valid, tokens, 0),
        "token_type_ids": np.zeros((rows, length + padded), np.int32),
        "mask": valid,
        "label": rng.integers(0, classes, rows),
    }


def params_of(task):
    return random_params(jax.eval_shape(task.init, jax.random.key(0)), 0.3)


def test_losses_against_optax():
    task, batch = classification_task(MODEL, 3), make_batch()
    params = params_of(task)
    assert set(params) == {"bert", "pooler", "classifier"}
    assert params["classifier"]["kernel"].shape == (16, 3)

    @jax.jit
    def expected(params):
        model = BertForClassification(MODEL, 3)
        logits = model.apply(
            {"params": params}, batch["tokens"], batch["token_type_ids"], batch["mask"]
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return logits, losses.sum()

    logits, loss = expected(params)
    sums = jax.jit(task.sums)(params, batch, None)
    np.testing.assert_allclose(sums["loss"], loss, rtol=1e-5)
    assert sums["accuracy"] == 100 * (np.argmax(logits, -1) == batch["label"]).sum()
    assert task.counts(batch) == {"loss": 4, "accuracy": 4}


def test_a_regression_is_squared_error():
    task, batch = classification_task(MODEL, 1), make_batch()
    batch["label"] = np.array([0.0, 2.5, 5.0, 1.0], np.float32)
    params = params_of(task)
    logits = jax.jit(BertForClassification(MODEL, 1).apply)(
        {"params": params}, batch["tokens"], batch["token_type_ids"], batch["mask"]
    )
    values = np.asarray(logits)[:, 0]
    sums = jax.jit(task.sums)(params, batch, None)
    np.testing.assert_allclose(
        sums["loss"], ((values - batch["label"]) ** 2).sum(), rtol=1e-5
    )
    assert set(sums) == set(task.counts(batch)) == {"loss"}


def test_padding_changes_nothing():
    task = classification_task(MODEL, 3)
    params = params_of(task)
    sums = jax.jit(task.sums)
    short, long = (sums(params, make_batch(padded=n), None) for n in (0, 4))
    np.testing.assert_allclose(short["loss"], long["loss"], rtol=1e-5)


def test_the_head_drops_too():
    task, batch = classification_task(MODEL, 3), make_batch()
    params = params_of(task)
    sums = jax.jit(task.sums)
    losses = [sums(params, batch, jax.random.key(n))["loss"] for n in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
