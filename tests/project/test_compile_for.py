"""benchmarks/compile_for.py: what is compiled, its memory and FLOPs, and the report."""

import dataclasses
import functools
import json
from types import SimpleNamespace

import compile_for
import compiled_step
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import step_shapes
import tpu_slices
from helpers import tiny_run
from helpers.finetuning_data import examples, questions
from step_shapes import abstract_arguments

from pe_jax.common.schema import changed, from_values
from pe_jax.models import BertConfig, BertForPretraining
from pe_jax.models.flops import forward_flops, train_flops
from pe_jax.trainer.configs import glue as glue_config
from pe_jax.trainer.configs import squad as squad_config
from pe_jax.trainer.configs.all_tasks import FINETUNING
from pe_jax.trainer.data import glue
from pe_jax.trainer.tasks import finetuning, pretraining, text_training
from pe_jax.trainer.training import sharding

V5E = tpu_slices.TPUS["v5e"]


@pytest.fixture
def config(tmp_path):
    return tiny_run.config(tmp_path)


@pytest.fixture
def here(monkeypatch):
    """This machine's devices instead of a slice's."""
    slice_here = tpu_slices.Slice("v5e:2x2", V5E, (2, 2), sharding.data_mesh())
    monkeypatch.setattr(compile_for, "make_slice", lambda name: slice_here)
    return slice_here


# --- memory --------------------------------------------------------------------------------------


def test_memory_by_kind(config):
    model = dataclasses.replace(config.model.resolve(), vocab_size=120)
    program = pretraining.make_program(config, sharding.data_mesh(), model, steps=1)
    state, batch, _ = abstract_arguments(config, program, config.stage1)
    stats = SimpleNamespace(
        argument_size_in_bytes=10**6,
        output_size_in_bytes=900_000,
        alias_size_in_bytes=899_000,
        temp_size_in_bytes=5,
        generated_code_size_in_bytes=7,
    )
    found = compiled_step.memory(stats, state, batch)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert found["parameters"] == 4 * parameters
    assert (
        8 * parameters < found["optimizer state"] < 8 * parameters + 64
    )  # And step counters.
    rows, length, predictions = 8 // 4, 32, 6
    assert found["batch"] == rows * (
        length * (4 + 4 + 1) + predictions * (4 + 4 + 4) + 4
    )
    assert (found["temporaries"], found["generated code"]) == (5, 7)
    assert sum(found.values()) == 10**6 + 1000 + 5 + 7


# --- what is compiled is what runs ----------------------------------------------------------------


def test_abstract_state_and_batch_are_those_of_a_run(config):
    experiment = pretraining.build(text_training.resolve(config))
    described = lambda tree: jax.tree.map(
        lambda x: (x.shape, x.dtype, x.sharding), tree
    )
    program = experiment.program
    for stage, stage_config in zip(experiment.stages, config.stages.values()):
        state, batch, constants = abstract_arguments(config, program, stage_config)
        assert constants == ()
        assert described(state) == described(program.init())
        global_batch = sharding.to_global(
            next(iter(stage.batches(0))), program.batch_sharding
        )
        assert described(batch) == described(global_batch)


def test_a_placement_by_part():
    mesh = sharding.data_mesh()
    tree = {"a": {"b": np.zeros(4), "c": np.zeros((8, 2))}, "d": np.zeros(4)}
    placed = sharding.abstract(
        tree, {"a": sharding.by_rows(mesh), "d": sharding.replicated(mesh)}
    )
    assert placed["a"]["c"].sharding == sharding.by_rows(mesh)
    assert placed["d"].sharding == sharding.replicated(mesh)
    assert compiled_step.shard_bytes(placed) == (1 + 2 * 2 + 4) * 8


# --- fine-tuning ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A run of ModernBERT's architecture."""
    folder = tmp_path_factory.mktemp("pretrained")
    changes = {
        **{"model.size": "ettin_17m", "model.num_layers": 1, "model.position": "rope"},
        **tiny_run.NO_DROPOUT,
        **{
            "stage1.steps": 1,
            "stage1.length": 16,
            "stage1.max_predictions": 3,
            "stage2.steps": 0,
        },
    }
    pretraining.run(tiny_run.config(folder, **changes), folder / "run")
    return folder / "run"


