"""Tagging: scores, losses, and short runs on generated sentences."""

import importlib.util
import json
import random
import shutil

import jax
import numpy as np
import optax
import pytest
from helpers import tiny_run
from helpers.finetuning_data import tagged_sentences
from helpers.random_params import random_params

from pe_jax.common.schema import from_values
from pe_jax.interop import load_encoder
from pe_jax.models import BertConfig, BertForTokens
from pe_jax.trainer.configs import tagging as tagging_config
from pe_jax.trainer.configs.all_tasks import FINETUNING
from pe_jax.trainer.configs.tables import get_config as tables_config
from pe_jax.trainer.reports import run_export
from pe_jax.trainer.reports.finetuning_report import report_finetuning
from pe_jax.trainer.reports.finetuning_results import read as read_results
from pe_jax.trainer.reports.rescoring import rescore
from pe_jax.trainer.tasks import finetuning
from pe_jax.trainer.tasks.tag_scores import (
    ALL,
    Counts,
    confusions,
    read_predictions,
    tag_scores,
    type_counts,
    write_predictions,
)
from pe_jax.trainer.tasks.tagging import token_task
from pe_jax.trainer.training.checkpointing import newest_params

needs_seqeval = pytest.mark.skipif(
    not importlib.util.find_spec("seqeval"), reason="seqeval is not installed"
)
needs_onnx = pytest.mark.skipif(
    not (
        importlib.util.find_spec("jax2onnx") and importlib.util.find_spec("onnxruntime")
    ),
    reason="the extra onnx is not installed",
)

# --- scores ---------------------------------------------------------------------------------------

GOLD = [["B-per", "I-per", "O", "B-loc", "O"], ["B-org", "O", "O"], ["O"]]
PREDICTED = [["B-per", "I-per", "B-loc", "B-org", "O"], ["O", "I-org", "O"], ["O"]]


def test_entity_scores_by_hand():
    """One of three entities is right of three predicted to the letter, of four leniently."""
    scores = tag_scores(GOLD, PREDICTED, "iob2")
    assert scores == pytest.approx(
        {
            "f1": 100 / 3,
            "precision": 100 / 3,
            "recall": 100 / 3,
            "f1_conlleval": 200 / 7,
        }
    )
    assert next(iter(scores)) == "f1"
    counts = type_counts(GOLD, PREDICTED, "iob2")
    assert counts == {
        "loc": Counts(1, 1, 0),
        "org": Counts(1, 1, 0),
        "per": Counts(1, 1, 1),
        ALL: Counts(3, 3, 1),
    }
    assert Counts(0, 0, 0).scores() == {"precision": 0, "recall": 0, "f1": 0}
    assert dict(confusions(GOLD, PREDICTED, "iob2")) == {
        ("loc", "org"): 1,
        ("org", "missed"): 1,
        ("no entity", "loc"): 1,
    }


def test_words_that_overlap_an_entity_are_confused_with_it():
    gold, predicted = [["B-a", "I-a", "O"]], [["O", "B-a", "I-a"]]
    assert dict(confusions(gold, predicted, "iob2")) == {("a", "other words"): 1}


def test_accuracy_of_plain_tags_by_hand():
    gold, predicted = [["NN", "VB", "NN"], ["VB"]], [["NN", "NN", "NN"], ["JJ"]]
    assert tag_scores(gold, predicted, "none") == {"accuracy": 50}
    assert type_counts(gold, predicted, "none")["NN"] == Counts(2, 3, 2)
    assert dict(confusions(gold, predicted, "none")) == {
        ("VB", "NN"): 1,
        ("VB", "JJ"): 1,
    }


def random_sequences(scheme, seed):
    rng = random.Random(seed)
    prefixes = "BIES" if scheme == "bioes" else "BI"
    labels = ["O", "O", *(f"{prefix}-{tag}" for prefix in prefixes for tag in "xyz")]
    sizes = [rng.randint(1, 9) for _ in range(200)]
    gold = [[rng.choice(labels) for _ in range(size)] for size in sizes]
    predicted = [
        [label if rng.random() < 0.8 else rng.choice(labels) for label in one]
        for one in gold
    ]
    return gold, predicted


