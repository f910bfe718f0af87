"""Loss and states against a shift of all positions, and against the place of the token."""

import functools
import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import tiny_run

from pe_jax import properties
from pe_jax.models import BertConfig, BertForPretraining
from pe_jax.trainer import data
from pe_jax.trainer.configs.properties import PropertiesConfig
from pe_jax.trainer.reports.property_report.position_losses import (
    disjoint_sets,
    shift_numbers,
)
from pe_jax.trainer.reports.property_report.report import measure_properties
from pe_jax.trainer.reports.property_report.subjects import MeasuredModel, from_name
from pe_jax.trainer.reports.property_report.texts import texts


@pytest.fixture
def config():
    return PropertiesConfig(size="tiny", length=24, texts=6)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """A model that predicts from the position alone: rows of its table are 10⁴ times as large as
    those of tokens, attention and the MLP add nothing, and the head passes states on."""
    folder = tmp_path_factory.mktemp("books")
    books = tiny_run.write_books(folder, count=3)
    tokenizer = data.train_tokenizer(
        [json.loads(line)["text"] for line in books.open()], 60
    )
    model = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=8, num_layers=1, num_heads=2,
        intermediate_size=4, max_length=48,
    )  # fmt: skip
    rng = np.random.default_rng(0)

    def value(path, leaf):
        name = jax.tree_util.keystr(path)
        if "'token'" in name or "'position'" in name:
            return (1e4 if "'position'" in name else 1) * rng.normal(size=leaf.shape)
        if "'masked_lm'" in name and "'kernel'" in name:
            return np.eye(8)
        return np.full(leaf.shape, "'scale'" in name)

    tokens = jnp.zeros((1, 2), jnp.int32)
    init = functools.partial(BertForPretraining(model).init, masked_positions=tokens)
    shapes = jax.eval_shape(init, jax.random.key(0), tokens)
    heads = jax.tree_util.tree_map_with_path(value, shapes["params"])
    heads = jax.tree.map(lambda x: np.asarray(x, np.float32), heads)
    return MeasuredModel(
        name="by position", encoding=model.encoding(), position=heads["bert"]["position"],
        length=48, model=model, heads=heads, tokenizer=tokenizer,
    ), str(books)  # fmt: skip


def log_probabilities(subject):
    """`[position, token]`, in float64, by what is left of the model."""
    (table,) = jax.tree.leaves(subject.position)
    norm = lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    h = norm(np.asarray(table, np.float64))
    h = norm(h * [[0.5 * (1 + math.erf(x / math.sqrt(2))) for x in row] for row in h])
    logits = h @ np.asarray(subject.heads["bert"]["token"]["embedding"], np.float64).T
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_a_known_score_by_shift():
    """A score that is a function of positions alone, in one program for all shifts."""
    rows = np.arange(10.0).reshape(5, 2)
    score = lambda params, x, at: {
        "sum": params * x.sum(-1) + at.sum(),
        "last": x[:, 0] * at[-1],
    }
    found = properties.shift_curve(
        score, 2.0, rows, np.array([0, 3, 10]), length=4, batch=2
    )
    for i, k in enumerate([0, 3, 10]):
        np.testing.assert_allclose(found["sum"][i], 2 * rows.sum(-1) + 6 + 4 * k)
        np.testing.assert_allclose(found["last"][i], rows[:, 0] * (k + 3))


def test_changes_of_states():
    rng = np.random.default_rng(0)
    h, other = rng.normal(size=(2, 3, 7, 5))
    expected = [
        np.sqrt(((b - a) ** 2).sum() / ((a - a.mean(0)) ** 2).sum())
        for a, b in zip(h, other, strict=True)
    ]
    np.testing.assert_allclose(properties.state_change(h, other), expected, rtol=1e-5)
    np.testing.assert_array_equal(properties.state_change(h, h), 0)
    same = np.ones((4, 2))
    assert float(properties.state_change(same, same)) == 0
    assert float(properties.state_change(same, same + 1)) == 1
    third = np.full((3, 2), 1 / 3, np.float32)  # Whose mean is rounded.
    assert float(properties.state_change(third, third + 1)) == 1
    assert (
        float(properties.state_change(h[0, :1], h[0, 1:2])) == 1
    )  # One token has no spread.
    assert np.isnan(properties.state_change(h[0] * np.nan, h[0]))


def test_means_over_texts():
    values = np.random.default_rng(0).normal(size=(6, 4))
    found = properties.mean_over_texts(values)
    np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-5)
    np.testing.assert_allclose(
        found.error, values.std(0, ddof=1) / np.sqrt(6), rtol=1e-5
    )
    assert np.isnan(properties.mean_over_texts(values[:1]).error).all()