@pytest.fixture
def finetuning_config(pretrained, tmp_path, monkeypatch):
    """`finetuning_config(task)` of two seeds, with data."""
    sets = {"train": examples(24, 0), "validation": examples(9, 1)}
    opened = lambda *args, **named: SimpleNamespace(as_data_source=sets.__getitem__)
    monkeypatch.setattr(glue, "open_dataset", opened)

    def build(task):
        c = {"cola": glue_config, "squad": squad_config}[task].get_config()
        c.init, c.seeds, c.steps = str(pretrained), (3, 7), 1
        c.data.update(length=24, buckets=(), batch_size=8, eval_batch_size=8)
        c.model.update(dropout_rate=0.0, attention_dropout_rate=0.0)
        if task == "squad":
            c.data.update(
                max_query=8, stride=4, train=questions(tmp_path / "train.json", 20, 0)
            )
            c.data.validation = questions(tmp_path / "validation.json", 8, 1)
        return from_values(c, FINETUNING)

    return build


@pytest.mark.parametrize(
    "task", [pytest.param("cola", marks=pytest.mark.slow), "squad"]
)
def test_what_fine_tuning_compiles_is_what_runs(finetuning_config, tmp_path, task):
    resolved = step_shapes.resolve(finetuning_config(task))
    config, experiment = resolved.config, finetuning.build(resolved, tmp_path)
    described = lambda tree: jax.tree.map(
        lambda x: (x.shape, x.dtype, x.sharding), tree
    )
    (stage,) = step_shapes.stages(config)
    program = experiment.program
    state, batch, constants = abstract_arguments(config, program, stage)
    assert constants == () and program.mesh == step_shapes.make_mesh(
        config, sharding.data_mesh()
    )
    assert described(state) == described(program.init())
    global_batch = sharding.to_global(experiment.batches[0], program.batch_sharding)
    assert described(batch) == described(global_batch)


def test_the_report_of_fine_tuning(here, finetuning_config, tmp_path):
    """Of two seeds, each on two of four chips; no data is read."""
    config = changed(
        finetuning_config("cola"), {"data.data_dir": str(tmp_path / "absent")}
    )
    out = tmp_path / "numbers.json"
    text = "\n".join(compile_for.compile_for(config, "v5e:2x2", out=out))
    assert "## Length 24: 16 rows, 4 a chip\n\nFits: 0." in text
    (found,) = json.loads(out.read_text())
    model = dataclasses.replace(step_shapes.resolve(config).model, vocab_size=120)
    assert found["model_flops"] == 2 * train_flops(model, 8, 24, 0)
    # Two chips exchange half of the gradients of a seed twice, and little else.
    sent = 2 * 1 / 2 * found["memory"]["parameters"]
    assert sent / 100e9 < found["bounds"]["links"] < 1.5 * sent / 100e9


# --- model FLOPs ----------------------------------------------------------------------------------

SIZES = BertConfig(
    vocab_size=1000,
    hidden_size=128,
    num_layers=2,
    num_heads=2,
    intermediate_size=512,
    max_length=128,
)


@pytest.mark.parametrize("position", ["none", "learned_absolute"])
def test_flops_are_those_of_the_compiled_model(position):
    config = dataclasses.replace(SIZES, position=position)
    model = BertForPretraining(config)
    tokens, places = jnp.zeros((4, 128), jnp.int32), jnp.zeros((4, 20), jnp.int32)
    params = jax.eval_shape(
        model.init, jax.random.key(0), tokens, masked_positions=places
    )
    compiled = (
        jax.jit(model.apply).lower(params, tokens, masked_positions=places).compile()
    )
    counted = compiled.cost_analysis()["flops"]  # Element-wise operations as well.
    assert 0.95 * counted < forward_flops(config, 4, 128, 20) < counted


