"""Position distillation: its loss, what it trains, how it ends and resumes, what reads its runs."""

import dataclasses
import functools
import importlib.util
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from helpers import tiny_run
from helpers.commands import call
from helpers.finetuning_data import encoders_at_the_start
from helpers.published_bert import (
    BERT,
    LAYERS,
    D,
    encoder_shapes,
    head_shapes,
    random_tensors,
)
from helpers.published_bert import write as write_published
from helpers.random_params import random_params
from step_shapes import abstract_arguments

from pe_jax.common import schema
from pe_jax.common.schema import changed, from_values
from pe_jax.interop import load_encoder
from pe_jax.models import Bert, BertConfig, layer_outputs
from pe_jax.trainer import data
from pe_jax.trainer.configs.all_tasks import ENCODERS
from pe_jax.trainer.configs.distill_positions import DistillationConfig
from pe_jax.trainer.data.packed import PackedExamples
from pe_jax.trainer.data.teacher_windows import teacher_windows
from pe_jax.trainer.reports.distillation_report import report_distillation
from pe_jax.trainer.reports.property_report.subjects import from_run
from pe_jax.trainer.reports.run_export import export
from pe_jax.trainer.tasks import distillation, imitation
from pe_jax.trainer.tasks.pretrained_source import PretrainedSource
from pe_jax.trainer.training import checkpointing, metrics, sharding, workdir
from pe_jax.trainer.training.checkpointing import newest_params, restore_params
from pe_jax.trainer.training.loop import EarlyStopping

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *tiny_run.WORDS]
LONGEST = 24


def write_teacher(folder, layers=LAYERS, seed=0):
    """Write a published encoder of 24 positions with a pooler, and books that are read with it."""
    shapes = encoder_shapes(len(VOCAB), layers)
    shapes |= {
        name: s for name, s in head_shapes().items() if name.startswith("pooler")
    }
    shapes["embeddings.position_embeddings.weight"] = (LONGEST, D)
    sizes = {"vocab_size": len(VOCAB), "max_position_embeddings": LONGEST}
    config = {**BERT, **sizes, "num_hidden_layers": layers}
    write_published(folder, random_tensors(shapes, seed), config)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    tiny_run.write_books(folder)
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory):
    """A teacher whose programs compile in less time, where the number of layers does not matter."""
    return write_teacher(tmp_path_factory.mktemp("one_layer"), layers=1)


def config(published, **changes):
    """A run of two stages, each of which ends at its second evaluation."""
    c = schema.config_dict(DistillationConfig)
    c.init = str(published)
    c.model.position = "learned_relative"
    c.data.source = str(published / "books.jsonl")
    c.data.held_out = 0.25
    c.data.cache_dir = str(published / "cache")
    c.stage1.update(length=16, batch_size=8, steps=20)
    c.stage2.update(length=24, batch_size=8, steps=20)
    c.optimizer.learning_rate = 2e-4
    c.update(log_every=2, eval_every=2, eval_examples=16, checkpoint_every=3)
    c.update(patience=1, min_gain=1.0)
    c.update_from_flattened_dict(changes)
    return from_values(c, DistillationConfig)


def build(published, **changes):
    return distillation.build(distillation.resolve(config(published, **changes)))


@pytest.fixture(scope="module")
def finished(published, tmp_path_factory):
    """The folder of a finished run, and its experiment."""
    folder = tmp_path_factory.mktemp("finished")
    return folder / "run", distillation.run(config(published), folder / "run")


@pytest.fixture(scope="module")
def centered(published):
    """An experiment of one stage whose targets have no mean by position."""
    return build(published, centered=True, **{"stage1.steps": 0})


def student_params(experiment):
    """The teacher's parameters with random positions."""
    positions = experiment.program.state_shapes.params["bert"]["position"]
    teacher = PretrainedSource(experiment.config.init).params(
        experiment.program.shardings_of
    )
    return {
        **teacher,
        "bert": {**teacher["bert"], "position": random_params(positions, 0.02)},
    }


@functools.partial(jax.jit, static_argnums=0)
def outputs_of(model, params, tokens, token_type_ids=None, valid=None):
    """`layer_outputs`, compiled once for equal models and shapes."""
    return layer_outputs(model, params, tokens, token_type_ids, valid)


