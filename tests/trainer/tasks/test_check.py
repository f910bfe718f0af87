"""`--check`: the inputs of a run are read, and nothing is trained."""

import pytest
from helpers import tiny_run
from helpers.commands import call

from pe_jax.common.files import to_path
from pe_jax.trainer.tasks import train
from pe_jax.trainer.tasks.check import check_inputs
from pe_jax.trainer.training import hosts


def test_a_run_that_can_start_is_not_trained(tmp_path, capsys):
    config = tiny_run.config(tmp_path)
    check_inputs(config, tmp_path / "run")
    assert "12 read, 12 used" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_another_run_in_the_folder_is_refused(tmp_path):
    config = tiny_run.config(tmp_path)
    tiny_run.save_untrained(config, tmp_path / "run")
    check_inputs(config, tmp_path / "run")
    other = tiny_run.config(tmp_path, seed=7)
    with pytest.raises(ValueError, match="holds a run with another config:\n  seed"):
        check_inputs(other, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.source": "missing.jsonl"}, "config.data.source=.*missing.jsonl"),
        ({"init": "no_model"}, "config.init='no_model'"),
    ],
)
def test_missing_inputs_are_named(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        check_inputs(tiny_run.config(tmp_path, **changes), tmp_path / "run")


def test_weights_of_the_model_to_start_from_are_read(tmp_path):
    """A run without a checkpoint has a config and a tokenizer, and no parameters."""
    config = tiny_run.config(tmp_path)
    tiny_run.save_untrained(config, tmp_path / "first")
    second = tiny_run.config(tmp_path, init=str(tmp_path / "first"))
    check_inputs(second, tmp_path / "second")
    for checkpoint in (tmp_path / "first" / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / checkpoint.name)
    with pytest.raises(ValueError, match="first"):
        check_inputs(second, tmp_path / "second")


def test_the_command(tmp_path, monkeypatch):
    checked = []
    monkeypatch.setattr(
        "pe_jax.trainer.tasks.check.check_inputs", lambda *facts: checked.append(facts)
    )
    arguments = ["--config=quickstart", f"--workdir={tmp_path}/run", "--check"]
    status, out, err = call("train.py", *arguments)
    assert status == 0, err
    assert "Config, folder and data are fine. Nothing was trained." in out
    ((config, folder),) = checked
    assert config.task == "pretraining" and folder == tmp_path / "run"
    status, _, err = call("train.py", *arguments, "--coordinator=auto")
    assert status == 1 and "--check runs on one host" in err
    assert len(checked) == 1


def test_a_lost_host_has_its_own_status(tmp_path, monkeypatch):
    """The same command resumes, unlike after other errors."""
    errors = iter([RuntimeError("gloo: connection reset"), ValueError("seed")])

    def fail(*facts):
        raise next(errors)

    monkeypatch.setattr("pe_jax.trainer.tasks.check.check_inputs", fail)
    monkeypatch.setattr(hosts, "transfer_failure", lost)
    arguments = ["--config=quickstart", f"--workdir={tmp_path}/run", "--check"]
    status, _, err = call("train.py", *arguments)
    assert (status, err) == (69, "error: lost\n")
    status, _, err = call("train.py", *arguments)
    assert (status, err) == (1, "error: seed\n")


def lost(error):
    return "lost" if isinstance(error, RuntimeError) else ""


@pytest.mark.parametrize("place", ["gs://bucket/run", "run"])
def test_profiles_are_written_to_buckets_of_google_and_locally(place):
    train._check_profile(range(1, 3), 0, 12, to_path(place))


def test_other_stores_have_no_profile():
    with pytest.raises(ValueError, match="to gs:// only, but --workdir is s3://b/run"):
        train._check_profile(range(1, 3), 0, 12, to_path("s3://b/run"))