def test_flops_by_hand():
    layer = (
        128 * 128 * (3 + 1 + 4 + 4) + 2 * 128 * 128
    )  # Weights, and two products with 128 keys.
    heads = 20 * (128 * 128 + 128 * 1000) + 128 * 128 + 128 * 2
    forward = lambda position: forward_flops(
        dataclasses.replace(SIZES, position=position), 4, 128, 20
    )
    assert forward("none") == 2 * 4 * (2 * 128 * layer + heads)
    assert train_flops(SIZES, 4, 128, 20) == 3 * forward("learned_absolute")
    # A relative term is as much as q·k, in the logits and in the values; a combination has its own.
    relative = 2 * 4 * 2 * 128 * (2 * 128 * 128)
    for name in (
        "learned_relative",
        "sinusoidal_relative",
        "learned_absolute+learned_relative",
    ):
        assert forward(name) - forward("none") == relative


# --- the report -----------------------------------------------------------------------------------


def test_the_report(here, config, tmp_path):
    config = changed(config, {"stage2.steps": 0})
    out = tmp_path / "new" / "numbers.json"
    parts = compile_for.compile_for(config, "v5e:2x2", out=out)
    text = "\n".join([next(parts), next(parts)])
    assert out.exists()  # Each stage is there as soon as it is compiled.
    assert text.startswith(
        "# 1 layer of 16, learned_absolute, float32 on 4 TPU v5 lite (v5e:2x2)"
    )
    assert (
        "## Length 32: 8 rows, 2 a chip\n\nFits: 0.00 of 15.75 GiB a chip. At least "
        in text
    )
    (found,) = json.loads(out.read_text())
    model = dataclasses.replace(config.model.resolve(), vocab_size=120)
    assert found["model_flops"] == train_flops(model, 8, 32, 6)
    assert found["fits"] and 0 <= found["memory"]["padding, metrics"] < 1000
    bounds = found["bounds"]
    assert bounds["products"] == pytest.approx(found["model_flops"] / (4 * 197e12))
    assert found["mfu_bound"] == pytest.approx(
        bounds["products"] / max(bounds.values())
    )
    # Each of 4 chips sends 3/4 of the gradients twice, as this program does in float32, over two
    # links of 50 GB/s; some are exchanged twice. The state is read and written.
    state = found["memory"]["parameters"] + found["memory"]["optimizer state"]
    sent = 2 * 3 / 4 * found["memory"]["parameters"]
    assert sent / 100e9 < bounds["links"] < 2 * sent / 100e9
    assert 2 * state / 819e9 < bounds["memory"] < 2.1 * state / 819e9
    # The model is tiny, so the chips mostly exchange.
    assert 0 < found["mfu"] < 0.01
    assert f"Estimated: {1e3 * found['step_seconds']:.2f} ms a step" in text
    assert "**Warning: an MFU below 30%.** A step has 64 tokens a chip" in text
    # The rest: 12 steps on 4 chips.
    assert "## All stages: 0.0 chip-hours\n" in next(parts)
    assert "Nothing has run" in next(parts)


def test_chip_hours(config):
    """1,000 steps of 36 s on 16 chips, and 3 epochs of 100 rows of 48 tokens in batches of 8."""
    stages = {"stage1.steps": 1000, "stage2.steps": 0, "stage2.epochs": 3.0}
    config = changed(config, stages)
    cost = functools.partial(compile_for._cost, config, [36.0, 360.0], 16)
    text = "\n".join(cost(4_800, 1.2))
    assert "| stage1 | 1,000 | 10.00 | 160.0      |" in text
    assert "| stage2 | 38    | 3.80  | 60.8       |" in text
    assert text.startswith("## All stages: 220.8 chip-hours\n")
    assert "264.96 dollars at 1.2 a chip-hour." in text
    assert "dollars" not in "\n".join(cost(4_800, None))
    (unknown,) = cost(None, None)
    assert "stage2 takes 3 epochs" in unknown and "--tokens=N" in unknown
    assert compile_for._cost(config, [None, 1.0], 16, 4_800, None) == [
        "Chip-hours: stage1 does not fit."
    ]


