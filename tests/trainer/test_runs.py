"""`trainer.load_run`: the model of a training run, for use as a library."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from helpers import tiny_run

from pe_jax import trainer
from pe_jax.models import BertConfig, BertForPretraining
from pe_jax.trainer.training.checkpointing import newest_params


def test_a_run_is_read_with_its_config(tmp_path):
    config = tiny_run.config(tmp_path)
    tiny_run.save_untrained(config, tmp_path / "run")
    model, params = trainer.load_run(str(tmp_path / "run"))
    rows, width = params["bert"]["token"]["embedding"].shape
    assert (type(model), width, model.vocab_size) == (BertConfig, 16, rows)
    assert dataclasses.replace(config.model.resolve(), vocab_size=rows) == model
    tokens = np.arange(16).reshape(2, 8)
    init = functools.partial(BertForPretraining(model).init, masked_positions=tokens)
    shapes = jax.eval_shape(init, jax.random.key(0), tokens)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, shapes["params"])
    jax.tree.map(
        np.testing.assert_array_equal, params, newest_params(tmp_path / "run")[1]
    )


def test_folders_that_hold_no_run_of_an_encoder(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run: .*config\.json is missing"):
        trainer.load_run(tmp_path)
    (tmp_path / "config.json").write_text('{"task": "cola"}')
    with pytest.raises(
        ValueError, match=r"a run of 'cola', but this needs pretraining or dis"
    ):
        trainer.load_run(tmp_path)
