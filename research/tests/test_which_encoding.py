"""The encodings of the comparison can be built, each once, controls first; each chooses its
learning rate by held-out loss; trained models leave pictures."""

import json

import pytest
from helpers import tiny_run

from pe_jax import encodings
from pe_jax.trainer.tasks import pretraining
from research.json_files import append_json_line
from research.which_encoding import candidates, recipe, report
from research.which_encoding.names import (
    FOLDER,
    IN_DEPTH,
    NOT_POSITIONS,
    encodings_to_compare,
)
from research.which_encoding.recipe import Treatment
from research.which_encoding.results import read_lines
from research.which_encoding.trained_model import trained_picture


def test_every_name_is_an_encoding():
    names = encodings_to_compare()
    assert names[:3] == ["none", "learned_absolute", "rope"] and len(names) == len(
        set(names)
    )
    built = [
        encodings.from_name(
            name, hidden_size=256, head_size=64, num_heads=4, max_length=1024
        )
        for name in names
    ]
    times = json.loads((FOLDER / "times.json").read_text(encoding="utf-8"))
    assert set(times) <= set(names) and min(times.values()) > 0.5
    assert all(encoding.axes == 1 for encoding in built) and not NOT_POSITIONS & set(
        names
    )


def add_line(folder, name, position, ratio, loss):
    record = {"encoding": name, "position": position, "ratio": ratio, "seed": 3}
    append_json_line(folder / "selection.jsonl", record | {"loss/64": loss})


def test_ratios_fit_how_an_encoding_acts():
    assert candidates.ratios("rope") == (1.0,)
    assert candidates.ratios("t5") == candidates.RATIOS
    assert candidates.ratios("learned_absolute") == candidates.RATIOS_OF_INPUTS
    assert set(IN_DEPTH) <= set(encodings_to_compare())
    tuned = candidates.encodings_to_tune()
    assert tuned[0] == "t5" and "sinusoidal_absolute(scale=0.03)" in tuned
    assert "none" not in tuned and "rope" not in tuned


LOSSES = {1.0: 5.4, 10.0: 4.9, 30.0: 4.6, 100.0: 4.7}


def test_the_lowest_loss_chooses_the_ratio_when_its_neighbours_were_tried(tmp_path):
    assert candidates.best("rope", tmp_path) == ("rope", 1.0)
    tried = []
    while left := candidates.missing("t5", tmp_path):
        assert candidates.best("t5", tmp_path) is None
        position, ratio = left[0]
        add_line(tmp_path, "t5", position, ratio, LOSSES[ratio])
        tried.append(ratio)
    assert tried == [10.0, 30.0, 100.0]  # 1 is beyond 10, which is worse than 30.
    assert candidates.best("t5", tmp_path) == ("t5", 30.0)


@pytest.mark.parametrize(
    ("losses", "tried"),
    [
        ((1, 2, 3, 4), (10.0, 30.0, 1.0)),
        ((4, 3, 2, 1), (10.0, 30.0, 100.0)),
        ((4, 1, 2, 0), (10.0, 30.0, 1.0)),
    ],
)
def test_ratios_are_tried_outwards_from_the_best(losses, tried):
    known = {}
    while left := candidates.next_ratios(candidates.RATIOS, known):
        known[left[0]] = losses[candidates.RATIOS.index(left[0])]
    assert tuple(known) == tried
    assert candidates.next_ratios((1.0,), {}) == [1.0]
    assert candidates.next_ratios((1.0,), {1.0: 5.0}) == []


def test_other_sizes_are_tried_at_the_best_ratio(tmp_path):
    losses = {0.1: 5.5, 0.3: 5.2, 1.0: 5.3, 3.0: 5.9}
    for ratio, loss in losses.items():
        add_line(tmp_path, "learned_absolute", "learned_absolute", ratio, loss)
    sizes = candidates.OTHER_SIZES["learned_absolute"]
    missing = list(candidates.missing("learned_absolute", tmp_path))
    assert missing == [(size, 0.3) for size in sizes]
    for size, loss in zip(sizes, (5.25, 5.1)):
        add_line(tmp_path, "learned_absolute", size, 0.3, loss)
    assert candidates.best("learned_absolute", tmp_path) == (sizes[1], 0.3)


