"""Classification of your own texts: data, classes, scores and the baseline."""

import dataclasses

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from pe_jax.common.schema import from_values
from pe_jax.models import BertConfig
from pe_jax.trainer.configs import classify
from pe_jax.trainer.configs.finetuning import ClassificationConfig
from pe_jax.trainer.tasks.classification import load_classification_task
from pe_jax.trainer.tasks.glue import glue_score

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
ROWS = "text,label\ngood film,positive\nbad film,negative\nfilm,negative\n"


def tokenizer():
    found = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.add_special_tokens(WORDS[:5])
    return found


def loaded(tmp_path, *, validation="", text=ROWS, **changes):
    (tmp_path / "train.csv").write_text(text)
    values = classify.get_config()
    values.data.train = str(tmp_path / "train.csv")
    if validation:
        (tmp_path / "scored.csv").write_text(validation)
        values.data.validation = str(tmp_path / "scored.csv")
    config = from_values(values, ClassificationConfig)
    config = dataclasses.replace(config, **changes)
    model = BertConfig(vocab_size=len(WORDS), hidden_size=16, num_heads=2)
    return load_classification_task(config, model, tokenizer())


def test_scores_of_your_own_texts(tmp_path):
    task = loaded(tmp_path, validation=ROWS)
    assert task.labels == ("negative", "positive")
    assert task.dataset == task.trained_on == "scored.csv"
    assert "trained on train.csv" in task.notes
    assert task.metric == "accuracy"
    logits = np.array([[0, 1], [0, 1], [1, 0]], np.float32)
    scores, predictions = task.score("validation", logits)
    assert scores["accuracy"] == pytest.approx(200 / 3)
    assert scores["f1_macro"] == pytest.approx(200 / 3)  # 2/3 and 2/3.
    assert predictions == {"validation.json": "[1, 1, 0]"}
    assert task.baseline["accuracy"] == pytest.approx(200 / 3)
    assert task.baseline["f1_macro"] == pytest.approx(40.0)  # 0.8 and 0.
    assert len(task.train.sizes()) == 3
    assert "classes: negative, positive" in task.notes


def test_a_tenth_is_scored_without_validation(tmp_path):
    text = ROWS + "good,positive\nbad,negative\n" * 9
    task = loaded(tmp_path, text=text)
    assert len(task.held_out["validation"].sizes()) == 2
    assert len(task.train.sizes()) == 19
    assert "a tenth of train.csv is scored and not trained on" in task.notes


def test_train_is_required():
    config = from_values(classify.get_config(), ClassificationConfig)
    with pytest.raises(ValueError, match="config.data.train is empty: give a file"):
        load_classification_task(config, BertConfig(vocab_size=8), tokenizer())


def test_the_mean_f1_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    labels, predictions = np.random.default_rng(0).integers(0, 4, (2, 50))
    expected = metrics.f1_score(labels, predictions, average="macro")
    assert glue_score("f1_macro", labels, predictions) == pytest.approx(100 * expected)
    accuracy = metrics.accuracy_score(labels, predictions)
    assert glue_score("accuracy", labels, predictions) == pytest.approx(100 * accuracy)
