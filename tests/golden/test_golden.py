"""Golden vectors: against independent formulas, as files, and as a check of wrong code."""

import importlib.util
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers.commands import call
from references.rope import powers

from pe_jax import golden
from pe_jax.attention import attention
from pe_jax.encodings import Context
from pe_jax.golden.vectors import golden_vectors
from pe_jax.interop import from_hf

ROOT = Path(__file__).parents[2]
COMMAND = "pe_jax/commands/golden.py"
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


def yarn_of_gpt_oss(r):
    """Its frequencies; base 150,000, factor 32, 4,096 tokens."""
    w = powers(r, 150_000.0)
    ends = [r * np.log(4096 / (2 * np.pi * n)) / (2 * np.log(150_000.0)) for n in (32.0, 1.0)]
    ramp = np.clip((np.arange(r // 2) - max(ends[0], 0)) / (min(ends[1], r - 1) - ends[0]), 0, 1)
    return w * (1 - ramp) + w / 32 * ramp


SCALE = 0.1 * np.log(32.0) + 1


def attend(
    q, k, v, positions_q, positions_k, mask, layer, *, w=None, c=SCALE, reach=127, halves=True
):  # fmt: skip
    """gpt-oss's attention with rotations of complex numbers in NumPy; options make mistakes."""
    q, k, v = (x[0].astype(np.float64) for x in (q, k, v))
    w = yarn_of_gpt_oss(8) if w is None else w
    turned = []
    for x, at in ((q, positions_q[0]), (k, positions_k[0])):
        z = x[..., :4] + 1j * x[..., 4:] if halves else x[..., ::2] + 1j * x[..., 1::2]
        turned.append(c * z * np.exp(1j * at[:, None, None] * w))
    logits = np.einsum("qhm,km->hqk", turned[0], turned[1][:, 0].conj()).real / np.sqrt(8)
    offsets = np.abs(positions_q[0][:, None] - positions_k[0])
    allowed = mask[0, 0] & ((offsets <= reach) | (layer % 2 == 1))
    weights = np.where(allowed, np.exp(logits), 0)
    return np.einsum("hqk,kd->qhd", weights / weights.sum(-1, keepdims=True), v[:, 0])[None]


@pytest.mark.parametrize("case", ["full", "chunk", "beyond", "decoding"])
def test_logits_are_those_of_an_independent_formula(case):
    """Re sum c^2 q conj(k) exp(i w (i - j)), in float64."""
    vectors = golden_vectors(GPT_OSS, [case])
    one = vectors.cases[case]
    w = yarn_of_gpt_oss(8)
    q, k = (x.astype(np.float64) for x in (vectors.q, vectors.k))
    q, k = (x[..., :4] + 1j * x[..., 4:] for x in (q, k))
    x = one.positions
    turned = np.exp(1j * (x[:, None] - x[None])[..., None] * w)
    want = SCALE**2 * np.einsum("qhm,km,qkm->hqk", q, k[:, 0].conj(), turned).real / np.sqrt(8)
    got = vectors.results[case]["layer_1"].logits
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want[:, one.queries], rtol=1e-9, atol=1e-9)


def test_outputs_windows_and_biases_are_those_of_an_independent_formula():
    vectors = golden_vectors(BLOOM, ["left_padding"])
    slopes = 2.0 ** (-8 * np.arange(1, 5) / 4)
    q, k, v = (x.astype(np.float64) for x in (vectors.q, vectors.k, vectors.v))
    x = np.array([0, 0, 0, 1, 2, 3])
    logits = np.einsum("qhd,kd->hqk", q, k[:, 0]) / np.sqrt(8)
    logits = (logits - slopes[:, None, None] * np.abs(x[:, None] - x))[:, 2:]
    index = np.arange(6)
    allowed = ((index <= index[:, None]) & (index >= 2))[2:]
    weights = np.where(allowed, np.exp(logits), 0)
    out = np.einsum("hqk,kd->qhd", weights / weights.sum(-1, keepdims=True), v[:, 0])
    result = vectors.results["left_padding"]["layer_0"]
    np.testing.assert_allclose(result.logits, logits, rtol=1e-12)
    np.testing.assert_allclose(result.out, out, rtol=1e-12)
    window = golden_vectors(GPT_OSS, ["window_127"])
    at = window.cases["window_127"].positions
    near = (at[None] <= at[:, None]) & (at[:, None] - at[None] <= 127)
    assert (window.results["window_127"]["layer_0"].allowed == near).all()
    assert window.results["window_127"]["layer_1"].allowed[0, -1].all()


def test_files_are_the_same_each_time_and_small(folder, tmp_path):
    golden.write([GPT_OSS, BLOOM], tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (folder / file.name).read_bytes(), file.name
    assert sum(file.stat().st_size for file in folder.iterdir()) < 150_000


@pytest.mark.parametrize("number", range(3))
def test_examples_of_the_readme_read_the_files(folder, tmp_path, monkeypatch, number):
    block = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)[number]
    if "torch" in block:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    for ending in ("safetensors", "json"):
        shutil.copy(folder / f"gpt_oss.{ending}", f"llama.{ending}")
    exec(block, found := {})
    assert found["q"].shape == (6, 2, 8)
    assert "pe_jax" not in block


def test_an_independent_implementation_passes(folder):
    def function(q, k, v, positions_q, positions_k, mask, layer):
        return attend(q, k, v, positions_q, positions_k, mask, layer)

    assert golden.check(function, folder / "gpt_oss.safetensors") == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ours_passes(folder, dtype):
    def function(q, k, v, positions_q, positions_k, mask, layer, config):
        encoding = from_hf(config).layer(layer)
        q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
        return attention(q, k, v, encoding, {}, Context(positions_q, positions_k), mask=mask)

    file = folder / "modernbert.safetensors"
    assert golden.check(function, file, dtype) == []
    assert dtype == "float32" or golden.check(function, file)  # Not as near as float32.


def wrong(**options):
    def function(q, k, v, positions_q, positions_k, mask, layer):
        return attend(q, k, v, positions_q, positions_k, mask, layer, **options)

    return function


def by_index(q, k, v, positions_q, positions_k, mask, layer):
    keys = np.arange(positions_k.shape[1])[None]
    queries = keys[:, keys.shape[1] - q.shape[1] :]
    return attend(q, k, v, queries, keys, mask, layer)


def restarted(q, k, v, positions_q, positions_k, mask, layer):
    return attend(q, k, v, np.arange(q.shape[1])[None], positions_k, mask, layer)


def unmasked(q, k, v, positions_q, positions_k, mask, layer):
    return attend(q, k, v, positions_q, positions_k, np.ones_like(mask), layer)


MISTAKES = {
    "neighbours rotate instead of halves": wrong(halves=False),
    "the attention factor, 1.347, is missing": wrong(c=1.0),
    "the attention factor, 1.347, counts twice": wrong(c=SCALE**2),
    "frequencies and scale are those of unscaled RoPE": wrong(c=1.0, w=powers(8, 150_000.0)),
    "nothing is rotated": wrong(c=1.0, w=0 * powers(8)),
    "the window is one key longer": wrong(reach=128),
    "the window is one key shorter": wrong(reach=126),
    "the window is missing": wrong(reach=10**9),
    "positions are indices in the row": by_index,
    "queries are at 0, 1, ...": restarted,
    "the mask is ignored": unmasked,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(folder, mistake):
    failures = golden.check(MISTAKES[mistake], folder / "gpt_oss.safetensors")
    named = [failure for failure in failures if mistake in failure.causes]
    assert named and len(named) == len(failures), golden.report(failures)
    assert mistake in golden.report(failures)


def test_functions_that_rotate(folder):
    def rotate(q, k, positions_q, positions_k):
        turned = []
        for x, positions in ((q, positions_q), (k, positions_k)):
            w = 160_000.0 ** (-np.arange(0, 8, 2) / 8)
            z = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * positions[..., None, None] * w)
            turned.append(np.concatenate([z.real, z.imag], -1))
        return turned

    failures = golden.check(rotate, folder / "modernbert.safetensors")
    assert {failure.layer for failure in failures} == {"layer_1"}  # Whose base is 10,000.
    assert all("the rotation is that of layer_0" in failure.causes for failure in failures)


def test_zeros_fail(folder):
    def rotate(q, k):
        return 0 * q, k

    failures = golden.check(rotate, folder / "modernbert.safetensors")
    assert len(failures) == 18 and {failure.difference for failure in failures} == {1.0}


def test_the_function_of_the_page(folder):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/golden.md").read_text(), re.S)
    exec(blocks[0].replace("GOLDEN/llama", str(folder / "modernbert")), found := {})
    assert found["golden"]["full/layer_0/out"].shape == found["golden"]["q"].shape
    exec(blocks[1], found)
    failures = golden.check(found["rotate"], folder / "modernbert.safetensors")
    of_its_base = [failure for failure in failures if failure.layer == "layer_1"]
    mistake = "neighbours rotate instead of halves"
    assert of_its_base and all(mistake in failure.causes for failure in of_its_base)


@pytest.mark.skipif(not hasattr(nnx, "RoPE"), reason="nnx.RoPE is in flax from 0.12.12 on")
def test_nnx_rope_decodes_as_the_page_says():
    exec(
        re.findall(r"```python\n(.*?)```", (ROOT / "docs/golden.md").read_text(), re.S)[2],
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
    for ending in ("safetensors", "json"):
        shutil.copy(folder / f"bloom.{ending}", tmp_path)
    file = tmp_path / "bloom.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 0'))
    with pytest.raises(ValueError, match="has format 0; this version reads 1"):
        golden.check(lambda q, k: (q, k), tmp_path / "bloom.safetensors")


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
    for arguments, says in [
        ([out], "Give --out=FOLDER and --model_type"),
        ([out, "--model_type=lama"], "Did you mean llama?"),
        (["--check=code"], "has no golden vectors"),
        (["--check=math:rotate", f"--golden={tmp_path}"], "math has no function 'rotate'"),
    ]:
        code, _, err = call(COMMAND, *arguments)
        assert code == 1 and says in err and err.count("\n") <= 2, err


@pytest.mark.torch
@pytest.mark.parametrize(
    "model_type",
    ["gpt_oss", "cohere", *(pytest.param(x, marks=pytest.mark.slow) for x in ("gemma3", "phi3"))],
)
def test_transformers_passes(tmp_path, model_type):
    if not importlib.util.find_spec("transformers"):
        pytest.skip("needs the extra `parity`")
    code, _, err = call(COMMAND, f"--model_type={model_type}", f"--out={tmp_path}")
    assert code == 0, err
    check = f"--check={ROOT / 'tools/golden_foreign.py'}:transformers"
    code, printed, err = call(COMMAND, check, f"--golden={tmp_path}")
    assert code == 0, printed + err
