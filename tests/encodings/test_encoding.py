"""Encodings as wholes: parameters, sums, layers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import paper_attention
from helpers.compiled import attention
from helpers.small_encodings import build_clipped, embedded, queries_keys

from pe_jax import encodings
from pe_jax.encodings import Part, PositionEncoding, Traits
from pe_jax.encodings.parameters import bind_params, frequency_mask, split_params
from pe_jax.encodings.parser import PAPER

L, D, d, CLIP = 16, 8, 4, 3
COUNTS = {
    "none": 0,
    "learned_absolute": L * D,
    "sinusoidal_absolute": 0,
    "learnable_sinusoidal_absolute": D // 2,
    "learned_relative": (2 * CLIP + 1) * d,
    "sinusoidal_relative": 0,
    "learnable_sinusoidal_relative": d // 2,
}
BY_LAYER = {
    "learned_absolute": {"learned_absolute/table": (16, 8)},
    "cycle(learned_relative(max_distance=2), none)": {
        "cycle_0/learned_relative/table": (5, 4)
    },
    "learned_absolute+cycle(learned_relative(max_distance=2), none, "
    "learned_relative(max_distance=2))": {
        "cycle_0/learned_relative/table": (5, 4),
        "learned_absolute/table": (16, 8),
    },
    "per_layer(learnable_sinusoidal_relative, none)": {
        "layer_0/learnable_sinusoidal_relative/frequencies": (2,),
        "layer_2/learnable_sinusoidal_relative/frequencies": (2,),
    },
}


def test_what_is_for_causal_attention_is_refused_elsewhere():
    part = Part(name="past", traits=Traits(causal_only="it sees the past"))
    q, k = queries_keys((1, 9, 1, 8))
    past = PositionEncoding(parts=(part,))
    with pytest.raises(ValueError, match=r"it sees the past.*'past\+causal'"):
        attention(q, k, k, past)
    np.testing.assert_array_equal(
        attention(q, k, k, past + encodings.causal()),
        attention(q, k, k, encodings.causal()),
    )


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts(name):
    encoding = build_clipped(name)
    assert encoding.name == paper_attention.clipped(name, 3)
    expected = sum(COUNTS[part] for part in name.split("+"))
    params = encoding.init(jax.random.key(0))
    assert encodings.parameter_count(encoding) == expected
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


def test_parameter_counts_at_bert_base():
    sizes = dict(hidden_size=768, head_size=64, num_heads=12, max_length=512)
    counts = {
        name: encodings.parameter_count(encodings.from_name(name, **sizes))
        for name in (
            "learned_absolute",
            "learnable_sinusoidal_absolute",
            "learned_relative",
        )
    }
    assert list(counts.values()) == [512 * 768, 384, 129 * 64]


def test_any_other_combination():
    encoding = build_clipped("sinusoidal_absolute+learned_absolute+learned_relative")
    params = encoding.init(jax.random.key(0))
    assert set(params) == {"learned_absolute", "learned_relative"}
    total = embedded(encoding, params, range(5))
    alone = [
        embedded(encodings.PositionEncoding(parts=(p,)), params, range(5))
        for p in encoding.parts
    ]
    np.testing.assert_allclose(total, sum(alone), rtol=1e-6)


def test_missing_parameters_are_named():
    encoding = build_clipped("learned_absolute+learned_relative")
    for params, message in (
        (
            {"learned_absolute": {"table": 0}},
            "of learned_relative; got learned_absolute",
        ),
        ({"learned_absolute": {}}, "learned_absolute/table, learned_relative"),
        ({"table": 0}, "of learned_absolute, learned_relative; got table"),
    ):
        with pytest.raises(ValueError, match=message):
            split_params(encoding, params)
    assert split_params(build_clipped("none"), None) == []


def test_positions_that_do_not_fit():
    encoding = build_clipped("sinusoidal_absolute")
    x = jnp.zeros((1, 5, 8))
    for positions, message in (
        (range(4), "each of 5 tokens .*got 4"),
        (np.zeros((2, 3)), "each of 5 tokens .*got 3"),
        (range(0, 10, 2), "consecutive"),
        (np.zeros((1, 1, 5)), r"positions must be \[L\] or \[B, L\], got \[1, 1, 5\]"),
    ):
        with pytest.raises(ValueError, match=message):
            encodings.embed(x, encoding, {}, encodings.Context(positions_q=positions))


@pytest.mark.parametrize("name", BY_LAYER)
def test_parameters_by_layer(name):
    encoding = build_clipped(name)
    assert encoding.name == name
    params = encoding.init(jax.random.key(0), 4)
    shapes = {
        "/".join(key.key for key in path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    assert shapes == BY_LAYER[name]
    assert encodings.parameter_count(encoding, 4) == sum(
        map(math.prod, shapes.values())
    )
    bound = bind_params(encoding, params)
    assert {place for place, (_, values) in bound.items() if values} == {
        path.rpartition("/")[0] for path in shapes
    }
    for layer in range(4):
        split_params(
            encoding.layer(layer), encoding.layer_params(params, layer)
        )  # None is missing.
    marks = jax.tree_util.tree_leaves_with_path(frequency_mask(encoding, params))
    assert all(mark == (path[-1].key == "frequencies") for path, mark in marks)


def test_encodings_by_layer_in_python():
    far, none = encodings.tisa(num_heads=2), encodings.none()
    near = far + encodings.window(max_distance=2)
    name = "tisa+window(max_distance=2)"
    assert encodings.cycle(far, near, near) == build_clipped(
        f"cycle(tisa, {name}, {name})"
    )
    bias = encodings.alibi(num_heads=2)
    both = bias + encodings.per_layer(far, none)
    assert both.name == "alibi+per_layer(tisa, none)" and both == build_clipped(
        both.name
    )
    assert both.layer(2) == bias + far and both.layer(1) == bias
    assert far.layer(5) is far and far == encodings.tisa(num_heads=2)
    with pytest.raises(ValueError, match=r"layers of alibi\+per_layer\(.*\) differ"):
        both.init(jax.random.key(0))
    with pytest.raises(ValueError, match="cannot contain each other"):
        encodings.cycle(both)
    with pytest.raises(ValueError, match="more than one"):
        both + both


def test_layers_that_cannot_be():
    for name, message in {
        "cycle(none)+per_layer(none)": "more than one",
        "cycle(cycle(none))": "inside another encoding",
        "cycle()": "one or more",
        "learned_relative+cycle(learned_relative)": "Use each family once",
    }.items():
        with pytest.raises(ValueError, match=message):
            build_clipped(name)


def test_no_flax_in_encodings_and_attention():
    import subprocess
    import sys

    code = "import sys, pe_jax.encodings, pe_jax.attention; assert 'flax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