# --- hidden states -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "layers"),
    [pytest.param("rope", 2, marks=pytest.mark.slow), ("cycle(rope, t5)", 4)],
)
def test_outputs_of_all_layers(position, layers):
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_layers": layers, "num_heads": 2}
    model = dataclasses.replace(
        BertConfig(**sizes, intermediate_size=8), position=position
    )
    tokens = np.random.default_rng(0).integers(0, 20, (2, 6))
    shapes = jax.eval_shape(Bert(model).init, jax.random.key(0), tokens)["params"]
    params = random_params(shapes, 0.3)
    plain = outputs_of(model, params, tokens)
    assert plain.hidden.shape == (layers + 1, 2, 6, 8)
    assert plain.attention.shape == (layers, 2, 6, 8)
    for how in ({"scan_layers": True}, {"remat": "full"}):
        through = outputs_of(dataclasses.replace(model, **how), params, tokens)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), plain, through
        )
    last = jax.jit(Bert(model).apply)({"params": params}, tokens)
    np.testing.assert_allclose(plain.hidden[-1], last, atol=2e-6)


# --- start ---------------------------------------------------------------------------------------


def test_a_rate_of_zero(one_layer, tmp_path):
    """A step changes nothing, and other lengths are in the report."""
    c = config(
        one_layer, log_every=0, test_lengths=(12,),
        **{"model.position": "per_layer(t5)", "stage1.steps": 1, "stage2.steps": 0},
        **{"optimizer.learning_rate": 0.0},
    )  # fmt: skip
    distillation.run(c, tmp_path / "run")
    before, after = metrics.read_evaluations(tmp_path / "run").values()
    assert before["r2_mean"] == pytest.approx(after["r2_mean"], abs=1e-6)
    assert 0 < after["length_12/r2"] < 1
    assert "Length 12:" in report_distillation(tmp_path / "run", tmp_path / "report")


# --- rows ----------------------------------------------------------------------------------------