def test_results_are_those_at_the_chosen_ratio(tmp_path):
    def add_result(ratio, loss):
        record = {"position": "t5", "ratio": ratio, "seed": 0, "loss/64": loss}
        append_json_line(tmp_path / "results.jsonl", record)

    add_result(1.0, 5.4)
    (record,) = read_lines("results.jsonl", tmp_path)["t5"]
    assert record["loss/64"] == 5.4 and not candidates.is_compared("t5", [record])
    for ratio in candidates.RATIOS:
        add_line(tmp_path, "t5", "t5", ratio, 5.0 if ratio == 10 else 5.2)
    add_result(10.0, 4.9)
    assert [
        line["loss/64"] for line in read_lines("results.jsonl", tmp_path)["t5"]
    ] == [4.9]


def test_a_treatment_changes_the_learning_rate_of_positions_alone(tmp_path):
    plain = recipe.config(recipe.settings(Treatment("t5", 1.0, 0), tmp_path))
    faster = recipe.config(recipe.settings(Treatment("t5", 30.0, 0), tmp_path))
    assert plain.optimizer.rates == ()
    assert dict(faster.optimizer.ratios) == {"bert/position/*": 30.0}
    assert plain.optimizer.learning_rate == faster.optimizer.learning_rate == 1e-3


def test_intervals_widen_with_fewer_seeds():
    lines = read_lines("results.jsonl")
    intervals = report.intervals(lines)
    assert "rope" not in intervals
    several = [name for name in intervals if len(lines[name]) > 1]
    one = [name for name in intervals if len(lines[name]) == 1]
    widest = max(intervals[name][1] for name in several)
    assert widest < min(intervals[name][1] for name in one)
    assert intervals["none"][0] == pytest.approx(1.04, abs=0.05)


def test_a_trained_model_leaves_its_picture(tmp_path):
    changes = {"model.position": "rope", "model.max_length": 64, "stage1.steps": 0}
    changes |= {"stage2.steps": 1, "stage2.length": 64, "stage2.max_predictions": 9}
    pretraining.run(tiny_run.config(tmp_path, **changes), tmp_path / "run")
    numbers = trained_picture(tmp_path / "run")
    assert (
        numbers["by"] == "logits"
        and len(numbers["heat"]) == 32
        and numbers["sigma"] > 0
    )
    assert len(json.dumps(numbers)) < 10_000


def test_the_picture_of_a_table_is_that_of_its_trained_vectors(tmp_path):
    config = tiny_run.config(tmp_path, **{"model.max_length": 64})
    tiny_run.save_untrained(config, tmp_path / "run")
    numbers = trained_picture(tmp_path / "run")
    assert numbers["by"] == "P·Pᵀ" and set(numbers["properties"]) == {"64"}


def test_an_unstable_encoding_has_a_range_instead_of_an_interval(monkeypatch):
    """One of three seeds is far away: it would widen the intervals of all others."""
    losses = {
        "rope": [4.6, 4.59, 4.61],
        "t5": [4.56, 4.57, 4.58],
        "fire": [4.6, 4.6, 5.1],
    }
    lines = {
        name: [{"position": name, "ratio": 1.0, "loss/64": loss} for loss in values]
        for name, values in losses.items()
    }
    records = [record for values in lines.values() for record in values]
    monkeypatch.setattr(report, "read_json_lines", lambda path: records)
    assert report.unstable() == {("fire", 1.0): losses["fire"]}
    assert report.deviation() == (pytest.approx(0.01), 4)
    assert list(report.intervals(lines)) == ["t5"]