def test_a_known_loss_by_place():
    """A loss that depends on the place, and on the text as a whole: the latter is no error."""
    texts = np.array([0.0, 5.0, -3.0, 7.0])[:, None]
    losses = np.tile([4.0, 2, 1, 1, 1, 1, 1, 3], (4, 1)) + texts
    found = properties.losses_by_place(losses, bins=4)
    np.testing.assert_array_equal(properties.bin_edges(8, 4), [0, 2, 4, 6, 8])
    np.testing.assert_allclose(
        found["bins"].mean, np.array([3, 1, 1, 2]) + texts.mean()
    )
    np.testing.assert_allclose(
        found["bins"].error, np.std(texts, ddof=1) / 2, rtol=1e-5
    )
    assert [float(one.mean) for one in (found["first"], found["last"])] == [2, 1]
    assert [float(one.error) for one in (found["first"], found["last"])] == [0, 0]
    few = properties.losses_by_place(losses[:, :3], bins=16)
    np.testing.assert_array_equal(few["bins"].mean.shape, [3])
    one = properties.losses_by_place(losses[:, :1])
    assert float(one["first"].mean) == 0 == float(one["last"].mean)


def test_every_place_is_masked_once():
    sets = disjoint_sets(5, 20, 0)
    assert sets.shape == (7, 5, 20)
    np.testing.assert_array_equal(sets.sum(0)[:, 1:-1], 1)
    assert not sets[..., [0, -1]].any()
    assert set(sets.sum(-1).ravel()) <= {2, 3}
    assert disjoint_sets(5, 4, 0).shape == (2, 5, 4)


@pytest.mark.parametrize(("position", "exact"), [
    ("rope", True), ("t5+causal", True), ("learned_absolute", False),
    ("sinusoidal_absolute", False),
])  # fmt: skip
def test_who_changes_with_a_shift(position, exact, config):
    """Encodings of offsets do not, beyond rounding; a table is shifted up to its end."""
    subject = from_name(position, config, 0)
    found = shift_numbers(subject, 12, config)
    assert found["states"][0] < 1e-6
    assert (max(found["states"]) < 1e-5) == exact
    assert found["shifts"] == (
        [0, 1, 2, 4, 8, 12] if position == "learned_absolute"
        else [0, *(2**i for i in range(8)), 192]
    )  # fmt: skip
    assert "loss" not in found


def test_what_takes_no_shift_is_said(config, tmp_path):
    config = replace(config, parts="shift")
    names = ["randomized(rope, num_positions=64)", "alibi"]
    text = measure_properties(
        [from_name(one, config, 0) for one in names], config, tmp_path
    )
    reason = "positions of the 12 keys must count from 0 for randomized, got 1 to 12"
    said = f"randomized(rope, num_positions=64) (untrained) is left out: {reason}"
    assert said in " ".join(text.split())
    assert list(json.loads((tmp_path / "shift.json").read_text())) == [
        "alibi (untrained)"
    ]
    with pytest.raises(ValueError, match="shift needs"):
        measure_properties([from_name(names[0], config, 0)], config, tmp_path)


def test_a_model_that_predicts_from_the_position_alone(subject, config, tmp_path):
    subject, books = subject
    config = replace(config, text=books, parts="shift,place")
    text = measure_properties(
        [subject, from_name("alibi", config, 0)], config, tmp_path
    )
    log_p = log_probabilities(subject)
    read = texts(subject, config)
    found = json.loads((tmp_path / "shift.json").read_text())["by position"]
    assert found["length"] == 24 and found["shifts"] == [0, 1, 2, 4, 8, 16, 24]
    row, at = np.nonzero(read.where)
    for k, loss, accuracy in zip(
        found["shifts"], found["loss"], found["accuracy"], strict=True
    ):
        targets = read.tokens[row, at]
        assert loss == pytest.approx(-log_p[at + k, targets].mean(), rel=1e-3)
        assert accuracy == pytest.approx(
            (log_p[at + k].argmax(-1) == targets).mean(), abs=1e-6
        )
    by_text = np.stack(
        [
            -np.where(read.where, log_p[np.arange(24) + k, read.tokens], 0).sum(-1)
            for k in (0, 24)
        ]
    ) / read.where.sum(-1)
    change = by_text[1] - by_text[0]
    assert found["loss_change"][-1] == pytest.approx(change.mean(), rel=1e-2)
    assert found["loss_error"][-1] == pytest.approx(
        change.std(ddof=1) / 6**0.5, rel=1e-2
    )

    by_place = json.loads((tmp_path / "place.json").read_text())
    assert (
        list(by_place) == ["by position"] and "Without a masked-LM head: alibi" in text
    )
    expected = -log_p[np.arange(1, 23), read.tokens[:, 1:-1]]
    found = by_place["by position"]
    assert found["places"]["mean"] == pytest.approx(expected.mean(0), rel=1e-3)
    assert found["edges"][0] == 1 and found["edges"][-1] == 23
    first = expected[:, : found["edges"][1] - 1].mean(1) - expected[:, 5:17].mean(1)
    assert found["first"]["mean"] == pytest.approx(first.mean(), rel=1e-2)
    assert found["first"]["error"] == pytest.approx(
        first.std(ddof=1) / 6**0.5, rel=1e-2
    )