def test_packed_rows(tmp_path):
    """Every token of the documents, once, in order; only the last row is padded."""
    tokenizer = tmp_path / "vocab.txt"
    tokenizer.write_text("\n".join(VOCAB) + "\n")
    corpus, words = data.open_source(
        str(tiny_run.write_books(tmp_path, count=5, length=3)),
        vocab=str(tokenizer),
        cache_dir=tmp_path / "cache",
    )
    documents = np.array([0, 2, 3])
    rows = PackedExamples(corpus, documents, data.vocabulary(words), 20)
    starts = corpus.sentences[corpus.documents]
    expected = np.concatenate(
        [corpus.tokens["id"][starts[i] : starts[i + 1]] for i in documents]
    )
    assert len(rows) == -(-len(expected) // 18) > 3
    made = [rows(number, np.random.default_rng(0)) for number in range(len(rows))]
    inside = []
    for number, row in enumerate(made):
        size = int(row["mask"].sum())
        assert size == 20 or number == len(rows) - 1
        assert row["mask"][:size].all()
        assert (row["tokens"][0], row["tokens"][size - 1]) == (2, 3)
        assert not row["tokens"][size:].any()
        inside.append(row["tokens"][1 : size - 1])
    np.testing.assert_array_equal(np.concatenate(inside), expected)
    stream = lambda begin: iter(data.batches(rows, begin, batch_size=2, seed=0))
    first = stream(0)
    next(first)
    np.testing.assert_array_equal(next(first)["tokens"], next(stream(1))["tokens"])


def test_cut_rows(tmp_path):
    """Inputs follow one another in a row, of many lengths, half of them pairs; all else is text."""
    tokenizer = tmp_path / "vocab.txt"
    tokenizer.write_text("\n".join(VOCAB) + "\n")
    corpus, words = data.open_source(
        str(tiny_run.write_books(tmp_path)),
        vocab=str(tokenizer),
        cache_dir=tmp_path / "cache",
    )
    length, pad, cls, sep = 48, 0, 2, 3
    rows = PackedExamples(corpus, np.arange(12), data.vocabulary(words), length)
    cut = data.VariableLengthExamples(rows, shuffle=True)
    assert len(cut) == len(rows) > 1
    sizes, pairs, moved = [], [], set()
    for number in (*range(len(cut)), *[0] * 200):
        row = cut(number, rng := np.random.default_rng([number, len(sizes)]))
        plain = rows(number, rng)
        real = row["document_ids"] > 0
        np.testing.assert_array_equal(real, plain["mask"])
        assert (row["tokens"][~real] == pad).all() and not row["token_type_ids"][
            ~real
        ].any()
        special = np.isin(row["tokens"], (cls, sep)) | ~real
        np.testing.assert_array_equal(
            row["tokens"][~special], plain["tokens"][~special]
        )
        np.testing.assert_array_equal(row["text"], ~special)
        numbers, counts = np.unique(row["document_ids"][real], return_counts=True)
        np.testing.assert_array_equal(numbers, np.arange(1, len(counts) + 1))
        assert len(counts) == 1 or counts.min() >= 8
        order = row[
            "order"
        ]  # Stays within each input and its parts; special tokens stay.
        for name in ("document_ids", "token_type_ids", "text"):
            np.testing.assert_array_equal(row[name][order], row[name])
        np.testing.assert_array_equal(np.sort(order), np.arange(length))
        np.testing.assert_array_equal(order[special], np.flatnonzero(special))
        moved |= set(np.flatnonzero(order != np.arange(length)))
        for begin, size in zip(np.cumsum(counts) - counts, counts, strict=True):
            tokens, token_type_ids = (
                row[name][begin:][:size] for name in ("tokens", "token_type_ids")
            )
            ends = np.append(np.flatnonzero(np.diff(token_type_ids)), size - 1)
            assert tokens[0] == cls and (tokens[ends] == sep).all() and len(ends) <= 2
            assert np.isin(tokens, (cls, sep)).sum() == 1 + len(ends)
            sizes.append(size)
            pairs.append(len(ends) == 2)
    assert 0.4 < np.mean(pairs) < 0.6 and moved == {*range(1, length - 1)}
    assert len(set(sizes)) > 30 and 0.2 < np.mean(np.equal(sizes, length)) < 0.6


# --- training ------------------------------------------------------------------------------------


def test_what_is_trained(finished):
    """Embeddings and heads stay the teacher's, types with the mean of its table; R² rises; the
    teacher is in no checkpoint."""
    folder, experiment = finished
    step, params = newest_params(folder)
    assert step == 8
    teacher = PretrainedSource(experiment.config.init).params(
        experiment.program.shardings_of
    )
    for path in ("bert/token", "pooler"):
        old, new = teacher, params
        for name in path.split("/"):
            old, new = old[name], new[name]
        jax.tree.map(np.testing.assert_array_equal, new, old)
    mean = teacher["bert"]["position"]["learned_absolute"]["table"][:16].mean(0)
    old, new = (tree["bert"]["token_type"]["embedding"] for tree in (teacher, params))
    np.testing.assert_allclose(new, old + mean, atol=1e-6)
    kernel = lambda tree: np.asarray(tree["bert"]["layer_0"]["up"]["kernel"])
    assert (kernel(params) != kernel(teacher)).any()
    evaluations = metrics.read_evaluations(folder)
    assert list(evaluations) == [0, 2, 4, 6, 8]  # Each stage ends at its second one.
    assert evaluations[4]["r2"] > evaluations[0]["r2"]
    shapes = [leaf.shape for leaf in jax.tree.leaves(experiment.program.init())]
    assert sum(shape == (LONGEST, D) for shape in shapes) == 0  # The teacher's table.


def states(folder):
    """Checksums of the saved states by step."""
    return {
        step: checkpointing._load(folder, step, "facts")["state"]
        for step in checkpointing.saved_steps(folder)
    }


def test_resumes_bit_for_bit(finished, published, tmp_path, monkeypatch):
    """A run that dies in the evaluation after step 4 ends as one that does not, log included."""
    folder, _ = finished
    c = config(published)
    scores = distillation.Distillation.scores

    def fails(self, number, params, program=None):
        if number == 0 and fails.calls == 3:
            raise KeyboardInterrupt
        fails.calls += 1
        return scores(self, number, params, program)

    fails.calls = 0
    monkeypatch.setattr(distillation.Distillation, "scores", fails)
    with pytest.raises(KeyboardInterrupt):
        distillation.run(c, tmp_path / "run")
    monkeypatch.undo()
    assert checkpointing.saved_steps(tmp_path / "run") == [3]
    distillation.run(c, tmp_path / "run")
    assert states(tmp_path / "run") == {
        step: state
        for step, state in states(folder).items()
        if step in states(tmp_path / "run")
    }
    assert metrics.read_evaluations(tmp_path / "run") == metrics.read_evaluations(
        folder
    )


def test_early_stopping():
    values = lambda *r2: [{"r2": x} for x in r2]
    stopping = EarlyStopping("r2", patience=2, min_gain=0.01)
    ends = lambda *r2: stopping.is_reached(values(*r2))
    assert not ends(0.5) and not ends(0.5, 0.5)
    assert ends(0.5, 0.5, 0.505) and not ends(0.5, 0.5, 0.52)
    assert not ends(0.5, 0.52, 0.515) and ends(0.5, 0.52, 0.515, 0.52)
    never = stopping._replace(patience=0)
    assert not never.is_reached(values(*[0.5] * 9))


def test_stages_that_ended_early_have_ended_without_their_log(
    finished, tmp_path, capsys
):
    run = shutil.copytree(finished[0], tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    distillation.run(finished[1].config, run)
    printed = capsys.readouterr().err
    assert "all 8 steps are done" in printed and "compiling" not in printed


@pytest.mark.slow
def test_stops_by_itself_and_resumes_there(finished, published, tmp_path, capsys):
    """Each stage ends early; the command again, or after a stop between, gives the same."""
    c, run = config(published), shutil.copytree(finished[0], tmp_path / "run")
    before = (run / "metrics.jsonl").read_text()
    distillation.run(c, run)  # Nothing is left to do.
    assert (run / "metrics.jsonl").read_text() == before
    for step in checkpointing.saved_steps(run):
        if step > 6:  # As if it had died after the save of step 6.
            shutil.rmtree(run / "checkpoints" / str(step))
    distillation.run(c, run)
    assert "length 24: no more gain on held-out data, so it ends at step 8" in (
        capsys.readouterr().err
    )
    assert checkpointing.saved_steps(run)[-1] == 8
    lines = [json.loads(line) for line in before.splitlines()]
    again = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    timed = ("per_second", "data_wait", "mfu")
    plain = lambda line: {n: x for n, x in line.items() if not n.endswith(timed)}
    assert [*map(plain, again)] == [*map(plain, lines)]


# --- the loss ------------------------------------------------------------------------------------


def inputs_of(batches):
    """Tokens, token types and which are real, of every input of the batches, padded at its end."""
    found = []
    for batch in batches:
        for tokens, token_type_ids, documents in zip(
            *(
                np.asarray(batch[name])
                for name in ("tokens", "token_type_ids", "document_ids")
            ),
            strict=True,
        ):
            for number in range(1, documents.max() + 1):
                own = documents == number
                padding = (0, len(own) - own.sum())
                parts = tokens[own], token_type_ids[own], np.ones(own.sum(), bool)
                found.append([np.pad(part, padding) for part in parts])
    return [np.stack(each) for each in zip(*found, strict=True)]


def naive_scores(experiment, params, stage):
    """Loss and R² by layer of a stage, each input alone, token by token in float64."""
    config, model = experiment.config, experiment.program.model
    teacher = distillation.teacher_model(config, model)
    teacher_params = PretrainedSource(config.init).params(
        experiment.program.shardings_of
    )["bert"]

    tokens, token_type_ids, valid = inputs_of(experiment.data.held_out[stage])

    def outputs(model, params):
        found = outputs_of(model, jax.device_get(params), tokens, token_type_ids, valid)
        return [
            np.asarray(x, np.float64)[:, valid]
            for x in (found.hidden[1:], found.attention)
        ]

    theirs, ours = outputs(teacher, teacher_params), outputs(model, params["bert"])
    errors = []
    for target, state in zip(theirs, ours, strict=True):
        spread = ((target - target.mean(1, keepdims=True)) ** 2).sum(-1).mean(1)
        errors.append(((state - target) ** 2).sum(-1).mean(1) / spread)
    weights = np.array(config.layers or [1] * model.num_layers)
    loss = (weights * (errors[0] + config.attention * errors[1])).sum() / weights.sum()
    return loss, 1 - errors[0]


def test_loss_and_r2(finished):
    experiment = finished[1]
    params = student_params(experiment)
    scores = experiment.stages[0].evaluate(0, params)
    loss, r2 = naive_scores(experiment, params, 0)
    np.testing.assert_allclose(scores["loss"], loss, rtol=1e-4)
    for layer in range(LAYERS):
        np.testing.assert_allclose(
            scores[f"r2/layer_{layer + 1}"], r2[layer], atol=1e-4
        )
    assert scores["r2"] == scores[f"r2/layer_{LAYERS}"]
    np.testing.assert_allclose(scores["r2_mean"], r2.mean(), atol=1e-4)
    _, longer = naive_scores(experiment, params, 1)
    np.testing.assert_allclose(scores["length_24/r2/layer_1"], longer[0], atol=1e-4)


@pytest.mark.parametrize("window", [0, 16])
def test_targets_of_rows_longer_than_the_table(one_layer, window):
    """They are the teacher's states in windows that are read alone, and so is the variance of R².
    Inputs that fit are read whole."""
    long = {"stage1.length": 40, "stage1.batch_size": 4, "stage2.steps": 0}
    experiment = build(one_layer, window=window, eval_examples=4, **long)
    width, [batch] = experiment.config.window, experiment.data.held_out[0]
    assert width == (window or LONGEST)
    teacher = load_encoder(experiment.config.init)
    targets = imitation._targets_of(teacher.config, experiment.program.mesh, "jit")
    states = np.asarray(jax.jit(targets)(teacher.params["bert"], batch).hidden[-1])
    plain, fits = jax.device_get(batch), 0
    expected = np.zeros_like(states)
    for row, documents in enumerate(plain["document_ids"]):
        cut = teacher_windows(documents, width)
        places, numbers = cut["window_places"], cut["window_document_ids"].ravel()
        for number in range(1, numbers.max() + 1):
            sources = cut["windows"].ravel()[numbers == number]
            padding = (0, width - len(sources))
            tokens, token_type_ids, valid = (
                np.pad(x[sources], padding)[None]
                for x in (
                    plain["tokens"][row],
                    plain["token_type_ids"][row],
                    documents > 0,
                )
            )
            alone = outputs_of(
                teacher.config, teacher.params["bert"], tokens, token_type_ids, valid
            ).hidden[-1, 0]
            own = (numbers[places] == number) & (documents > 0)
            expected[row, own] = alone[places[own] - np.argmax(numbers == number)]
            fits += len(sources) == (documents == documents[sources[0]]).sum()
    real = plain["document_ids"] > 0
    assert fits and (expected[real] != 0).any(-1).all()
    np.testing.assert_allclose(states[real], expected[real], atol=1e-5)
    params = student_params(experiment)
    ours = imitation.outputs_of(
        experiment.program.model, experiment.program.mesh, "jit"
    )
    error = (
        np.asarray(jax.jit(ours)(params["bert"], batch).hidden[-1])[real]
        - expected[real]
    )
    variance = ((expected[real] - expected[real].mean(0)) ** 2).sum(-1).mean()
    scores = experiment.stages[0].evaluate(0, params)
    np.testing.assert_allclose(
        scores["r2"], 1 - (error**2).sum(-1).mean() / variance, atol=1e-4
    )


@pytest.mark.slow
def test_weights_of_layers_and_of_attention(published):
    experiment = build(published, layers=(0, 1.0), attention=0.5, **{"stage2.steps": 0})
    params = student_params(experiment)
    scores = experiment.stages[0].evaluate(0, params)
    loss, r2 = naive_scores(experiment, params, 0)
    np.testing.assert_allclose(scores["loss"], loss, rtol=1e-4)
    np.testing.assert_allclose(scores["r2_mean"], r2.mean(), atol=1e-4)


def test_loss_of_differences(one_layer):
    """A third error beside those of the rows as they are and shuffled: that of each token's change
    between them. R² is of the rows as they are."""
    experiment = build(
        one_layer, differences=0.5, **{"stage2.steps": 0, "model.position": "t5"}
    )
    model, params = experiment.program.model, student_params(experiment)
    teacher = load_encoder(experiment.config.init)

    def last_states(model, params):
        """Of the rows as they are and of their shuffles, `[2, tokens, D]`, in the same order."""
        outputs = jax.jit(imitation.outputs_of(model, experiment.program.mesh, "jit"))
        found = []
        for batch in experiment.data.held_out[0]:
            order, real = (
                np.asarray(batch["order"]),
                np.asarray(batch["document_ids"]) > 0,
            )
            rows = np.arange(len(order))[:, None]
            shuffled = outputs(params, batch | {"tokens": batch["tokens"][rows, order]})
            back = np.asarray(shuffled.hidden[-1])[rows, np.argsort(order)]
            found.append(
                [np.asarray(outputs(params, batch).hidden[-1])[real], back[real]]
            )
        return np.concatenate(found, 1)

    ours = last_states(model, params["bert"])
    theirs = last_states(teacher.config, teacher.params["bert"])
    variance = ((theirs[0] - theirs[0].mean(0)) ** 2).sum(-1).mean()
    errors = [*(ours - theirs), (ours[1] - ours[0]) - (theirs[1] - theirs[0])]
    text, shuffled, change = (np.square(x).sum(-1).mean() / variance for x in errors)
    assert change > 0.01 * text
    scores = experiment.stages[0].evaluate(0, params)
    np.testing.assert_allclose(
        scores["loss"], (text + shuffled + 0.5 * change) / 2, rtol=1e-4
    )
    np.testing.assert_allclose(scores["r2"], 1 - text, atol=1e-4)


def test_identical_student(one_layer):
    """With the teacher's own positions R² is 1, whatever the weights; `none` is below."""
    own = {
        "model.position": "learned_absolute",
        "model.max_length": LONGEST,
        "attention": 1.0,
    }
    experiment = build(one_layer, **own, **{"stage1.steps": 0})
    teacher = PretrainedSource(str(one_layer)).params(experiment.program.shardings_of)
    scores = experiment.stages[0].evaluate(0, teacher)
    assert abs(scores["loss"]) < 1e-6
    assert [round(x, 5) for name, x in scores.items() if "r2" in name] == [1.0] * (
        3 + 6
    )
    baselines = experiment.initial_scores(teacher)
    assert baselines["teacher/order/words/token"] == scores["order/words/token"] > 0.01
    assert round(baselines["held_out/r2"], 5) == 1 > 0.9 > baselines["none/r2/layer_1"]


def test_targets_without_their_mean_by_position(centered):
    """Of tokens between [CLS] and [SEP] alone; R² stays that of the teacher's states."""
    document_ids = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]])
    is_text = np.isin(np.arange(9), [1, 3, 6])[
        None
    ]  # [CLS] a [SEP] b [SEP], [CLS] c [SEP], pad.
    centre = np.arange(LONGEST, dtype=np.float32)[None, :, None]
    parts = {"document_ids": document_ids, "text": is_text}
    shifted = jax.jit(imitation._centered)(
        np.zeros((1, 1, 9, 1), np.float32), centre, parts
    )
    assert shifted[0, 0, :, 0].tolist() == [0, -1, 0, -3, 0, 0, -1, 0, 0]
    params = student_params(centered)
    scores = centered.stages[0].evaluate(0, params)
    loss, r2 = naive_scores(centered, params, 0)
    np.testing.assert_allclose(scores["r2"], r2[-1], atol=1e-4)
    assert abs(scores["loss"] - loss) > 1e-3 * loss
    batch = centered.data.held_out[0][0]
    statistics = imitation.measure(
        centered.config,
        distillation.teacher_model(centered.config, centered.program.model),
        centered.program.mesh,
        PretrainedSource(centered.config.init).params(centered.program.shardings_of)[
            "bert"
        ],
        [[batch]],
    )[0]
    teacher = load_encoder(centered.config.init)
    tokens, token_type_ids, valid = inputs_of([batch])
    text = valid & (tokens != VOCAB.index("[CLS]")) & (tokens != VOCAB.index("[SEP]"))
    states = outputs_of(
        teacher.config, teacher.params["bert"], tokens, token_type_ids, valid
    ).hidden[1:]
    states = np.where(text[..., None], np.asarray(states, np.float64), 0)
    counts = text.sum(0)[:, None]
    mean = states.sum(1) / np.maximum(counts, 1)
    expected = np.where(counts, mean - states.sum((1, 2))[:, None] / counts.sum(), 0)
    np.testing.assert_allclose(statistics.centre, expected, atol=1e-5)
    assert counts[0] == counts[-1] == 0 < counts[1:-1].min()


