"""Golden vectors: against independent formulas, as files, and as a check of wrong code."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers.commands import call
from helpers.position_code import YARN_SCALE, yarn

from pe_jax import golden
from pe_jax.attention import attention
from pe_jax.encodings import Context
from pe_jax.golden.vectors import golden_vectors
from pe_jax.interop import from_hf

ROOT = Path(__file__).parents[2]
COMMAND = "pe_jax/trainer/commands/golden.py"
SIZES = {"head_dim": 8, "num_attention_heads": 2, "hidden_size": 16}
# YaRN, a window in every other layer; two bases with a window; biases.
GPT_OSS = {"model_type": "gpt_oss", **SIZES}
MODERNBERT = {"model_type": "modernbert", "hidden_size": 16, "num_attention_heads": 2}
BLOOM = {"model_type": "bloom", "hidden_size": 16, "n_head": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("golden")
    golden.write([GPT_OSS, MODERNBERT, BLOOM], out)
    return out


@pytest.mark.parametrize("case", ["causal", "chunk", "beyond", "decoding"])
def test_logits_are_those_of_an_independent_formula(case):
    """Re sum c^2 q conj(k) exp(i w (i - j)), in float64."""
    vectors = golden_vectors(GPT_OSS, [case])
    one = vectors.cases[case]
    w = yarn(8, 150_000.0, 32.0, 4096, truncate=False)
    q, k = (x.astype(np.float64) for x in (vectors.q, np.repeat(vectors.k, 2, axis=2)))
    q, k = (x[..., :4] + 1j * x[..., 4:] for x in (q, k))
    x = one.positions
    turned = np.exp(1j * (x[:, :, None] - x[:, None])[..., None] * w)
    want = np.einsum("bqhm,bkhm,bqkm->bhqk", q, k.conj(), turned).real
    want = YARN_SCALE**2 * want / np.sqrt(8)
    got = vectors.results[case]["layer_1"].logits
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want[:, :, one.queries], rtol=1e-9, atol=1e-9)


def test_outputs_windows_and_biases_are_those_of_an_independent_formula():
    vectors = golden_vectors(BLOOM, ["left_padding"])
    slopes = 2.0 ** (-8 * np.arange(1, 5) / 4)
    q, k, v = (x.astype(np.float64) for x in (vectors.q, vectors.k, vectors.v))
    k, v = (np.repeat(x, 2, axis=2) for x in (k, v))
    x = np.array([[0, 0, 1, 2, 3, 4], [0, 0, 0, 1, 2, 3]])
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8)
    offsets = np.abs(x[:, :, None] - x[:, None])
    logits = (logits - slopes[:, None, None] * offsets[:, None])[:, :, 2:]
    index = np.arange(6)
    allowed = (index <= index[:, None]) & (index >= np.array([1, 2])[:, None, None])
    weights = np.where(allowed[:, None, 2:], np.exp(logits), 0)
    out = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
    result = vectors.results["left_padding"]["layer_0"]
    np.testing.assert_allclose(result.logits, logits, rtol=1e-12)
    np.testing.assert_allclose(result.out, out, rtol=1e-12)
    window = golden_vectors(GPT_OSS, ["window_127"])
    at = window.cases["window_127"].positions[0]
    near = (at[None] <= at[:, None]) & (at[:, None] - at[None] <= 127)
    assert (window.results["window_127"]["layer_0"].allowed == near).all()
    assert window.results["window_127"]["layer_1"].allowed[:, 0, -1].all()


def test_windows_of_encoders_have_two_sides():
    vectors = golden_vectors(MODERNBERT, ["window_64"])
    at = vectors.cases["window_64"].positions[0]
    near = np.abs(at[None] - at[:, None]) <= 64
    assert (vectors.results["window_64"]["layer_1"].allowed == near).all()
    assert not vectors.causal


def test_files_are_the_same_each_time_and_small(folder, tmp_path):
    golden.write([GPT_OSS, BLOOM], tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (folder / file.name).read_bytes(), file.name
    assert sum(file.stat().st_size for file in folder.iterdir()) < 250_000


@pytest.mark.parametrize("number", range(3))
def test_examples_of_the_readme_read_the_files(folder, tmp_path, monkeypatch, number):
    block = re.findall(
        r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S
    )[number]
    if "torch" in block:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    for ending in ("safetensors", "json"):
        shutil.copy(folder / f"gpt_oss.{ending}", f"llama.{ending}")
    exec(block, found := {})
    assert found["q"].shape == (2, 6, 4, 8)
    assert "pe_jax" not in block


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ours_passes(folder, dtype):
    def function(q, k, v, positions_q, positions_k, mask, layer, config):
        encoding = from_hf(config).layer(layer)
        q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
        return attention(
            q,
            k,
            v,
            encoding,
            {},
            Context(positions_q=positions_q, positions_k=positions_k),
            mask=mask,
        )

    file = folder / "modernbert.safetensors"
    assert golden.check(function, file, dtype) == []
    assert dtype == "float32" or golden.check(function, file)  # Not as near as float32.


def test_functions_that_rotate(folder):
    def rotate(q, k, positions_q, positions_k):
        turned = []
        for x, positions in ((q, positions_q), (k, positions_k)):
            w = 160_000.0 ** (-np.arange(0, 8, 2) / 8)
            z = (x[..., :4] + 1j * x[..., 4:]) * np.exp(
                1j * positions[..., None, None] * w
            )
            turned.append(np.concatenate([z.real, z.imag], -1))
        return turned

    failures = golden.check(rotate, folder / "modernbert.safetensors")
    assert {failure.layer for failure in failures} == {
        "layer_1"
    }  # Whose base is 10,000.
    assert all(
        "the rotation is that of layer_0" in failure.causes for failure in failures
    )


def test_functions_that_end_python_or_give_complex_numbers_fail(folder):
    def leave(q, k):
        sys.exit(0)

    for function, error in (
        (leave, "SystemExit: 0"),
        (
            lambda q, k: (q, k + 0j),
            "ValueError: rotated keys must be real numbers, got complex",
        ),
    ):
        failures = golden.check(function, folder / "modernbert.safetensors")
        assert len(failures) == 14 and all(
            error in failure.error for failure in failures
        )


def test_zeros_fail(folder):
    def rotate(q, k):
        return 0 * q, k

    failures = golden.check(rotate, folder / "modernbert.safetensors")
    assert len(failures) == 14 and {failure.difference for failure in failures} == {1.0}


def test_the_function_of_the_page(folder):
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/golden.md").read_text(), re.S
    )
    exec(blocks[0].replace("GOLDEN/llama", str(folder / "modernbert")), found := {})
    assert found["golden"]["full/layer_0/out"].shape == found["golden"]["q"].shape
    exec(blocks[1], found)
    failures = golden.check(found["rotate"], folder / "modernbert.safetensors")
    of_its_base = [failure for failure in failures if failure.layer == "layer_1"]
    mistake = "neighbours rotate instead of halves"
    assert of_its_base and all(mistake in failure.causes for failure in of_its_base)


def test_the_commands_of_the_page_in_order(tmp_path, monkeypatch):
    page = (ROOT / "docs/golden.md").read_text()
    commands = re.search(r"```sh\n(.*?)```", page, re.S)[1].splitlines()
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text('{"model_type": "llama", "rope_theta": 500000}')
    Path("code.py").write_text(re.findall(r"```python\n(.*?)```", page, re.S)[1])
    for number, line in enumerate(commands):
        arguments = line.partition("#")[0].split()[2:]
        code, printed, err = call(COMMAND, *arguments)
        assert code == int(number == len(commands) - 1), err
    reported = re.search(r"```\nllama: (.*?)\.\.\.\n(.*?)```", page, re.S)
    assert f"llama: {reported[1]}" in printed and reported[2] in printed


@pytest.mark.skipif(
    not hasattr(nnx, "RoPE"), reason="nnx.RoPE is in flax from 0.12.12 on"
)
def test_nnx_rope_decodes_as_the_page_says():
    exec(
        re.findall(r"```python\n(.*?)```", (ROOT / "docs/golden.md").read_text(), re.S)[
            2
        ],
        found := {},
    )
    difference = abs(jnp.concatenate(found["steps"], 1) - found["full"]).max((0, 2))
    relative = difference / abs(found["full"]).max()
    assert relative[0] < 1e-5 and relative[1] > 0.03 and 0.53 < relative.max() < 0.55


def test_exceptions_are_reported(folder):
    def function(q, k):
        raise TypeError("no batches here")

    failures = golden.check(function, folder / "bloom.safetensors")
    assert len(failures) == 8 and failures[0].error == "TypeError: no batches here"
    assert "no batches here" in golden.report(failures)


def test_what_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="learned_absolute has learned parameters"):
        golden_vectors({"model_type": "gpt2"})
    with pytest.raises(ValueError, match="no positions in attention"):
        golden_vectors({"model_type": "jamba"})
    with pytest.raises(ValueError, match="must take q, k and any of v, .*; got x"):
        golden.check(lambda x: x, folder / "bloom.safetensors")


def test_the_command(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt_oss", "head_dim": 8}')
    (tmp_path / "code.py").write_text("def rotate(q, k):\n    return q, k\n")
    out = f"--out={tmp_path}"
    code, printed, err = call(COMMAND, f"--config={tmp_path / 'config.json'}", out)
    assert code == 0, err
    assert "Written 1 files, " in printed
    code, printed, err = call(
        COMMAND, f"--check={tmp_path / 'code.py'}:rotate", f"--golden={tmp_path}"
    )
    assert code == 1 and "gpt_oss: " in printed and "nothing is rotated" in printed
    (tmp_path / "script.py").write_text("import sys\nrotate = max\nsys.exit(0)\n")
    for arguments, says in [
        (
            [f"--check={tmp_path / 'script.py'}:rotate", f"--golden={tmp_path}"],
            "SystemExit: 0",
        ),
        ([out], "Give --out=FOLDER and --model_type"),
        ([out, "--model_type=lama"], "Did you mean llama?"),
        (["--check=code"], "has no golden vectors"),
        (
            ["--check=math:rotate", f"--golden={tmp_path}"],
            "math has no function 'rotate'",
        ),
    ]:
        code, _, err = call(COMMAND, *arguments)
        assert code == 1 and says in err and err.count("\n") <= 2, err


@pytest.mark.torch
@pytest.mark.parametrize(
    "model_type",
    [
        "gpt_oss",
        "cohere",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("gemma3", "phi3")),
    ],
)
def test_transformers_passes(tmp_path, model_type):
    if not importlib.util.find_spec("transformers"):
        pytest.skip("needs the extra `parity`")
    code, _, err = call(COMMAND, f"--model_type={model_type}", f"--out={tmp_path}")
    assert code == 0, err
    check = f"--check={ROOT / 'tools/golden_foreign.py'}:transformers"
    code, printed, err = call(COMMAND, check, f"--golden={tmp_path}")
    assert code == 0, printed + err
