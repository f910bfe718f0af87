"""Masked-LM pretraining on packed documents: rows, losses by document, runs and what reads them."""

import dataclasses
import functools
import json
import re
import shutil

import jax
import numpy as np
import pytest
from helpers import tiny_run
from helpers.finetuning_data import encoders_at_the_start
from helpers.random_params import random_params
from helpers.slow import slow_except
from step_shapes import abstract_arguments

from pe_jax.attention import document_mask
from pe_jax.common.schema import changed
from pe_jax.interop import load_encoder
from pe_jax.models import Bert, BertConfig
from pe_jax.models.heads import MaskedLanguageHead
from pe_jax.trainer import data
from pe_jax.trainer.data.packed import PackedExamples
from pe_jax.trainer.reports.comparison import compare
from pe_jax.trainer.reports.pretraining_report import report_pretraining
from pe_jax.trainer.reports.run_export import export
from pe_jax.trainer.tasks import pretraining, text_training
from pe_jax.trainer.tasks.losses import cross_entropy
from pe_jax.trainer.training import sharding
from pe_jax.trainer.training.checkpointing import newest_params, restore_params

CLS, SEP = 2, 3
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *tiny_run.WORDS]
LENGTH, PREDICTIONS = 32, 10


# --- rows -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Twelve documents of 10 or 20 tokens; seven of them, and their tokens."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    for count, name in ((1, "short"), (2, "long")):
        (folder / name).mkdir()
        tiny_run.write_books(folder / name, count=6, length=count, seed=count)
    corpus, words = data.open_source(
        str(folder / "*" / "books.jsonl"),
        vocab=str(folder / "vocab.txt"),
        cache_dir=folder / "cache",
    )
    documents = np.array([0, 1, 2, 4, 7, 8, 11])
    starts = corpus.sentences[corpus.documents]
    texts = [corpus.tokens["id"][starts[i] : starts[i + 1]].tolist() for i in documents]
    return corpus, documents, data.vocabulary(words), texts


def packed(corpus, length=LENGTH, **changes):
    options = {"max_predictions": PREDICTIONS, "mask_rate": 0.3, **changes}
    return PackedExamples(*corpus[:3], length, **options)


def whole(row):
    """The row without its masks."""
    tokens, real = row["tokens"].copy(), row["masked_weights"] > 0
    tokens[row["masked_positions"][real]] = row["masked_tokens"][real]
    return tokens


def made(rows, seed=0):
    return [
        rows(number, np.random.default_rng(seed + number))
        for number in range(len(rows))
    ]