# --- devices -------------------------------------------------------------------------------------


THREE_STEPS = {
    "model.position": "learned_absolute", "model.max_length": LONGEST, "centered": True,
    "data.held_out": 0.25, "eval_examples": 16, "optimizer.learning_rate": 2e-4,
    "stage1.length": 16, "stage1.batch_size": 8, "stage1.steps": 3, "stage2.steps": 0,
}  # fmt: skip


def command_line(published, folder, **changes):
    """Return the arguments of train.py for three steps."""
    data = {
        "data.source": published / "books.jsonl",
        "data.cache_dir": published / "cache",
    }
    values = {"init": published, **data, **THREE_STEPS, **changes}
    keys = [f"--config.{name}={value}" for name, value in values.items()]
    return ["--config=distill_positions", f"--workdir={folder}", *keys]


@pytest.fixture(scope="module")
def commanded(one_layer, tmp_path_factory):
    """The folder of a run of train.py with `parallel="jit"`, and what the command returned."""
    folder = tmp_path_factory.mktemp("commanded") / "run"
    return folder, call("train.py", *command_line(one_layer, folder))


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["fsdp", "pmap"])
def test_parallel_is_the_same(commanded, one_layer, parallel, monkeypatch):
    """Sharded small leaves too, and micro-batches."""
    monkeypatch.setattr(sharding, "_SMALLEST_SPLIT", 16)
    other = {"parallel": parallel, "stage1.accumulation": 2}
    experiment = build(one_layer, **THREE_STEPS, **other)
    program, stage = experiment.program, experiment.stages[0]
    fresh = program.init()
    state = fresh._replace(params=experiment.start(fresh.params))
    for rows in itertools.islice(stage.batches(0), 3):
        state, _ = stage.train_step(
            state, sharding.to_global(rows, program.batch_sharding)
        )
    params = [restore_params(commanded[0], 3), jax.device_get(state.params)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *params)
    logged = metrics.read_evaluations(commanded[0])[3]
    np.testing.assert_allclose(
        stage.evaluate(3, state.params)["r2"], logged["r2"], atol=1e-4
    )