def test_tokens_of_the_text(config, tmp_path):
    (tmp_path / "about.json").write_text('{"tokens": 123}')
    there = changed(config, {"data.source": f"tokenized:{tmp_path}"})
    absent = changed(config, {"data.source": f"tokenized:{tmp_path / 'absent'}"})
    assert compile_for._tokens_of(there) == 123
    assert compile_for._tokens_of(absent) is compile_for._tokens_of(config) is None


def test_what_does_not_fit_is_said(here, config, monkeypatch):
    full = "RESOURCE_EXHAUSTED: Ran out of memory on HBM: 20.00G of 15.75G.\n  more\n"

    def compile_for_too_little(self):
        raise jax.errors.JaxRuntimeError(full)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_for_too_little)
    text = "\n".join(compile_for.compile_for(config, "v5e:2x2", find_largest=True))
    assert (
        "**Does not fit** in 15.75 GiB a chip. The compiler: Ran out of memory on HBM: 20"
        in text
    )
    assert "## Length 48: 8 rows, 2 a chip" in text
    assert "Largest batch: 0 rows a chip fit, 2 do not." in text
    full = "INTERNAL: something else"
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        list(compile_for.compile_for(config, "v5e:2x2"))


def test_a_batch_that_does_not_divide(here, config):
    config = changed(config, {"stage2.batch_size": 6})
    with pytest.raises(ValueError, match="batch_size=6 is not divisible by 4 devices"):
        list(compile_for.compile_for(config, "v5e:2x2"))


@pytest.mark.parametrize("start", [1, 8, 12, 64, 1000])
@pytest.mark.parametrize("most", [0, 7, 8, 12, 13, 100, 999, 5000])
def test_the_largest_batch(start, most):
    tried = []

    def attempt(rows):
        tried.append(rows)
        return rows <= most

    low, high = compiled_step.largest(attempt, start, start <= most, 8)
    assert low <= most < high
    assert high - low <= max(8, low / 16)
    assert len(tried) == len(set(tried)) <= 20 and start not in tried
    assert all(rows % 8 == 0 or rows % start == 0 for rows in tried)


# --- with the TPU's compiler ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v5e", "v9:2x4", "v5e-8", "v5e:8", "v5e:2x4x", ""])
def test_no_such_slice(name):
    with pytest.raises(
        ValueError, match=rf"No TPU slice '{name}'. Give a chip \(v4, v5e"
    ):
        tpu_slices.make_slice(name)


def test_a_clock_that_is_not_published_gives_no_time():
    assert tpu_slices.TPUS["v5e"].seconds(1.5e9) == 1
    with pytest.raises(ValueError, match="clock of TPU7x is not published"):
        tpu_slices.TPUS["tpu7x"].seconds(1)


@pytest.mark.parametrize(
    ("chip", "slices", "reason"),
    [
        ("v4", 1, ""),
        ("v5e", 2, ""),
        ("v4", 2, "the bandwidth between slices of TPU v4 is not published"),
        ("tpu7x", 1, "the clock of TPU7x is not published"),
    ],
)
def test_what_is_not_timed(chip, slices, reason):
    several = tpu_slices.Slice(chip, tpu_slices.TPUS[chip], (2, 2), None, slices)
    assert several.untimed_reason == reason


def test_slices_without_a_known_network_get_their_memory(here, config, monkeypatch):
    tpu = tpu_slices.TPUS["v4"]
    several = here._replace(name="2xv4:2x2x1", tpu=tpu, slices=2)
    monkeypatch.setattr(compile_for, "make_slice", lambda name: several)
    config = changed(config, {"stage2.steps": 0})
    text = "\n".join(compile_for.compile_for(config, several.name))
    assert "Fits: 0.00 of 30.75 GiB a chip. At least " in text
    assert "No times: the bandwidth between slices of TPU v4 is not published." in text
    assert "through the links" not in text and "Estimated:" not in text


def test_the_units_of_the_chips():
    """Detects units that are wrong by a thousand."""
    for tpu in tpu_slices.TPUS.values():
        assert (
            tpu.peak / tpu.hbm_bandwidth > 100
        )  # FLOPs a byte: units of both are right.
        if tpu.clock:  # Matrix units of 128 or 256 squared.
            assert 100 < tpu.peak / tpu.clock / 1000 < 600
