"""Short fine-tuning runs on generated texts: seeds, starting points, results."""

import json
import shutil
import types

import jax
import numpy as np
import pytest
from helpers import tiny_run
from helpers.finetuning_data import examples, questions, zero_params

from pe_jax import encodings
from pe_jax.common.schema import changed, from_values
from pe_jax.trainer.configs import glue as glue_config
from pe_jax.trainer.configs import squad as squad_config
from pe_jax.trainer.configs.all_tasks import FINETUNING
from pe_jax.trainer.data import glue
from pe_jax.trainer.reports.comparison import score
from pe_jax.trainer.reports.finetuning_report import (
    _readable,
    report_finetuning,
    results,
)
from pe_jax.trainer.reports.property_report.subjects import from_run
from pe_jax.trainer.reports.rescoring import rescore
from pe_jax.trainer.tasks import finetuning, pretrained_source
from pe_jax.trainer.tasks.seeds import seed_mesh
from pe_jax.trainer.training import sharding, workdir
from pe_jax.trainer.training.checkpointing import newest_params

SHORT = {
    "stage1.length": 16,
    "stage1.steps": 4,
    "stage2.steps": 0,
    "model.max_length": 16,
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Folders of runs, by encoding. Fine-tuning from a trained one is in test_packed.py."""
    folder = tmp_path_factory.mktemp("pretrained")
    for name in ("learned_absolute", "learned_relative"):
        changes = {"model.position": name, "stage1.max_predictions": 3}
        config = tiny_run.config(folder, **SHORT, **tiny_run.NO_DROPOUT, **changes)
        tiny_run.save_untrained(config, folder / name)
    return folder


@pytest.fixture(autouse=True)
def cola(monkeypatch):
    sets = {"train": examples(44, 0), "validation": examples(21, 1)}

    def open_dataset(name, split, data_dir="", extra_name="tfds"):
        return types.SimpleNamespace(as_data_source=sets.__getitem__)

    monkeypatch.setattr(glue, "open_dataset", open_dataset)
    return sets


def config(pretrained, position="learned_absolute", **changes):
    c = glue_config.get_config()
    c.init = str(pretrained / position)
    c.seeds = (3, 7)
    c.steps = 9
    c.data.update(length=16, buckets=(), batch_size=8, eval_batch_size=8)
    c.optimizer.learning_rate = 1e-2
    c.log_every, c.eval_every, c.checkpoint_every, c.keep_checkpoints = 3, 5, 3, 10
    c.update_from_flattened_dict(changes)
    return from_values(c, FINETUNING)


def finetune(config, folder):
    """What `train.py` does: the run, then its report."""
    return report_finetuning(finetuning.run(config, folder), folder)


def read(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def done(pretrained, tmp_path_factory):
    """The folder of a run of two seeds that nothing interrupted."""
    sets = {"train": examples(44, 0), "validation": examples(21, 1)}
    folder = tmp_path_factory.mktemp("done") / "run"
    with pytest.MonkeyPatch.context() as patch:
        opened = types.SimpleNamespace(as_data_source=sets.__getitem__)
        patch.setattr(glue, "open_dataset", lambda *args, **named: opened)
        finetune(config(pretrained), folder)
    return folder


def params_of(folder):
    return jax.device_get(newest_params(folder)[1])


def test_each_seed_is_the_run_of_that_seed_alone(done, pretrained, tmp_path):
    """On four devices: two seeds on two of them each, one seed on all four."""
    finetune(config(pretrained, seeds=(7,)), tmp_path)
    together, alone = params_of(done), params_of(tmp_path)
    different = 0.0
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        assert a.shape == (2, *b.shape[1:]) and b.shape[0] == 1
        np.testing.assert_allclose(a[1], b[0], rtol=2e-3, atol=2e-5)
        different = max(different, np.abs(a[0] - a[1]).max())
    assert different > 1e-3
    scores = [read(folder / "results.json") for folder in (done, tmp_path)]
    assert scores[0]["scores"]["matthews"][1] == pytest.approx(
        scores[1]["scores"]["matthews"][0]
    )
    answers = [
        read(folder / "predictions" / "step_9" / "seed_7_validation.json")
        for folder in (done, tmp_path)
    ]
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_seeds_at_once_and_in_turn(pretrained, tmp_path, monkeypatch):
    """Accelerators take all of a device's seeds at once, CPUs one after another: the same results.
    Three seeds are all on each of four devices."""
    found = []
    for in_turn in (True, False):
        answer = lambda mesh, in_turn=in_turn: in_turn
        monkeypatch.setattr("pe_jax.trainer.tasks.seeds.in_turn", answer)
        resolved = finetuning.resolve(config(pretrained, seeds=(3, 5, 7)))
        experiment = finetuning.build(resolved, tmp_path)
        fresh = experiment.program.init()
        params, _ = finetuning.start_from(
            experiment.config, experiment.program, fresh.params
        )
        state = fresh._replace(params=params)
        step = experiment.program.train_step()
        for number in range(2):
            batch = experiment.batches[number]
            batch = sharding.to_global(batch, experiment.program.batch_sharding)
            state, metrics = step(state, batch)
        assert int(state.step) == 2
        outputs = experiment.scorer.held_out_outputs(state.params)
        found.append(jax.device_get((state.params, metrics, outputs)))
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        assert len(a) == 3
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("step", [3, 6])
def test_resuming_is_bit_exact(done, pretrained, tmp_path, step):
    killed = tmp_path / "run"
    shutil.copytree(done, killed)
    (killed / "results.json").unlink()
    for later in (killed / "checkpoints").iterdir():
        if int(later.name) > step:
            shutil.rmtree(later)
    finetune(config(pretrained), killed)
    for a, b in zip(*map(jax.tree.leaves, map(params_of, (done, killed))), strict=True):
        np.testing.assert_array_equal(a, b)
    assert read(killed / "results.json") == read(done / "results.json")


def test_what_a_run_leaves(done, pretrained):
    found = read(done / "results.json")
    assert found["dataset"] == found["trained_on"] == "glue/cola"
    assert (found["position"], found["init"]) == (
        "learned_absolute",
        str(pretrained / "learned_absolute"),
    )
    assert (found["select"], found["metric"]) == ("last", "matthews")
    assert (found["seeds"], found["steps"]) == ([3, 7], [9, 9])
    assert found["baseline"] == {"matthews": 0}
    # From the predictions it wrote: the score by its formula.
    labels = np.array([one["label"] for one in examples(21, 1)])
    for number, seed in enumerate((3, 7)):
        path = done / "predictions" / "step_9" / f"seed_{seed}_validation.json"
        answers = np.array(read(path))
        want = 0 if len(set(answers)) == 1 else 100 * np.corrcoef(labels, answers)[0, 1]
        assert found["scores"]["matthews"][number] == pytest.approx(want)
    lines = [
        json.loads(line) for line in (done / "metrics.jsonl").read_text().splitlines()
    ]
    scored = [line for line in lines if "held_out/matthews" in line]
    assert [line["step"] for line in scored] == [5, 9]
    each = [scored[1][f"held_out/matthews/seed_{seed}"] for seed in (3, 7)]
    assert each == found["scores"]["matthews"]
    assert scored[1]["held_out/matthews"] == pytest.approx(np.mean(each))
    text = (done / "report.md").read_text()
    assert "# glue/cola: learned_absolute" in text and "| matthews |" in text
    assert "44 training examples" in text


def test_training_data_kept_to_select_by(pretrained, tmp_path, cola):
    """The same examples for every seed and encoding, and none of them in the training data."""
    kept = []
    for position in ("learned_absolute", "learned_relative"):
        c = finetuning.resolve(config(pretrained, position, **{"data.held_out": 0.25}))
        task = finetuning.build(c, tmp_path).task
        assert task.held_out_metric == "matthews_held_out"
        rows = task.train, task.held_out["held_out"]
        assert [len(some.sizes()) for some in rows] == [33, 11]
        assert set(task.held_out) == {"validation", "held_out"}
        of_each = [np.split(some.tokens, some.bounds[1:-1]) for some in rows]
        train, held_out = ([one.tolist() for one in some] for some in of_each)
        assert not [one for one in held_out if one in train]
        kept.append(held_out)
    assert kept[0] == kept[1]


def test_attention_in_cudnn_is_refused(pretrained):
    """It cannot be mapped over seeds."""
    with pytest.raises(
        ValueError,
        match=r"config.model.implementation='cudnn' is not.*implementation=auto",
    ):
        finetuning.resolve(config(pretrained, **{"model.implementation": "cudnn"}))


def test_starting_from_a_run(done, pretrained, tmp_path):
    """The encoder is the pretrained one for every seed; heads are drawn by seed."""
    resolved = finetuning.resolve(config(pretrained))
    experiment = finetuning.build(resolved, tmp_path)
    fresh = experiment.program.init()
    params, changes = finetuning.start_from(
        experiment.config, experiment.program, fresh.params
    )
    _, old = newest_params(pretrained / "learned_absolute")
    got = jax.device_get(params)
    for part in ("bert", "pooler"):
        for a, b in zip(
            jax.tree.leaves(got[part]), jax.tree.leaves(old[part]), strict=True
        ):
            np.testing.assert_array_equal(a, np.stack([b, b]))
    head = got["classifier"]["kernel"]
    assert head.shape == (2, 16, 2) and not np.array_equal(head[0], head[1])
    assert changes.new == ["classifier/bias", "classifier/kernel"]
    assert (
        "masked_lm/bias" in changes.dropped and "bert/token/embedding" in changes.kept
    )
    # The seeds share nothing but the encoder: dropout keys differ too.
    assert not np.array_equal(*jax.random.key_data(fresh.rng))


def test_another_encoding(pretrained, tmp_path):
    other = config(pretrained, **{"model.position": "learnable_sinusoidal_relative"})
    experiment = finetuning.build(finetuning.resolve(other), tmp_path)
    _, changes = finetuning.start_from(
        experiment.config, experiment.program, zero_params(experiment.program)
    )
    assert "bert/position/learned_absolute/table" in changes.dropped
    assert "bert/position/learnable_sinusoidal_relative/frequencies" in changes.new


def test_a_table_that_is_too_short(pretrained, tmp_path):
    longer = {"data.length": 24, "data.buckets": (8, 16)}
    with pytest.raises(ValueError, match=r"24 tokens do not fit a learned table of 16 positions. .*"
                       "--config.resize=interpolate"):  # fmt: skip
        finetuning.resolve(config(pretrained, **longer))
    resized = finetuning.resolve(config(pretrained, **longer, resize="repeat"))
    assert resized.model.max_length == 24
    experiment = finetuning.build(resized, tmp_path)
    params, changes = finetuning.start_from(
        experiment.config, experiment.program, zero_params(experiment.program)
    )
    _, old = newest_params(pretrained / "learned_absolute")
    table, was = (
        p["bert"]["position"]["learned_absolute"]["table"] for p in (params, old)
    )
    np.testing.assert_array_equal(table[0], np.concatenate([was, was[:8]]))
    assert "bert/position/learned_absolute/table" in changes.kept
    finetuning.resolve(
        config(pretrained, "learned_relative", **longer)
    )  # Has no maximum length.


def test_a_relative_table_that_is_too_short(tmp_path, monkeypatch):
    """It keeps its rows for longer inputs; a table that limits them waits for a method."""
    size = {"model.max_length": 16, "model.position": "learned_absolute+relative_key"}
    saved = tiny_run.config(tmp_path, **size)
    resolved = workdir.ResolvedConfig(saved, saved.model.resolve())
    workdir.write_config(tmp_path / "run", resolved)
    encoding = encodings.from_name(
        saved.model.position, hidden_size=16, head_size=8, num_heads=2, max_length=16
    )
    params = {"bert": {"position": jax.jit(encoding.init)(jax.random.key(0))}}
    monkeypatch.setattr(pretrained_source, "newest_params", lambda *run: (0, params))
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    taken = pretrained_source.PretrainedSource(str(tmp_path / "run")).params(
        lambda _: device, 24
    )["bert"]["position"]
    old = params["bert"]["position"]
    np.testing.assert_array_equal(
        taken["relative_key"]["table"][8:-8], old["relative_key"]["table"]
    )
    assert len(taken["relative_key"]["table"]) == 47
    assert len(taken["learned_absolute"]["table"]) == 16


def test_lengths_do_not_change_scores(done, pretrained, tmp_path, monkeypatch, capsys):
    """A row padded to its bucket or to the longest gets the same scores; progress is printed."""
    monkeypatch.setattr(finetuning, "_SECONDS_A_LINE", 0.0)
    resolved = finetuning.resolve(config(pretrained))
    _, params = newest_params(done)
    outputs = []
    for buckets in ((8, 12), ()):
        bucketed = changed(resolved.config, {"data.buckets": buckets})
        experiment = finetuning.build(resolved._replace(config=bucketed), tmp_path)
        placed = jax.device_put(params, experiment.program.shardings_of(params))
        outputs.append(experiment.scorer.held_out_outputs(placed)["validation"])
        count = len(experiment.scorer.held_out["validation"])
        assert f"{count} of {count} held-out batches, " in capsys.readouterr().err
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)
    assert outputs[0].shape == (2, 21, 2)


def test_rescoring(done, tmp_path):
    text = rescore(done, tmp_path)
    (row,) = read(tmp_path / "rescored.json")
    assert (
        row["scores"] == read(done / "results.json")["scores"] and row["length"] == 16
    )
    assert "| 16 " in text
    with pytest.raises(ValueError, match="24 tokens do not fit a learned table of 16"):
        rescore(done, tmp_path, (24,))
    rescore(done, tmp_path, (12, 24), "interpolate")
    rows = read(tmp_path / "rescored.json")
    assert [row["length"] for row in rows] == [12, 24]
    # No text is longer than 16 tokens, but the rows of the table have moved.
    assert (tmp_path / "predictions").exists() is False
    assert (tmp_path / "length_24" / "predictions" / "step_9").is_dir()


def test_empty_texts_are_counted(pretrained, tmp_path, cola, capsys):
    cola["train"][3]["sentence"] = b" "
    cola["validation"][0]["sentence"] = b""
    experiment = finetuning.build(finetuning.resolve(config(pretrained)), tmp_path)
    with pytest.raises(ValueError, match="1 of 21 predictions are not finite"):
        experiment.task.score(
            "validation", np.array([[0.0, 1.0]] * 20 + [[np.nan, 1.0]])
        )
    assert len(experiment.task.train.sizes()) == 43
    assert len(experiment.task.held_out["validation"].sizes()) == 21
    printed = capsys.readouterr().err
    assert "43 training examples; 1 with an empty text were left out" in printed
    assert "21 examples in validation, 1 of them with an empty text" in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": ""}, "Fine-tuning starts from a pretrained model.*--config.init"),
        (
            {"init": "/nowhere"},
            "config.init='/nowhere' is neither a run nor a published BERT",
        ),
        ({"task": "snli"}, "config.task must be one of cola, .*squad.*, got 'snli'"),
        (
            {"seeds": (1, 1)},
            r"config.seeds must be a tuple of .* different values, .* got \(1, 1\)",
        ),
        (
            {"select": "first"},
            "config.select must be one of last, best, held_out, got 'first'",
        ),
        (
            {"data.batch_size": 9},
            "config.data.batch_size=9 is not divisible by 2 devices .* is: 8 or 10",
        ),
        ({"data.batch_size": 64}, "44 examples are too few for a batch of 64"),
        ({"model.position": "learned"}, "Did you mean learned_"),
    ],
)
def test_configs_that_cannot_run(pretrained, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        finetune(config(pretrained, **changes), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_run_does_not_start_from_a_fine_tuned_one(done, pretrained, tmp_path):
    with pytest.raises(
        ValueError, match="holds a run of 'cola', but this needs pretraining"
    ):
        finetune(config(pretrained, init=str(done)), tmp_path)


def test_what_is_for_pretraining_runs_says_so(done):
    for read_run in (from_run, score):
        with pytest.raises(
            ValueError, match="holds a run of 'cola', but this needs pretraining"
        ):
            read_run(done)


def test_the_best_step_of_each_seed(tmp_path):
    """Among equally good steps the first one counts."""
    scored = {5: (10.0, 30.0), 10: (20.0, 20.0), 15: (20.0, 10.0)}
    lines = [
        {"step": step, "held_out/f1": 0.0, "held_out/f1/seed_1": a, "held_out/f1/seed_2": b,
         "held_out/exact": 0.0, "held_out/exact/seed_1": a + 1, "held_out/exact/seed_2": b + 2}
        for step, (a, b) in scored.items()
    ]  # fmt: skip
    lines.insert(0, {"step": 1, "train/loss": 1.0})
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    made = types.SimpleNamespace(
        config=types.SimpleNamespace(select="best", init="RUN", seeds=(1, 2)),
        task=types.SimpleNamespace(
            metric="f1",
            held_out_metric="exact",
            dataset="A",
            trained_on="B",
            baseline={},
        ),
        program=types.SimpleNamespace(
            model=types.SimpleNamespace(encoding=encodings.none)
        ),
    )
    best = results(made, tmp_path)
    assert best["steps"] == [10, 5]
    assert best["scores"] == {"f1": [20.0, 30.0], "exact": [21.0, 32.0]}
    made.config.select = "last"
    assert results(made, tmp_path)["scores"]["f1"] == [20.0, 10.0]
    made.config.select = "held_out"  # By another score than the one that is reported.
    assert results(made, tmp_path)["steps"] == [10, 5]
    text = _readable(best, ["a note"])
    assert "steps 5 to 10" in text and "trained on B: not comparable" in text
    assert "| f1    | 25.00 | 7.07 | –        | 20.00  | 30.00  |" in text


def squad(pretrained, folder, **changes):
    c = squad_config.get_config()
    c.init = str(pretrained / "learned_relative")
    c.seeds = (0, 1, 2, 3)
    c.steps, c.eval_every = 6, 3
    c.data.train = questions(folder / "train.json", 40, 0)
    c.data.validation = questions(folder / "dev.json", 10, 1)
    c.data.update(length=24, buckets=(20,), stride=8, max_query=6, batch_size=8)
    c.data.eval_batch_size = 8
    c.update_from_flattened_dict(changes)
    return from_values(c, FINETUNING)


def test_questions(pretrained, tmp_path):
    """Official JSON in, official predictions out; the step counts that is best on questions that
    were kept from training."""
    choice = {"data.held_out": 0.2, "select": "held_out"}
    text = finetune(squad(pretrained, tmp_path, **choice), tmp_path / "run")
    assert (
        "32 training questions" in text
        and "8 questions in 8 windows to select by" in text
    )
    found = read(tmp_path / "run" / "results.json")
    assert found["dataset"] == str(tmp_path / "dev.json")
    assert set(found["scores"]) == {"f1", "exact", "f1_held_out", "exact_held_out"}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    for number, seed in enumerate(found["seeds"]):
        kept = {
            line["step"]: line[f"held_out/f1_held_out/seed_{seed}"]
            for line in lines
            if "held_out/f1" in line
        }
        assert found["steps"][number] == max(kept, key=kept.get)
        assert found["scores"]["f1_held_out"][number] == max(kept.values())
    answers = read(tmp_path / "run" / "predictions" / "step_6" / "seed_2_answers.json")
    assert sorted(answers) == sorted(f"q{n}" for n in range(10)) and all(
        answers.values()
    )
    assert set(found["baseline"]) == {"f1", "exact"}


def test_questions_without_answers(pretrained, tmp_path):
    """Version 2.0; and a question that cannot be trained on is counted."""
    c = squad(pretrained, tmp_path, version="v2.0")
    questions(tmp_path / "dev.json", 10, 1, answers=False)
    train = read(tmp_path / "train.json")
    train["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 1
    (tmp_path / "train.json").write_text(json.dumps(train))
    text = finetune(c, tmp_path / "run")
    assert "left out: misplaced answer: 1" in text
    scores = read(tmp_path / "run" / "results.json")["scores"]
    assert {"f1", "exact", "HasAns_f1", "NoAns_exact"} <= set(scores)
    nulls = read(
        tmp_path / "run" / "predictions" / "step_6" / "seed_0_null_differences.json"
    )
    assert len(nulls) == 10 and all(np.isfinite(list(nulls.values())))


@pytest.mark.parametrize(
    ("seeds", "shape"),
    [(1, (1, 4)), (2, (2, 2)), (3, (1, 4)), (4, (4, 1)), (8, (4, 1))],
)
def test_devices_are_split_by_seeds_as_far_as_they_go(seeds, shape):
    mesh = seed_mesh(seeds)
    assert (mesh.shape["seeds"], mesh.shape["data"]) == shape