@pytest.mark.slow
def test_two_hosts(commanded, one_layer, tmp_path):
    """Two processes of two devices do what one of four does, with `parallel="fsdp"`."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    flags = os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=2")
    env = {**os.environ, "XLA_FLAGS": flags}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    args = [
        sys.executable, tiny_run.ROOT / "train.py",
        *command_line(one_layer, tmp_path / "run", parallel="fsdp"),
        f"--coordinator={address}", "--hosts=2",
    ]  # fmt: skip
    both = [subprocess.Popen([*args, f"--host={i}"], env=env, **pipes) for i in (0, 1)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert "# Distilled into" in outputs[0][0] and "Distilled" not in outputs[1][0]
    params = [restore_params(folder, 3) for folder in (commanded[0], tmp_path / "run")]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *params)


def test_another_teacher_is_refused(commanded, tmp_path):
    folder, _ = commanded
    other = write_teacher(tmp_path / "other", layers=1, seed=1)
    c = changed(workdir.load_config(folder, ENCODERS).config, {"init": str(other)})
    with pytest.raises(
        ValueError, match=r"config.init is not what the run in .* was trained on"
    ):
        distillation.run(c, folder)


def test_the_digest_of_a_teacher_covers_its_positions_and_constants():
    """They have no parameters; how it is computed changes nothing."""
    teacher = BertConfig(num_layers=1, hidden_size=D, num_heads=2, position="rope")
    params = {"a": jax.numpy.ones(2)}
    same = [
        teacher,
        dataclasses.replace(teacher, dtype="bfloat16", implementation="naive"),
    ]
    others = [
        dataclasses.replace(teacher, position="rope(base=500)"),
        dataclasses.replace(
            teacher, position="cycle(rope, rope+window(max_distance=4))"
        ),
        dataclasses.replace(teacher, layer_norm_epsilon=1e-5),
        dataclasses.replace(teacher, activation="relu"),
    ]
    checksums = [
        distillation.teacher_checksum(each, params) for each in (*same, *others)
    ]
    assert len(set(checksums[:2])) == 1 and len(set(checksums)) == 1 + len(others)
    assert (
        distillation.teacher_checksum(teacher, {"a": jax.numpy.zeros(2)})
        not in checksums
    )


# --- what reads the run --------------------------------------------------------------------------


def test_the_report(finished):
    folder, _ = finished
    text = report_distillation(folder, folder / "report")
    assert "# Distilled into learned_relative: 8 steps" in text
    numbers = json.loads((folder / "report" / "report.json").read_text())
    log = metrics.read_evaluations(folder)
    assert numbers["r2"]["16"]["before"][0] == log[0]["r2/layer_1"]
    assert numbers["r2"]["24"]["before"][1] == log[0]["length_24/r2/layer_2"]
    assert numbers["r2"]["24"]["after"][1] == log[8]["r2"]
    assert numbers["r2"]["16"]["after"][1] == log[8]["length_16/r2/layer_2"]
    assert len(numbers["r2"]["24"]["none"]) == LAYERS
    assert (
        numbers["order"]["after"]["order/words/token_r2"]
        == log[8]["order/words/token_r2"]
    )
    assert f"{numbers['order']['teacher']['order/sentences/pooled']:.4f}" in text
    subject = from_run(folder)  # As the property report reads it.
    assert subject.encoding.name == "learned_relative" and subject.start is not None
    assert PretrainedSource(str(folder)).model.position == "learned_relative"


def test_the_commands(commanded, tmp_path):
    """train.py, eval.py and export."""
    folder, (code, out, err) = commanded
    assert code == 0, err
    assert "# Distilled into learned_absolute: 3 steps" in out
    code, out, err = call("eval.py", f"--workdir={folder}", f"--out={tmp_path / 'out'}")
    assert code == 0 and "Distilled into" in out, err
    assert_exported(folder, tmp_path / "exported")


def assert_exported(run, out):
    """The run, exported, has the same hidden states here and in transformers, if installed."""
    assert export(run, out).startswith("BertModel of")
    back, (_, params) = load_encoder(out), newest_params(run)
    model = dataclasses.replace(PretrainedSource(str(run)).model, vocab_size=len(VOCAB))
    tokens = np.arange(5, 21)[None]
    states = outputs_of(model, params["bert"], tokens).hidden
    again = outputs_of(back.config, back.params["bert"], tokens).hidden
    np.testing.assert_allclose(again, states, atol=1e-5)
    np.testing.assert_array_equal(
        back.params["pooler"]["dense"]["kernel"], params["pooler"]["dense"]["kernel"]
    )
    if not (
        importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")
    ):
        return
    import torch
    import transformers

    theirs = transformers.BertModel.from_pretrained(out).eval()
    with torch.no_grad():
        hidden = theirs(torch.tensor(tokens), output_hidden_states=True).hidden_states
    np.testing.assert_allclose(np.stack([x.numpy() for x in hidden]), states, atol=1e-4)


@pytest.mark.torch
@pytest.mark.skipif(
    not importlib.util.find_spec("torch"), reason="needs the extra parity"
)
@pytest.mark.parametrize(
    "position", ["none", "learned_absolute+learnable_sinusoidal_absolute"]
)
def test_other_encodings_that_transformers_loads(one_layer, tmp_path, position):
    """Students as they are before training."""
    changes = {**THREE_STEPS, "model.position": position}
    resolved, run = distillation.resolve(config(one_layer, **changes)), tmp_path / "run"
    source = PretrainedSource(resolved.config.init)
    student = dataclasses.replace(resolved.model, vocab_size=len(VOCAB))
    program = distillation.make_program(
        resolved.config, sharding.data_mesh(), student, source.model, 1, ("pooler",)
    )
    tokenizer = data.load_tokenizer(source.tokenizer())
    tiny_run.save_random(resolved, program, tokenizer, run)
    assert_exported(run, tmp_path / "exported")


def test_fine_tuning_from_it(finished, tmp_path, monkeypatch):
    """Its encoder is where fine-tuning begins."""
    tuned, encoder = encoders_at_the_start(finished[0], tmp_path / "tuned", monkeypatch)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b), tuned, encoder)


def test_arguments_of_compile_for(centered):
    """The constants of a run have the shapes and shardings that are compiled for."""
    program, stage = centered.program, centered.config.stage2
    windowed = changed(centered.config, {"window": 16})
    assert "windows" not in abstract_arguments(centered.config, program, stage)[1]
    state, batch, constants = abstract_arguments(windowed, program, stage)
    assert batch["windows"].shape == (8, 4, 16)
    lowered = program.train_step().lower(state, batch, *constants)
    teacher = PretrainedSource(centered.config.init).params(program.shardings_of)[
        "bert"
    ]
    described = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert described(constants[0]) == described(teacher)
    assert constants[1].centre.shape == (LAYERS, 24, D)
    assert lowered.as_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": ""}, "config.init is required"),
        ({"init": "nowhere"}, "neither a run nor a published BERT"),
        ({"layers": (1.0, 2.0, 3.0)}, "has 3 weights, and the model 2 layers"),
        ({"layers": (0.0, 0.0)}, "leaves every layer out"),
        (
            {"window": 32},
            "config.window=32 is longer than the 24 positions of the teacher's",
        ),
        ({"window": 4}, "window=4 is too short"),
        (
            {
                "stage2.length": 32,
                "model.position": "learned_absolute",
                "model.max_length": 24,
            },
            "config.stage2.length=32 does not fit the 24 positions",
        ),
        (
            {
                "model.position": "randomized(rope,num_positions=20)",
                "test_lengths": (24,),
                "stage2.steps": 0,
            },
            "test_lengths has inputs of 24 tokens, and the student's",
        ),
        ({"stage1.steps": 0, "stage2.steps": 0}, "Nothing to train"),
        ({"min_gain": 2.0}, "config.min_gain must be a number"),
    ],
)
def test_errors(published, changes, message):
    with pytest.raises(ValueError, match=message):
        distillation.resolve(config(published, **changes))