@pytest.mark.parametrize("length", [8, 17, 32, 200])
def test_rows_are_all_documents_in_order(corpus, length):
    """Between two is [SEP] [CLS]; each row is [CLS] ... [SEP]; only the last row is padded."""
    texts = corpus[3]
    expected = [token for text in texts for token in (*text, SEP, CLS)][:-2]
    rows = made(packed(corpus, length, max_predictions=length))
    inside = []
    for number, row in enumerate(rows):
        size = int((row["document_ids"] > 0).sum())
        assert size == length or number == len(rows) - 1
        tokens = whole(row)
        assert (tokens[0], tokens[size - 1]) == (CLS, SEP)
        assert not tokens[size:].any() and not row["document_ids"][size:].any()
        assert not row["positions"][size:].any()
        inside += tokens[1 : size - 1].tolist()
    assert inside == expected
    assert len(rows) == -(-len(expected) // (length - 2))


@pytest.mark.parametrize("length", [8, 17, 32])
def test_documents_and_positions_of_a_row(corpus, length):
    """A document begins at the start of a row or at a [CLS] inside of it, its positions at 0."""
    for row in made(packed(corpus, length, max_predictions=length)):
        tokens, size = whole(row), int((row["document_ids"] > 0).sum())
        document, position, expected = 1, 0, []
        for i in range(size):
            # A row that begins between two documents repeats [CLS].
            if i > 1 and tokens[i] == CLS:
                document, position = document + 1, 0
            expected.append((document, position))
            position += 1
        got = zip(row["document_ids"][:size].tolist(), row["positions"][:size].tolist())
        assert list(got) == expected


def test_masks_of_a_row(corpus):
    rows = packed(corpus)
    for row in made(rows):
        used = row["masked_weights"] > 0
        special = np.isin(whole(row), [0, CLS, SEP])
        assert not special[row["masked_positions"][used]].any()
        assert used.sum() == max(1, round(0.3 * (~special).sum()))
    again = [made(rows, seed) for seed in (0, 0, 1)]
    for same, expected, other in zip(*again):
        jax.tree.map(np.testing.assert_array_equal, same, expected)
        np.testing.assert_array_equal(whole(other), whole(same))
    assert any((a["tokens"] != b["tokens"]).any() for a, b in zip(again[0], again[2]))


# --- losses ---------------------------------------------------------------------------------------


def batch_of(rows):
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def alone(row, document):
    """The row with one of its documents at the beginning and padding after it."""
    inside = np.flatnonzero(row["document_ids"] == document)
    first, size = int(inside[0]), len(inside)
    tokens = np.zeros_like(row["tokens"])
    tokens[:size] = row["tokens"][inside]
    numbers = (np.arange(len(tokens)) < size).astype(np.int32)
    where = np.isin(row["masked_positions"], inside) & (row["masked_weights"] > 0)
    return {
        **row,
        "tokens": tokens,
        "document_ids": numbers,
        "positions": np.arange(len(tokens), dtype=np.int32) * numbers,
        "masked_positions": np.where(where, row["masked_positions"] - first, 0).astype(
            np.int32
        ),
        "masked_weights": where.astype(np.float32),
    }


@pytest.mark.parametrize(
    "position",
    [
        "learned_absolute",
        "learned_relative",
        "rope",
        "t5",
        "cycle(rope, rope+window(max_distance=4))",
        "learnable_sinusoidal_relative",
    ],
)
def test_losses_of_documents_are_those_of_each_alone(corpus, position):
    model = BertConfig(
        vocab_size=len(VOCAB), hidden_size=16, num_layers=2 if "cycle" in position else 1,
        num_heads=2, intermediate_size=24, max_length=LENGTH,
    )  # fmt: skip
    model = dataclasses.replace(model, position=position)
    task = pretraining.packed_task(model)
    rows = made(packed(corpus))[:3]
    singles = [
        (i, alone(row, document))
        for i, row in enumerate(rows)
        for document in range(1, row["document_ids"].max() + 1)
    ]
    assert len(singles) > 2 * len(rows)
    params = random_params(jax.eval_shape(task.init, jax.random.key(0)), 0.5)

    @jax.jit
    def losses(params, batch):
        return cross_entropy(task.outputs(params, batch), batch["masked_tokens"])[0]

    # One program: the rows, and as many of the documents as there are.
    together = losses(params, batch_of([rows[i] for i, _ in singles]))
    apart = losses(params, batch_of([single for _, single in singles]))
    weights = np.stack([single["masked_weights"] for _, single in singles])
    assert weights.sum() == sum(row["masked_weights"].sum() for row in rows)
    np.testing.assert_allclose(weights * together, weights * apart, atol=1e-5, rtol=0)
    # Attention to other documents would show.
    mixed = batch_of(
        [{**rows[i], "document_ids": np.ones(LENGTH, np.int32)} for i, _ in singles]
    )
    assert np.abs(weights * (losses(params, mixed) - apart)).max() > 1e-3


# --- runs -----------------------------------------------------------------------------------------


def config(folder, **changes):
    """Two stages on documents of 30 to 60 tokens, by a schedule that stays and falls.

    Their rows are equally long: one program is compiled for both.
    """
    packed = {"data.packed": True, "optimizer.schedule": "wsd"}
    sizes = {"stage1.length": 48, "stage1.max_predictions": 8}
    c = tiny_run.config(folder, **{**tiny_run.NO_DROPOUT, **packed, **sizes, **changes})
    tiny_run.write_books(folder, count=60, length=3)
    return changed(c, {"stage1.steps": 7, "stage2.steps": 3})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    c = config(folder)
    pretraining.run(c, folder / "run")
    return c, folder / "run"


def lines_of(folder):
    return [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def test_a_run_trains_the_masked_language_model_alone(finished):
    _, folder = finished
    assert set(newest_params(folder)[1]) == {"bert", "masked_lm"}
    names = {name for line in lines_of(folder) for name in line}
    assert {"train/masked_lm_loss", "held_out/masked_lm_loss"} <= names
    assert not any("next_sentence" in name for name in names)


def test_a_run_resumes_bit_for_bit(finished, tmp_path):
    """Inside the first stage; data and schedule included."""
    c, done = finished
    killed = shutil.copytree(done, tmp_path / "run")
    for later in (killed / "checkpoints").iterdir():
        if int(later.name) > 5:
            shutil.rmtree(later)
    pretraining.run(c, killed)
    ends = [jax.device_get(restore_params(folder, 10)) for folder in (killed, done)]
    jax.tree.map(np.testing.assert_array_equal, *ends)
    rates = [
        [line.get("train/learning_rate") for line in lines_of(f)]
        for f in (killed, done)
    ]
    assert rates[0] == rates[1]


@functools.partial(jax.jit, static_argnums=0)
def loss_on_one_device(model, params, batch):
    hidden = Bert(model).apply(
        {"params": params["bert"]},
        batch["tokens"],
        positions=batch["positions"],
        pair_mask=document_mask(batch["document_ids"], batch["document_ids"]),
    )
    embedding = params["bert"]["token"]["embedding"]
    head = MaskedLanguageHead(model)
    logits = head.apply(
        {"params": params["masked_lm"]}, hidden, batch["masked_positions"], embedding
    )
    return (
        cross_entropy(logits, batch["masked_tokens"])[0] * batch["masked_weights"]
    ).sum()


@pytest.mark.parametrize("parallel", slow_except(["jit"], ["jit", "fsdp", "pmap"]))
def test_arguments_of_compile_for_and_layouts(finished, parallel):
    """What is compiled has the shapes of a run; every layout has the loss of one device."""
    c = changed(finished[0], {"parallel": parallel})
    experiment = pretraining.build(text_training.resolve(c))
    program, stage = experiment.program, experiment.stages[1]
    state, batch, constants = abstract_arguments(c, program, c.stage2)
    described = lambda tree: jax.tree.map(
        lambda x: (x.shape, x.dtype, x.sharding), tree
    )
    given = sharding.to_global(next(iter(stage.batches(0))), program.batch_sharding)
    assert constants == () and described(batch) == described(given)
    fresh = program.init()
    assert described(state) == described(fresh)
    host = jax.device_get(given)
    expected = loss_on_one_device(program.model, jax.device_get(fresh.params), host)
    _, metrics = stage.train_step(fresh, given)
    assert set(metrics) == {"masked_lm_loss", "masked_lm_accuracy", "gradient_norm"}
    np.testing.assert_allclose(metrics["masked_lm_loss"][0], expected, rtol=1e-5)
    assert metrics["masked_lm_loss"][1] == host["masked_weights"].sum()


def test_the_report_and_the_comparison(finished, tmp_path):
    _, folder = finished
    text = report_pretraining(folder, tmp_path)
    numbers = json.loads((tmp_path / "report.json").read_text())["held_out"]
    assert f"{numbers['rows']} rows of packed documents of length 48" in text
    assert "| masked-LM accuracy" in text and "next" not in text and "label" not in text
    assert not any("next_sentence" in name for name in numbers)
    text = compare([folder, folder], tmp_path)
    assert "16 packed rows of length 48" in text and "next" not in text
    loss, accuracy = numbers["unigram_loss"], numbers["unigram_accuracy"]
    assert re.search(
        rf"\| baseline +\| – +\| – +\| {loss:.3f} +\| – +\| {accuracy:.1%} +\|", text
    )
    assert "Each encoding has one seed." in text  # The same run twice has.


def test_a_run_is_exported(finished, tmp_path):
    assert export(finished[1], tmp_path / "out").startswith("BertForMaskedLM of ")
    back = load_encoder(tmp_path / "out", heads=("masked_lm",)).params
    params = newest_params(finished[1])[1]
    jax.tree.map(np.testing.assert_array_equal, back, jax.device_get(params))


def test_fine_tuning_starts_from_a_run(finished, tmp_path, monkeypatch):
    tuned, encoder = encoders_at_the_start(finished[1], tmp_path / "tuned", monkeypatch)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b), tuned, encoder)


def test_masks_that_do_not_fit(tmp_path):
    with pytest.raises(
        ValueError, match="max_predictions=8 is too low: .* masks 14 of the 46 tok"
    ):
        text_training.resolve(config(tmp_path, **{"data.mask_rate": 0.3}))
