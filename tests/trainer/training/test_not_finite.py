"""What is not finite is never saved, loaded or reported as a success."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import published_bert, tiny_run

from pe_jax import interop
from pe_jax.trainer.tasks import pretraining
from pe_jax.trainer.tasks.glue import glue_score
from pe_jax.trainer.training import loop, optimizer
from pe_jax.trainer.training.checkpointing import saved_steps
from pe_jax.trainer.training.optimizer import make_optimizer
from pe_jax.trainer.training.pytrees import examine_leaves


def test_a_step_that_breaks_the_state_is_not_saved(tmp_path, monkeypatch):
    """The loss of the first step is finite, its update is not."""
    # The schema refuses such a rate in a config; other tests do not reuse this optimizer.
    monkeypatch.setattr(optimizer, "make_schedule", lambda *args: lambda step: np.inf)
    monkeypatch.setattr(
        pretraining, "make_optimizer", functools.cache(make_optimizer.__wrapped__)
    )
    changes = {"stage1.steps": 1, "stage2.steps": 0, **tiny_run.NO_DROPOUT}
    config = tiny_run.config(tmp_path, **changes)

    def check(folder, message):
        with pytest.raises(FloatingPointError, match=message):
            pretraining.run(config, folder)
        assert saved_steps(folder) == []

    check(tmp_path / "a", "After step 1 the held-out data gives masked_lm_loss nan")
    monkeypatch.setattr(loop, "_check_held_out", lambda step, scalars: None)
    check(
        tmp_path / "b", r"after step 1 is not finite in \d+ arrays"
    )  # Held-out data or not.


def test_a_held_out_loss_that_is_not_finite():
    loop._check_held_out(3, {"masked_lm/loss": 1.0, "accuracy": np.nan})
    with pytest.raises(FloatingPointError, match="step 3 .* masked_lm/loss nan"):
        loop._check_held_out(3, {"masked_lm/loss": np.nan, "accuracy": 0.5})


@pytest.mark.parametrize("metric", ["accuracy", "pearson"])
def test_predictions_that_are_not_finite_have_no_score(metric):
    with pytest.raises(ValueError, match="1 of 3 predictions are not finite"):
        glue_score(metric, np.arange(3), np.array([0.0, np.nan, 1.0]))


def test_leaves_that_are_not_finite_are_named():
    tree = {
        "a": jnp.array([1.0, np.inf]),
        "b": {"c": jnp.arange(2), "d": jnp.array(np.nan)},
    }
    assert examine_leaves(tree)[1] == ["a", "b/d"]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_published_weights_that_are_not_finite(value, tmp_path):
    tensors = published_bert.bert_tensors()
    name = next(name for name in tensors if name.endswith("query.weight"))
    tensors[name] = tensors[name].copy()
    tensors[name][0, 1] = value
    published_bert.write(tmp_path, tensors, published_bert.BERT)
    with pytest.raises(
        ValueError, match=f"weights that are NaN, infinite or too large .*{name}"
    ):
        interop.load_encoder(tmp_path)
