"""Runs of equal configs in one process share their programs: each is traced and compiled once."""

import dataclasses

import numpy as np
import pytest
from helpers import tiny_run
from step_shapes import abstract_arguments

from pe_jax.encodings import Part, PositionEncoding
from pe_jax.models import BertConfig
from pe_jax.trainer.tasks import pretraining
from pe_jax.trainer.tasks.pretraining import make_program, pretraining_task
from pe_jax.trainer.training import sharding

MODEL = BertConfig(
    vocab_size=23, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8
)


@pytest.fixture
def traced_losses(monkeypatch):
    """One entry for each loss that is traced."""
    traced = []
    loss = pretraining.cross_entropy
    monkeypatch.setattr(
        pretraining, "cross_entropy", lambda *args: traced.append(None) or loss(*args)
    )
    return traced


@pytest.mark.parametrize("parallel", ["jit", "fsdp", "pmap"])
def test_a_second_run_of_a_config_traces_nothing(traced_losses, tmp_path, parallel):
    config = tiny_run.config(tmp_path, **tiny_run.NO_DROPOUT, parallel=parallel)

    def trace(seed, rate=1e-3):
        optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
        changed = dataclasses.replace(config, seed=seed, optimizer=optimizer)
        program = make_program(changed, sharding.data_mesh(), MODEL, steps=20)
        state, batch, _ = abstract_arguments(config, program, config.stage1)
        program.train_step().trace(state, batch)
        before = len(traced_losses)
        traced_losses.clear()
        return before

    assert trace(seed=0) > 0
    assert trace(seed=1) == 0
    assert trace(seed=0, rate=2e-3) > 0


def test_programs_of_different_models_differ():
    same = dataclasses.replace(dataclasses.replace(MODEL), position="learned_absolute")
    named = dataclasses.replace(MODEL, position="learned_absolute")
    other = dataclasses.replace(MODEL, position="rope")
    assert pretraining_task(named) is pretraining_task(same)
    assert pretraining_task(named) is not pretraining_task(other)


def test_an_encoding_that_cannot_be_hashed_is_built_again():
    part = Part(name="array", init=lambda rng: {}, embed=_Shift(np.ones(8)))
    model = dataclasses.replace(MODEL, position=PositionEncoding(parts=(part,)))
    with pytest.raises(TypeError, match="unhashable"):
        hash(model)
    assert pretraining_task(model) is not pretraining_task(model)


@dataclasses.dataclass(frozen=True)
class _Shift:
    by: np.ndarray

    def __call__(self, params, x, context):
        return x + self.by