@needs_seqeval
@pytest.mark.parametrize("scheme", ["iob1", "iob2", "bioes"])
def test_scores_are_those_of_seqeval(scheme):
    """Of sequences that are mostly impossible: strict, and the default, which is conlleval's."""
    from seqeval import metrics
    from seqeval import scheme as schemes

    theirs = {"iob1": schemes.IOB1, "iob2": schemes.IOB2, "bioes": schemes.IOBES}
    gold, predicted = random_sequences(scheme, 0)
    found = tag_scores(gold, predicted, scheme)
    strict = {"mode": "strict", "scheme": theirs[scheme], "zero_division": 0}
    for name in ("f1", "precision", "recall"):
        score = getattr(metrics, f"{name}_score")
        assert found[name] == pytest.approx(100 * score(gold, predicted, **strict))
    assert found["f1_conlleval"] == pytest.approx(
        100 * metrics.f1_score(gold, predicted)
    )
    assert 0 < found["f1"] < 100 and found["f1"] != found["f1_conlleval"]


def test_files_of_predictions():
    words = [["New", "York"], ["a"]]
    gold, predicted = [["B-x", "I-x"], ["O"]], [["B-x", "O"], ["B-x"]]
    text = write_predictions(words, gold, predicted)
    assert text == "New B-x B-x\nYork I-x O\n\na O B-x\n\n"
    assert read_predictions(text) == (gold, predicted)
    text = write_predictions([["New York", "b"], ["a"]], gold, predicted)
    assert text.startswith("New York\tB-x\tB-x\n")
    assert read_predictions(text) == (gold, predicted)


# --- the loss -------------------------------------------------------------------------------------

MODEL = BertConfig(
    vocab_size=20,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_length=12,
)


def test_losses_against_optax():
    """A mean over labelled tokens alone; padding and context change nothing."""
    task = token_task(MODEL, 3)
    rng = np.random.default_rng(0)
    label = np.array([[-1, 2, -1, 0, -1, -1], [-1, 1, 1, -1, -1, -1]], np.int32)
    mask = np.array([[True] * 5 + [False], [True] * 4 + [False] * 2])
    batch = {
        "tokens": rng.integers(5, 20, (2, 6)).astype(np.int32),
        "token_type_ids": np.zeros((2, 6), np.int32),
        "mask": mask,
        "label": label,
    }
    params = random_params(jax.eval_shape(task.init, jax.random.key(0)), 0.3)

    @jax.jit
    def compute(params):
        logits = BertForTokens(MODEL, 3).apply(
            {"params": params}, batch["tokens"], batch["token_type_ids"], mask
        )
        return logits, task.sums(params, batch, None), task.outputs(params, batch)

    logits, sums, tags = compute(params)
    at = label >= 0
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[at], label[at])
    np.testing.assert_allclose(sums["loss"], losses.sum(), rtol=1e-5)
    right = (np.argmax(logits, -1) == label)[at]
    assert sums["accuracy"] == 100 * right.sum()
    assert task.counts(batch) == {"loss": 4, "accuracy": 4}
    np.testing.assert_array_equal(tags, np.argmax(logits, -1))


# --- runs -----------------------------------------------------------------------------------------

