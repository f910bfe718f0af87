"""Mistakes in position code of many models: golden vectors fail each of them, and name it."""

import ml_dtypes
import numpy as np
import pytest
from helpers.position_code import (
    CONFIGS,
    SIZES,
    YARN_SCALE,
    code,
    settings_of,
    turn,
    yarn,
)
from references.rope import powers

from pe_jax import golden
from pe_jax.golden.checking import common_causes
from pe_jax.golden.files import model_types
from pe_jax.golden.formula import evaluate, formula_of
from pe_jax.golden.vectors import golden_vectors


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    written = {}
    for name, config in CONFIGS.items():
        (written[name],) = golden.write([config], folder / name)
    return written


def rounded(dtype):
    return lambda x: np.asarray(x).astype(dtype).astype(np.float64)


BFLOAT16, FLOAT16 = rounded(ml_dtypes.bfloat16), rounded(np.float16)


def indices(q, k):
    keys = np.broadcast_to(np.arange(k.shape[1]), k.shape)
    return keys[:, k.shape[1] - q.shape[1] :], keys


def of_first_row(x):
    return np.broadcast_to(x[:1], x.shape)


def tiled(x, heads):
    return np.tile(x, (1, 1, heads // x.shape[2], 1))


def first_head(x, heads):
    return np.repeat(x[:, :, :1], heads, axis=2)


def key_position(slopes, positions_q, positions_k):
    """Differ from ALiBi by a number for each query, which the softmax cancels."""
    return slopes[:, None, None] * positions_k[:, None, None, :]


def unlike_alibi(factor):
    def bias(slopes, positions_q, positions_k):
        offsets = np.abs(positions_k[:, None, :] - positions_q[:, :, None])
        return -factor * slopes[:, None, None] * offsets[:, None]

    return bias


def lower_triangle(mask):
    """The mask of causal attention, for queries that are the last tokens."""
    queries, keys = mask.shape[2:]
    return np.tri(queries, keys, keys - queries, dtype=bool)[None, None]


def no_rotation(w):
    return None


UNSCALED = {"w": lambda w: powers(8, 150_000.0), "scale": lambda c: 1.0}
YARN = yarn(8, 150_000.0, 32.0, 4096, truncate=False)
TWICE = YARN**2 / powers(8, 150_000.0)
FACTOR = f"the attention factor, {YARN_SCALE:.4g},"

# Model, wrong settings, the name. A set has names that nothing tells apart.
MISTAKES = [
    ("llama", {"layout": lambda x: "neighbours"}, "neighbours rotate instead of halves"),
    ("llama", {"w": lambda w: -w}, "rotations are in the opposite direction"),
    ("llama", {"w": no_rotation}, "nothing is rotated"),
    ("llama", {"w": lambda w: powers(8, 500_000.0)}, "the base is 500,000"),
    ("llama", {"w": lambda w: w[::-1]}, "frequencies are in reverse order"),
    ("llama", {"w": BFLOAT16}, "frequencies are rounded to bfloat16"),
    ("llama", {"w": FLOAT16}, "frequencies are rounded to float16"),
    ("llama", {"rotation": {"round_angles": BFLOAT16}}, "angles are rounded to bfloat16"),
    ("llama", {"rotation": {"round_angles": FLOAT16}}, "angles are rounded to float16"),
    ("llama", {"rotation": {"round_tables": BFLOAT16}},
     "sines and cosines are rounded to bfloat16"),
    ("llama", {"rotation": {"round_tables": FLOAT16}}, "sines and cosines are rounded to float16"),
    (
        "llama",
        {"change_positions": lambda q, k: (BFLOAT16(q), BFLOAT16(k))},
        "positions are rounded to bfloat16",
    ),
    (
        "llama",
        {"change_positions": lambda q, k: (FLOAT16(q), FLOAT16(k))},
        "positions are rounded to float16",
    ),
    ("llama", {"change_positions": indices}, "positions are indices in the row"),
    (
        "llama",
        {"change_positions": lambda q, k: (indices(q, k)[0] * 0 + np.arange(q.shape[1]), k)},
        "queries are at 0, 1, ...",
    ),
    (
        "llama",
        {"change_positions": lambda q, k: (np.arange(q.shape[1]) + 0 * q, indices(q, k)[1])},
        "positions are indices, and queries at 0, 1, ...",
    ),
    (
        "llama",
        {"change_positions": lambda q, k: (q, indices(q, k)[1])},
        "keys are at their indices",
    ),
    (
        "llama",
        {"change_positions": lambda q, k: (of_first_row(q), of_first_row(k))},
        "all rows have the positions of the first",
    ),
    ("llama", {"change_positions": lambda q, k: (q + 1, k)}, "queries are one position late"),
    ("llama", {"change_positions": lambda q, k: (q - 1, k)}, "queries are one position early"),
    ("llama", {"change_positions": lambda q, k: (0 * q, k)}, "queries are not rotated"),
    ("llama", {"change_positions": lambda q, k: (q, 0 * k)}, "keys are not rotated"),
    ("llama", {"change_positions": lambda q, k: (q, 2 * k)}, "keys are rotated twice"),
    ("llama", {"heads": tiled}, "key heads are tiled instead of repeated"),
    ("llama", {"heads": first_head}, "all heads use the first key head"),
    ("llama", {"divisor": lambda d: 1.0}, "logits are not divided by sqrt(d)"),
    ("llama", {"divisor": lambda d: d}, "logits are divided by d"),
    ("llama", {"divisor": lambda d: np.sqrt(4 * d)}, "d of logits is that of all heads"),
    ("llama", {"change_mask": np.ones_like}, "the mask is ignored"),
    ("llama", {"change_mask": lower_triangle}, "padding and documents are not masked"),
    ("llama", {"change_mask": of_first_row}, "the mask of the first row is that of all"),
    ("linear", {"w": lambda w: 4 * w}, "frequencies are those of unscaled RoPE"),
    ("linear", {"w": lambda w: w / 4}, "frequencies are scaled twice"),
    ("linear", {"w": lambda w: 16 * w}, "frequencies are scaled the other way"),
    ("gpt_neox", {"rotation": {"first": 24}}, "the last dimensions rotate instead of the first"),
    ("gpt_neox", {"w": lambda w: powers(32)}, "all dimensions rotate"),
    ("gpt_neox", {"w": lambda w: powers(32)[:4]}, "exponents are those of whole heads"),
    (
        "gpt_neox",
        {"divisor": lambda d: np.sqrt(8)},
        "d of logits is the rotated dimensions alone",
    ),
    ("gpt_oss", {"scale": lambda c: 1.0}, f"{FACTOR} is missing"),
    ("gpt_oss", {"scale": lambda c: c * c}, f"{FACTOR} counts twice"),
    ("gpt_oss", {"scale": np.sqrt}, f"{FACTOR} is that of logits"),
    ("gpt_oss", UNSCALED, "frequencies and scale are those of unscaled RoPE"),
    ("gpt_oss", {"w": UNSCALED["w"]}, "frequencies are those of unscaled RoPE"),
    ("gpt_oss", {"w": lambda w: TWICE}, "frequencies are scaled twice"),
    ("gpt_oss", {"window": lambda x: (x[0] and 128, None)}, "the window is one key longer"),
    ("gpt_oss", {"window": lambda x: (x[0] and 126, None)}, "the window is one key shorter"),
    ("gpt_oss", {"window": lambda x: (x[0] and 254, None)}, "the window is twice as wide"),
    ("gpt_oss", {"window": lambda x: (x[0] and 63, None)}, "the window is half as wide"),
    ("gpt_oss", {"window": lambda x: (None, None)}, "the window is missing"),
    ("modernbert", {"window": lambda x: (x[0], x[1] and 0)}, {
        "the window has no right side", "keys to the right are masked",
    }),
    ("modernbert", {"window": lambda x: (x[0] and 0, x[1])}, "the window has no left side"),
    ("modernbert", {"window": lambda x: (x[0], None)}, "the window has no limit on the right"),
    ("modernbert", {"window": lambda x: (x[0] and 32,) * 2}, "the window is half as wide"),
    ("modernbert", {"window": lambda x: (x[0] and 128,) * 2}, "the window is twice as wide"),
    ("modernbert", {"window": lambda x: (x[0] and 63,) * 2}, "the window is one key shorter"),
    ("modernbert", {"window": lambda x: (x[0], 0)}, "keys to the right are masked"),
    ("bloom", {"slopes": lambda m: None}, "the bias is missing"),
    ("bloom", {"bias": unlike_alibi(-1)}, "the bias has the wrong sign"),
    ("bloom", {"bias": unlike_alibi(2)}, "the bias counts twice"),
    ("bloom", {"bias": unlike_alibi(8**-0.5)}, "the bias is divided by sqrt(d)"),
    ("bloom", {"slopes": lambda m: m[::-1]}, "slopes are in reverse order"),
    ("bloom", {"slopes": lambda m: 4 * m}, "slopes begin with 1"),
    ("bloom of 6 heads", {"slopes": lambda m: 2.0 ** (-8 * np.arange(1, 7) / 6)},
     "slopes are those of 2^(-8 h/H), though H is no power of 2"),
    ("bloom of 6 heads", {"slopes": lambda m: 2.0 ** -np.arange(1, 7)},
     "slopes are those of the next power of 2"),
    ("alibi encoder", {"bias": key_position}, None),
    ("llama4", {"temperature": lambda t: lambda x: np.ones(x.shape)}, {
        "the temperature is missing", "positions are indices in the row",
        "queries are at 0, 1, ...", "positions are indices, and queries at 0, 1, ...",
        "queries are at their indices",
    }),
    ("llama4", {"temperature": lambda t: lambda x: t(x) ** 2}, "the temperature counts twice"),
    ("llama4", {"temperature": lambda t: lambda x: t(x - 1)}, {
        "the temperature is that of the position before", "queries are one position early",
    }),
    ("llama4", {"w": lambda w: powers(8, 500_000.0), "layout": lambda x: "neighbours"},
     "the rotation is that of layer_0"),
    ("llama4", {"chunk": lambda n: None}, "attention is not in chunks"),
    ("llama4", {"chunk": lambda n: n and 8191}, {
        "chunks are one key shorter", "positions count from 1",
    }),
    ("llama4", {"chunk": lambda n: n and 8193}, "chunks are one key longer"),
    ("ministral3", {"temperature": lambda t: lambda x: t(x + 1)}, {
        "the temperature is that of the next position", "positions count from 1",
    }),
    ("ministral3", {"change_positions": lambda q, k: (q + 1, k + 1)}, {
        "the temperature is that of the next position", "positions count from 1",
    }),
    ("phi3", {"change_longest": lambda n: 0}, "frequencies are those of short inputs"),
    ("phi3", {"change_longest": lambda n: 10**6}, "frequencies are those of long inputs"),
    # The switch at another length, and one token early.
    ("phi3", {"change_longest": lambda n: n if n > 131_072 else 0},
     "frequencies are those of short inputs"),
    ("phi3", {"change_longest": lambda n: n + 1}, "frequencies are those of long inputs"),
]  # fmt: skip


def name_of(mistake):
    model, _, name = mistake
    names = sorted(name) if isinstance(name, set) else [name or "without a name"]
    return f"{model}: {' or '.join(names)}"


@pytest.mark.parametrize("mistake", MISTAKES, ids=map(name_of, MISTAKES))
def test_mistakes_are_caught_and_named(files, mistake):
    model, changes, name = mistake
    failures = golden.check(code(model, **changes), files[model])
    assert failures
    if name is not None:
        expected = name if isinstance(name, set) else {name}
        assert set(common_causes(failures)) == expected, golden.report(failures)


@pytest.mark.parametrize("model", CONFIGS)
def test_right_code_passes(files, model):
    assert golden.check(code(model), files[model]) == []


def test_what_the_softmax_cancels_passes(files):
    """A decoder's ALiBi by the position of the key; positions that all begin elsewhere."""
    assert golden.check(code("bloom", bias=key_position), files["bloom"]) == []
    moved = code("llama", change_positions=lambda q, k: (q + 1, k + 1))
    assert golden.check(moved, files["llama"]) == []


def test_formulas_without_a_mistake_give_the_golden_vectors():
    for config in CONFIGS.values():
        assert_formulas_fit(config)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", model_types())
def test_all_model_types(model_type, tmp_path):
    """Formulas fit the golden vectors, and code that gives zeros passes none of them."""
    assert_formulas_fit({"model_type": model_type})
    (file,) = golden.write([{"model_type": model_type}], tmp_path)
    failures = golden.check(lambda q, k: (0 * q, 0 * k), file)
    vectors = golden_vectors({"model_type": model_type}, [])
    assert {failure.layer for failure in failures} == set(vectors.layers)


def assert_formulas_fit(config):
    vectors = golden_vectors(config)
    for name, case in vectors.cases.items():
        for kind in vectors.layers:
            formula = evaluate(formula_of(vectors, kind, case))
            result = vectors.results[name][kind]
            assert (formula.allowed == result.allowed).all(), (name, kind)
            np.testing.assert_allclose(formula.logits, result.logits, atol=1e-7)
            np.testing.assert_allclose(formula.out, result.out, atol=1e-7)


# Temperatures; heads of different sizes.
@pytest.mark.parametrize("model_type", ["mistral4", "ministral3", "llama4", "gemma4"])
def test_zeros_fail_in_all_layers(tmp_path, model_type):
    config = {"model_type": model_type, **SIZES}
    (file,) = golden.write([config], tmp_path)
    failures = golden.check(lambda q, k: (0 * q, 0 * k), file)
    assert {failure.layer for failure in failures} == set(
        golden_vectors(config, []).layers
    )


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("model", ["ministral3", "llama4"])
def test_rotations_pass_with_a_temperature_and_without(files, model, scaled):
    def rotate(q, k, positions_q, positions_k, layer):
        settings = settings_of(model, layer, positions_k.max())
        q, k = q.astype(np.float64), k.astype(np.float64)
        if settings["w"] is not None:
            options = {key: settings[key] for key in ("w", "scale", "layout")}
            q, k = turn(q, positions_q, **options), turn(k, positions_k, **options)
        if scaled:
            q = q * settings["temperature"](positions_q)[:, :, None, None]
        return q, k

    assert golden.check(rotate, files[model]) == []
