"""The examples run, in a few steps, and print what they say."""

import importlib.util
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from helpers import tiny_run

from pe_jax.models import Bert
from pe_jax.trainer import load_run

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(capsys, name, *arguments):
    """The lines that an example prints."""
    example(name).main(list(arguments))
    return capsys.readouterr().out.splitlines()


def test_linen_transformer(capsys):
    lines = printed(
        capsys,
        "linen_transformer",
        "--encodings=sinusoidal_absolute+alibi",
        "--steps=2",
        "--length=8",
        "--width=8",
    )
    assert re.fullmatch(r"sinusoidal_absolute\+alibi +5\.\d\d +5\.\d\d", lines[2])


def test_nnx_decoder(capsys):
    arguments = [
        "--steps=4",
        "--length=8",
        "--width=16",
        "--vocabulary=300",
        "--count=3",
    ]
    lines = printed(capsys, "nnx_decoder", *arguments, "--prompt=The for")
    assert re.fullmatch(r"step 4: \d.\d\d nats per token, of 5.70", lines[3])
    moved = re.search(r"moved by (\S+) radians", lines[4])
    assert 0.005 < float(moved[1]) < 0.05  # Four steps of Adam with a rate of 1e-2.
    assert lines[7].startswith("The for")


def test_nnx_encoder(capsys, tmp_path):
    """It has the encoder of a run, trains it, and says how often it is right."""
    tiny_run.save_untrained(tiny_run.config(tmp_path), tmp_path / "W")
    lines = printed(
        capsys, "nnx_encoder", f"--init={tmp_path / 'W'}", "--steps=4", "--length=12"
    )
    assert re.fullmatch(r"step 4: \d+% right", lines[-1])
    module = example("nnx_encoder")
    config, params = module.load(tmp_path / "W")
    tokens = np.arange(16).reshape(2, 8)
    ours = module.Classifier(config, params, rngs=nnx.Rngs(0)).encoder(tokens)
    expected = jax.jit(Bert(config).apply)({"params": params}, tokens)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    with pytest.raises(ValueError, match="config.json"):
        load_run(tmp_path / "nothing")


@pytest.mark.slow
def test_vision_transformer(capsys):
    pytest.importorskip("sklearn")
    arguments = ["--encodings=rope_axial", "--steps=10", "--width=16"]
    lines = printed(capsys, "vision_transformer", *arguments)
    assert re.fullmatch(r"rope_axial( +\d+\.\d%){2}", lines[2])


def test_own_encoding(capsys):
    lines = printed(capsys, "own_encoding", "--steps=60")
    right = {
        line.split(":")[0]: int(re.search(r"(\d+)% right", line)[1])
        for line in lines[:2]
    }
    assert right["parabola"] > right["none"] + 10
    assert lines[2].startswith("  head 0 attends around offset -")
    assert len(lines) == 6