SHORT = {
    "stage1.length": 16,
    "stage1.steps": 4,
    "stage2.steps": 0,
    "stage1.max_predictions": 3,
    "model.max_length": 16,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a pretrained run, three files, and what `config` makes of them."""
    folder = tmp_path_factory.mktemp("tagging")
    pretrained = tiny_run.config(folder, **SHORT, **tiny_run.NO_DROPOUT)
    tiny_run.save_untrained(pretrained, folder / "pretrained")
    for name, count in (("train", 44), ("dev", 20), ("test", 13)):
        tagged_sentences(folder / f"{name}.conll", count, count)
    return folder


def config(folder, **changes):
    c = tagging_config.get_config()
    c.init = str(folder / "pretrained")
    c.seeds = (3, 7)
    c.steps = 9
    c.data.train = str(folder / "train.conll")
    c.data.validation = str(folder / "dev.conll")
    c.data.test = str(folder / "test.conll")
    c.data.update(length=10, buckets=(), batch_size=8, eval_batch_size=8)
    c.optimizer.learning_rate = 3e-2
    c.log_every, c.eval_every, c.checkpoint_every, c.keep_checkpoints = 3, 5, 3, 10
    c.update_from_flattened_dict(changes)
    return from_values(c, FINETUNING)


def finetune(config, folder):
    return report_finetuning(finetuning.run(config, folder), folder)


@pytest.fixture(scope="module")
def done(folder):
    """The folder of a finished run of two seeds."""
    finetune(config(folder), folder / "done")
    return folder / "done"


def read(path):
    return json.loads(path.read_text())


def test_what_a_run_leaves(done, folder):
    found = read(done / "results.json")
    assert found["dataset"] == str(folder / "dev.conll")
    assert (found["metric"], found["steps"]) == ("f1", [9, 9])
    assert set(found["scores"]) == {
        f"{name}{of_set}"
        for name in ("f1", "precision", "recall", "f1_conlleval")
        for of_set in ("", "_test")
    }
    assert read(done / "labels.json") == {"labels": ["O", "B-x", "I-x"]}
    # From the predictions it wrote: the scores, and the words of the file in their order.
    for name, file in (("validation", "dev"), ("test", "test")):
        source = (folder / f"{file}.conll").read_text().split("\n")
        for number, seed in enumerate((3, 7)):
            path = done / "predictions" / "step_9" / f"seed_{seed}_{name}.conll"
            lines = path.read_text().split("\n")
            assert [" ".join(line.split()[:2]) for line in lines] == [
                " ".join(line.split()) for line in source
            ]
            scores = tag_scores(*read_predictions(path.read_text()), "iob2")
            for metric, value in scores.items():
                key = metric if name == "validation" else f"{metric}_test"
                assert found["scores"][key][number] == value
    assert found["scores"]["f1"][0] > 20  # Words tell labels.
    details = found["details"]["test"]
    assert details["types"]["x"] == details["types"]["all"]
    assert details["types"]["all"]["f1"] == pytest.approx(
        np.mean(found["scores"]["f1_test"])
    )
    text = (done / "report.md").read_text()
    assert "scheme iob2, 3 labels" in text and "## test: by type" in text
    assert "44 sentences of" in text and "long sentences are split" in text
    assert found["baseline"]["f1"] > 50  # Each word has mostly one label.


@pytest.mark.parametrize("step", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_resuming_is_bit_exact(done, folder, tmp_path, step):
    killed = tmp_path / "run"
    shutil.copytree(done, killed)
    (killed / "results.json").unlink()
    for later in (killed / "checkpoints").iterdir():
        if int(later.name) > step:
            shutil.rmtree(later)
    finetune(config(folder), killed)
    params = [jax.device_get(newest_params(run)[1]) for run in (done, killed)]
    for a, b in zip(*map(jax.tree.leaves, params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert read(killed / "results.json") == read(done / "results.json")


def test_rescoring_with_other_windows(done, tmp_path):
    """Inputs of 10 tokens split sentences, and of 16 none; no word is lost in either."""
    rescore(done, tmp_path, (10, 16))
    rows = read(tmp_path / "rescored.json")
    assert rows[0]["scores"] == read(done / "results.json")["scores"]
    files = [
        tmp_path / f"length_{length}" / "predictions/step_9/seed_3_test.conll"
        for length in (10, 16)
    ]
    words = [[line.split(" ")[0] for line in file.open()] for file in files]
    assert words[0] == words[1]


def test_plain_tags_and_what_cannot_be_predicted(folder, tmp_path):
    """A label that no training word has is scored, and the notes say so."""
    for name in ("train", "dev"):
        text = (folder / f"{name}.conll").read_text()
        (tmp_path / f"{name}.conll").write_text(
            text.replace("B-x", "NN").replace("I-x", "NN").replace("O", "DT")
        )
    with open(tmp_path / "dev.conll", "a") as file:
        file.write("whale\tFOREIGN\n\u200d\tNN\n")
    files = {
        "data.train": str(tmp_path / "train.conll"),
        "data.validation": str(tmp_path / "dev.conll"),
        "data.test": "",
        "data.held_out": 0.25,
        "select": "held_out",
    }
    resolved = finetuning.resolve(config(folder, **files))
    task = finetuning.build(resolved, tmp_path).task
    assert (task.metric, task.held_out_metric) == ("accuracy", "accuracy_held_out")
    assert task.labels == ("DT", "NN") and task.scheme == "none"
    rows = task.held_out["validation"]
    outputs = np.zeros((len(rows.sizes()), 10), np.int32)
    scores, files = task.score("validation", outputs)
    lines = files["validation.conll"].split("\n")
    assert "whale FOREIGN DT" in lines
    # The most frequent label of training stands for a word without a token.
    assert lines[-3].split(" ")[1] == "NN" and lines[-3].split(" ")[2] in ("DT", "NN")
    gold, predicted = read_predictions(files["validation.conll"])
    assert scores == tag_scores(gold, predicted, "none")
    notes = "\n".join(task.notes)
    assert "labels that no training word has count as errors: FOREIGN 1" in notes
    assert "1 words without a token count as the default label" in notes
    assert "33 sentences" in notes and "11 sentences" in notes
    with pytest.raises(ValueError, match="predictions are not finite"):
        task.score("validation", outputs - 1)


def test_impossible_labels_of_any_file_are_refused(folder, tmp_path):
    (tmp_path / "dev.conll").write_text("sea\tO\nwhale\tI-x\n")
    wrong = config(folder, **{"data.validation": str(tmp_path / "dev.conll")})
    with pytest.raises(ValueError, match="dev.conll:2: 'I-x' stands after 'O'"):
        finetuning.build(finetuning.resolve(wrong), tmp_path)


def test_tables_name_a_run_of_tagging(done):
    assert tables_config().task == "tables"
    with pytest.raises(
        ValueError, match="is a run of tagging, and the tables have GLUE"
    ):
        read_results(done)


def words_of(path):
    """The words and predictions of the file, by sentence."""
    blocks = path.read_text().split("\n\n")[:-1]
    return [[line.split(" ") for line in block.split("\n")] for block in blocks]


def test_an_exported_run_tags_as_the_run_did(done, tmp_path):
    """With its labels, through a folder of transformers: the spans of its own predictions."""
    out = tmp_path / "out"
    assert "BertForTokenClassification" in run_export.export(done, out, seed=7)
    assert read(out / "config.json")["id2label"] == {"0": "O", "1": "B-x", "2": "I-x"}
    encoder = load_encoder(out)
    assert encoder.labels == ("O", "B-x", "I-x")
    path = done / "predictions" / "step_9" / "seed_7_test.conll"
    found = 0
    for lines in words_of(path):
        text = " ".join(word for word, _, _ in lines)
        spans = encoder.tag(text, max_length=10)
        marked = [None] * len(lines)
        for span in spans:
            assert text[span.start : span.end] == span.text and 0 < span.score <= 1
            first = text[: span.start].count(" ")
            for number in range(first, first + span.text.count(" ") + 1):
                marked[number] = span.label
            found += 1
        assert marked == [None if label == "O" else label[2:] for _, _, label in lines]
    assert found


@pytest.mark.parametrize(
    "format", ["stablehlo", pytest.param("onnx", marks=needs_onnx)]
)
def test_a_run_is_exported_as_a_program_with_its_labels(done, tmp_path, format):
    text = run_export.export(done, tmp_path / "out", seed=3, format=format)
    assert "logits [B, L, 3]" in text
    about = read(tmp_path / "out" / "model.json")
    assert about["labels"] == ["O", "B-x", "I-x"]
    assert about["outputs"] == {"logits": "[B, L, 3]"}
